"""An audit, for the terminal: its conclusion, the next command, its limits, and last its table, worst finding first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.leaking import LeakingRecord
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted, downward, upward
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.decision import Decision, conclusion
from privctl.show.gather.next_step import next_step
from privctl.show.leaks import EXTRACTION, MEMBERSHIP, SECRETS, WITHOUT_MODEL, exit_sentence, settings_of
from privctl.show.plain import escape_hidden
from privctl.show.text.leaking import effect_of_removal, leaking_table
from privctl.show.text.style import Colour, coloured, number, paragraph, table

_COLOURS = {
    Outcome.REFUTED: Colour.BAD,
    Outcome.CONSISTENT: Colour.GOOD,
    Outcome.INCONCLUSIVE: Colour.CARE,
    Outcome.PROVED: Colour.GOOD,
}
#: Beginnings of the names of quantities.
_COMPARISON, _MEDIAN, _DISCLOSED = "AUC over ", "median bits, ", "disclosed, "
_KIND = "told first, kind "
_DECIDED = {
    Decision.WITHHOLD: Colour.BAD,
    Decision.SLIGHT: Colour.CARE,
    Decision.INCONCLUSIVE: Colour.CARE,
    Decision.NOTHING: Colour.GOOD,
    Decision.UNTESTED: Colour.CARE,
}
#: What a quantity means, printed if the table has it; a name that ends in a space is the beginning of a quantity.
_QUANTITIES = {
    "AUC": "AUC: how often the attack is right about which of a member and a non-member is the member",
    "TPR at ": "TPR at 1 % FPR: the share of members it recognizes while it takes 1 % of the non-members for members",
    "rate beyond held-out text": "rate beyond held-out text: the share of training texts that the model reproduces, "
    "less that of texts it never saw",
    "epsilon": "epsilon: a lower bound on how much one record influences the model; at least 0 says nothing",
    "epsilon of a group": "epsilon of a group: a lower bound on how much all records of one group influence the model",
    "noise multiplier": "noise multiplier: an upper bound on the noise in the training, if the steps are otherwise as "
    "stated",
    "disclosed, ": "disclosed: the share of planted secrets that the model completes",
    "mean bits": "bits: how high a planted secret ranks among secrets never planted; about 1.4 on average by chance",
}
_CHANCE = "chance: what guessing gives"
_CHANCE_OF_RATES = _CHANCE + "; for a TPR an upper bound, as the true false positive rate is uncertain"
_COULD_SEE = "could see: the smallest leak that an audit of this size would detect four times in five"
_BASELINES = {
    "blind baseline": "blind baseline: an attack that sees the records but not the model",
    "length baseline": "length baseline: an attack that sees only the length of a record",
    "reference control": "reference control: the same attack on a model that was trained on neither file",
}
_HEADINGS = ("finding", "quantity", "estimate", "chance", "could see")


def audit_text(
    report: PrivacyReport,
    *,
    place: Path | None = None,
    records: Sequence[LeakingRecord] = (),
    verbose: bool = False,
) -> str:
    """The audit's conclusion, its verdicts, what to do next, its limits and its findings.

    ``place`` is the path of the report, relative to which the next command names files; without it no next command is
    shown. ``records`` are the records audited, those that leak most first. Without ``verbose`` the table has only the
    quantity by which each method is judged, and quantities above chance.
    """
    decided = conclusion(report)
    word, _, reason = decided.sentence.partition(decided.decision)
    parts = [paragraph(f"{word}{coloured(decided.decision, _DECIDED[decided.decision])}{reason}"), "\n"]
    worst = _worst_first(report.verdicts)
    parts += [paragraph(f'{_word(v)}: "{v.subject}": {v.reason}.') for v in worst]
    if last := exit_sentence(report):
        parts.append(paragraph(last))
    parts += _next(report, place, records)
    missing = [(item.method, item.quantity, item.reason) for item in report.evidence if item.reason]
    missing += [(item.what, "", item.reason) for item in report.omissions]
    missing += _not_requested(report)
    if missing:
        parts += ["\nNot measured:\n", *_by_reason(missing)]
    limits = [_item(line) for line in _limits(report)]
    parts += ["\nWhat this does not show, and what it rests on:\n", *limits]
    if records and (verbose or decided.decision in (Decision.WITHHOLD, Decision.SLIGHT)):
        parts.append("\n" + leaking_table(records, verbose=verbose))
    parts += [effect_of_removal(records), _canaries(report.evidence), _secrets(report.evidence)]
    parts += ["\n", _findings(report.evidence, verbose)]
    return "".join(parts)


def _limits(report: PrivacyReport) -> list[str]:
    """The report's warnings; what it says of several attacks alike is said once, behind their names."""
    methods = {item.method for item in report.evidence}
    named: dict[str, list[str]] = {}
    for line in report.warnings:
        method, _, rest = line.partition(": ")
        alone = method not in methods or not rest
        named.setdefault(line if alone else rest, []).extend([] if alone else [method])
    return [f"{', '.join(names)}: {line}" if names else line for line, names in named.items()]


def _next(report: PrivacyReport, place: Path | None, records: Sequence[LeakingRecord]) -> list[str]:
    if place is None:
        return []
    repeated = any(reason.why.repeats for record in records for reason in record.reasons)
    step = next_step(report, place, repeated=repeated)
    parts = ["\n" + paragraph(f"Next: {step.advice}{':' if step.command else '.'}")]
    return [*parts, f"  {escape_hidden(step.command)}\n"] if step.command else parts


def _findings(evidence: Sequence[Evidence], verbose: bool) -> str:
    """The table of findings with an explanation of its terms; columns without any value are left out."""
    others = [item for item in evidence if not item.quantity.startswith(_KIND)]
    shown = others if verbose else _main_evidence(others)
    rows = [_row(item) for item in sorted(shown, key=_sort_key, reverse=True)]
    kept = [i for i in range(len(_HEADINGS)) if i < 3 or any(row[i] != "-" for row in rows)]
    headings = [_HEADINGS[i] for i in kept]
    text = table(headings, [[row[i] for i in kept] for row in rows])
    hidden = len(others) - len(rows)
    if hidden:
        text += paragraph(f"({counted(hidden, 'more quantity', 'more quantities')}: --verbose, or the report)")
    meant = [line for name, line in _QUANTITIES.items() if any(_is_named(item.quantity, name) for item in shown)]
    rates = any(item.quantity.startswith("TPR at ") and item.estimate is not None for item in shown)
    chance = _CHANCE_OF_RATES if rates else _CHANCE
    meant += [line for line in (chance, _COULD_SEE) if line.partition(":")[0] in headings]
    meant += [line for name, line in _BASELINES.items() if any(item.method == name for item in shown)]
    return text + (paragraph("; ".join(meant) + ".", indent=2, hanging=2) if meant else "")


def _is_named(quantity: str, name: str) -> bool:
    return quantity.startswith(name) if name.endswith(" ") else quantity == name


def _not_requested(report: PrivacyReport) -> Iterator[tuple[str, str, str]]:
    """Further audits of a language model that was audited for membership, as (what, "", reason)."""
    subjects = {verdict.subject for verdict in report.verdicts}
    if MEMBERSHIP not in subjects or settings_of(report).task != "causal-lm":
        return
    tried = {item.what for item in report.omissions}
    if EXTRACTION not in subjects and "extraction" not in tried:
        yield (
            "extraction",
            "",
            "the audit was not asked to extract training text; privctl audit takes --train and --held-out, which may "
            "be the same two files",
        )
    if SECRETS not in subjects and "secrets" not in tried:
        yield (
            "secrets",
            "",
            "the audit was not asked whether names, numbers and other secrets can be guessed; privctl secrets scan "
            "lists them, and privctl audit takes them as --secrets with --data",
        )


def _by_reason(missing: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """What was not measured, each reason once, with all that it applies to."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, quantity, reason in missing:
        groups.setdefault(reason, []).append((name, quantity))
    for reason, ((first, quantity), *others) in groups.items():
        what = f"{first}, {quantity}" if quantity else first
        also = f" (also {', '.join(name for name, _ in others)})" if others else ""
        if any(other_quantity != quantity for _, other_quantity in others):
            also = f" (and {counted(len(others), 'other quantity', 'other quantities')})"
        yield _item(f"{what}{also}: {reason}")


def _word(verdict: Verdict) -> str:
    seen = ", and this audit could have detected it" if verdict.outcome is Outcome.CONSISTENT else ""
    return coloured(verdict.audit_word.upper() + seen, _COLOURS[verdict.outcome])


def _item(text: str) -> str:
    return paragraph(f"- {text}", indent=2, hanging=4)


def _main_evidence(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The quantity by which each method is judged, and all others above chance except comparisons of methods."""
    first = {item.method: item for item in reversed(evidence)}
    return [
        item
        for item in evidence
        if item.estimate is not None
        and not item.reason
        and not (_is_vacuous(item) and item.method in WITHOUT_MODEL)
        and (item is first[item.method] or (_excess(item) > 0 and not item.quantity.startswith(_COMPARISON)))
    ]


def _canaries(evidence: Sequence[Evidence]) -> str:
    """A table of the exposure and completion of canaries, by their number of copies; empty if there are none."""
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
    """Tables of attacks on secrets by kind, and of their controls; empty if there are none."""
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
        others = ("compared with", "told first before training", "greedy before training", "told first, control")
        tables += "\n" + table(others, controls)
    return tables


def _fraction(name: str, details: Mapping[str, float], total: float) -> str:
    return f"{details[name]:.0f} of {total:.0f}" if name in details else "-"


def _row(item: Evidence) -> tuple[str, ...]:
    return (
        item.method,
        item.quantity,
        _estimate(item),
        number(item.details.get("chance"), 3),
        number(_could_see(item), 3),
    )


def _could_see(item: Evidence) -> float | None:
    """What would be detected four times in five, if that is stated.

    Of a rate on one side, an audit states what would be seen at least once at its confidence; of a plan of protection,
    the share that would contradict it.
    """
    other = item.method == "secret protection" or item.quantity.startswith("rate on ")
    return None if other or _is_vacuous(item) else item.sees


def _estimate(item: Evidence) -> str:
    """An estimate with its interval, such as "0.86 (0.82-0.90)"; a lower bound alone as "at least 0.3"."""
    if item.bound is Bound.UPPER and item.upper is not None:
        return f"at most {upward(item.upper, 3)}"
    if item.lower is None or _is_vacuous(item) or item.estimate is None:
        return _interval(item) if item.estimate is None else short_number(item.estimate)
    if item.bound is Bound.LOWER or item.upper is None:
        # A certified bound is never shown above what was certified.
        least = f"at least {downward(item.lower, 3)}"
        return least if item.estimate == item.lower else f"{short_number(item.estimate)} ({least})"
    ends = [short_number(item.lower), short_number(item.upper)]
    return f"{short_number(item.estimate)} ({(' to ' if '-' in ''.join(ends) else '-').join(ends)})"


def short_number(value: float) -> str:
    """A number with two decimals, or two significant digits below 0.095, or three above 10: 0.90, 0.0012, 12."""
    size = abs(value)
    if size < 0.095 and value:
        return f"{value:.2g}"
    return f"{value:.2f}" if size < 10 else f"{value:.3g}"


def _is_vacuous(item: Evidence) -> bool:
    """Whether the interval of an AUC is 0 to 1, as when every record has the same score."""
    return item.quantity == "AUC" and item.lower == 0 and item.upper == 1


def _interval(item: Evidence) -> str:
    if item.lower is None or _is_vacuous(item):
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


def _sort_key(item: Evidence) -> tuple[float, bool]:
    return _excess(item), item.lower is not None


def _worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    order = [Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT, Outcome.PROVED]
    return sorted(verdicts, key=lambda verdict: order.index(verdict.outcome))
