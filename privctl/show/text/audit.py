"""An audit on the terminal: one table, the worst finding on top, then verdicts with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.leaks import closing_sentence, is_claim
from privctl.show.text.style import Colour, coloured, number, paragraph, table

#: What a claim of privacy is, and what a hypothesis that every audit tests; only the former decide the exit code.
_OF_CLAIMS = {Outcome.REFUTED: "VIOLATED", Outcome.CONSISTENT: "NOT VIOLATED, and this audit could have seen it"}
_OF_HYPOTHESES = {Outcome.REFUTED: "REJECTED", Outcome.CONSISTENT: "NOT REJECTED, and this audit could have seen it"}
_REJECTED = (
    "REJECTED is said of a hypothesis that every audit tests, and leaves the exit code as it is; a claim of privacy "
    "that is refuted is VIOLATED, and makes it 1."
)
_COLOURS = {
    Outcome.REFUTED: Colour.BAD,
    Outcome.CONSISTENT: Colour.GOOD,
    Outcome.INCONCLUSIVE: Colour.CARE,
    Outcome.PROVED: Colour.GOOD,
}
#: Beginnings of quantities' names.
_COMPARISON, _MEDIAN, _DISCLOSED = "AUC over ", "median bits, ", "disclosed, "
_KIND = "told first, kind "
_ADVICE = {
    Outcome.REFUTED: "remove repetitions from the data, retrain with `privctl retrain dp-sgd` at an epsilon that suits "
    "(or release with noise, `privctl noise`), and audit again; until then treat the model as you treat its data",
    Outcome.INCONCLUSIVE: "do not read silence as safety: remove the reason named above and audit again",
    Outcome.CONSISTENT: "this is no proof: a guarantee comes from how the model was trained or noised",
}


def audit_text(report: PrivacyReport, *, verbose: bool = False) -> str:
    """The findings, worst on top, the verdicts with advice, what none of it shows, and last whether there is a leak.

    Without ``verbose`` only what each method is judged by, and what exceeds chance.
    """
    others = [item for item in report.evidence if not item.quantity.startswith(_KIND)]
    shown = others if verbose else _main_evidence(others)
    rows = [_row(item) for item in sorted(shown, key=_weight, reverse=True)]
    parts = [table(("finding", "quantity", "estimate", "interval", "chance", "could see"), rows)]
    hidden = len(others) - len(rows)
    if hidden:
        parts.append(paragraph(f"({counted(hidden, 'more quantity', 'more quantities')}: --verbose, or the report)"))
    parts += [_canaries(report.evidence), _secrets(report.evidence)]
    worst = _worst_first(report.verdicts)
    parts += ["\n", *(paragraph(f'{_word(v)}: "{v.subject}": {v.reason}.') for v in worst)]
    if any(v.outcome is Outcome.REFUTED and not is_claim(v) for v in worst):
        parts.append(paragraph(_REJECTED, indent=2))
    if worst:
        parts.append("\n" + paragraph(f"What to do: {_ADVICE[worst[0].outcome]}."))
    reasons = [_item(f"{item.method}, {item.quantity}: {item.reason}") for item in others if item.reason]
    omitted = [_item(f"{item.what}: {item.reason}") for item in report.omissions]
    if reasons or omitted:
        parts += ["\nNot measured:\n", *reasons, *omitted]
    limits = [_item(line) for line in report.warnings]
    parts += ["\nWhat this does not show, and on what it rests:\n", *limits]
    last = closing_sentence(report)
    return "".join([*parts, "\n" + paragraph(coloured(last, Colour.BAD)) if last else ""])


def _word(verdict: Verdict) -> str:
    words = _OF_CLAIMS if is_claim(verdict) else _OF_HYPOTHESES
    return coloured(words.get(verdict.outcome, str(verdict.outcome)), _COLOURS[verdict.outcome])


def _item(text: str) -> str:
    return paragraph(f"- {text}", indent=2, hanging=4)


def _main_evidence(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The quantity by which each method is judged, and all others above chance, except comparisons of methods."""
    first = {item.method: item for item in reversed(evidence)}
    return [
        item
        for item in evidence
        if item.estimate is not None
        and not item.reason
        and (item is first[item.method] or (_excess(item) > 0 and not item.quantity.startswith(_COMPARISON)))
    ]


def _canaries(evidence: Sequence[Evidence]) -> str:
    """Exposure and completion of the canaries by their copies; empty where there were none."""
    medians = {i.quantity.removeprefix(_MEDIAN): i for i in evidence if i.quantity.startswith(_MEDIAN)}
    completed = {i.quantity.removeprefix(_DISCLOSED): i for i in evidence if i.quantity.startswith(_DISCLOSED)}
    rows = []
    for name, item in medians.items():
        completion = completed.get(name)
        rows.append((
            name,
            str(item.samples["canaries"]),
            number(item.estimate, 3),
            number(item.details.get("max"), 3),
            number(item.details.get("ceiling"), 3),
            "-" if completion is None or completion.estimate is None else f"{completion.details['disclosed']:.0f}",
        ))  # fmt: skip
    if not rows:
        return ""
    return "\n" + table(("canaries", "number", "median bits", "max", "most bits", "disclosed"), rows)


def _secrets(evidence: Sequence[Evidence]) -> str:
    """Attacks on secrets by kind, then what they are compared with; empty where there were none."""
    trained, controls = [], []
    for item in evidence:
        if not item.quantity.startswith(_KIND):
            continue
        kind, details, count = item.quantity.removeprefix(_KIND), item.details, item.samples["secrets"]
        trained.append((
            kind,
            str(count),
            number(details["skipped"]),
            number(details.get("told")),
            number(details.get("chance"), 3),
            _interval(item),
            number(details.get("median_rank"), 3),
            number(details.get("greedy")),
            number(details.get("bound"), 3),
        ))  # fmt: skip
        controls.append((
            kind,
            _fraction("before_told", details, count),
            _fraction("before_greedy", details, count),
            _fraction("control_told", details, details.get("control", 0)),
        ))  # fmt: skip
    if not trained:
        return ""
    heads = ("secrets", "tried", "skipped", "told first", "chance", "share", "median rank", "greedy", "bound")
    tables = "\n" + table(heads, trained)
    if any(cell != "-" for row in controls for cell in row[1:]):
        others = ("compared with", "told first before training", "greedy before training", "told first, never drawn")
        tables += "\n" + table(others, controls)
    return tables


def _fraction(name: str, details: Mapping[str, float], total: float) -> str:
    return f"{details[name]:.0f} of {total:.0f}" if name in details else "-"


def _row(item: Evidence) -> tuple[str, ...]:
    could = None if _vacuous(item) else item.details.get("detectable", item.details.get("ceiling"))
    return (
        item.method,
        item.quantity,
        number(item.estimate, 3),
        _interval(item),
        number(item.details.get("chance"), 3),
        number(could, 3),
    )


def _vacuous(item: Evidence) -> bool:
    """Whether the interval of an AUC leaves everything open, as where every record has the same score."""
    return item.quantity == "AUC" and item.lower == 0 and item.upper == 1


def _interval(item: Evidence) -> str:
    if item.lower is None or _vacuous(item):
        return "-"
    if item.bound is Bound.LOWER or item.upper is None:
        return f"at least {number(item.lower, 3)}"
    return f"{number(item.lower, 3)} to {number(item.upper, 3)}"


def _excess(item: Evidence) -> float:
    if item.details.get("detected"):
        return 1.0
    if item.bound is Bound.LOWER:
        return item.lower or 0.0
    if item.lower is None or "chance" not in item.details:
        return 0.0
    return max(0.0, item.lower - item.details["chance"])


def _weight(item: Evidence) -> tuple[float, bool]:
    return _excess(item), item.lower is not None


def _worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    order = [Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT, Outcome.PROVED]
    return sorted(verdicts, key=lambda verdict: order.index(verdict.outcome))
