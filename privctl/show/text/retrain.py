"""A finished retraining, for the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from privctl.domain.evidence import MOST_FREQUENT, Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import chosen_by_search
from privctl.show.summary import in_a_sentence
from privctl.show.text.guarantee import guarantee_text
from privctl.show.text.style import notes, number, paragraph, table

#: Epochs that a table shows without ``--verbose``.
_EPOCHS = 20
_EPOCH = re.compile(r"epoch ([0-9]+)")
_LOSS = "held-out loss, nats"
#: From this share of the whole fall in the last epoch, a loss is still falling.
_FALLING = 0.05


def retrain_text(report: PrivacyReport, *, verbose: bool = False, only: str | None = None, epochs: bool = True) -> str:
    """What the training leaves an attacker in a sentence, each guarantee with its assumptions, measures, and notes.

    ``epochs`` adds the measures of each epoch (about 20 without ``verbose``). ``only`` is the only note to print.
    """
    guarantees = report.guarantees
    sentence = in_a_sentence(report)
    parts = [paragraph(sentence)] if sentence else []
    parts += [
        guarantee_text(guarantee, named=len(guarantees) > 1, verbose=verbose, printed=guarantees[:i])
        for i, guarantee in enumerate(guarantees)
    ]
    parts += _chosen(report)
    parts += _measures(report.evidence, verbose=verbose, by_epoch=epochs)
    parts += [paragraph(f"withheld: {item.what}: {item.reason}") for item in report.omissions]
    warnings = [warning for warning in report.warnings if only in (None, warning)]
    if warnings:
        parts.append(notes(warnings))
    return "\n".join(parts)


def _chosen(report: PrivacyReport) -> Iterator[str]:
    """A sentence on the values of the run that a search released."""
    values = chosen_by_search(report)
    stated = [f"--{name} {number(value) if isinstance(value, float) else value}" for name, value in values.items()]
    if stated:
        yield paragraph(f"the search chose {' and '.join(stated)}, by the held-out loss")


def _measures(evidence: Sequence[Evidence], *, verbose: bool, by_epoch: bool) -> Iterator[str]:
    if not evidence:
        return
    before = any("before" in item.details for item in evidence)
    headings = ["measured", *(["before"] if before else []), "last epoch"]
    rows = [
        [
            item.quantity,
            *([number(item.details.get("before"), 5)] if before else []),
            number(item.estimate, 5),
        ]
        for item in evidence
    ]
    yield table(headings, rows)
    measured = {item.quantity: _by_epoch(item) for item in evidence}
    measured = {quantity: values for quantity, values in measured.items() if values}
    epochs = sorted(set().union(*measured.values()))
    if by_epoch and len(epochs) > 1:
        every = 1 if verbose else math.ceil(len(epochs) / _EPOCHS)
        shown = [epoch for epoch in epochs if epoch % every == 0 or epoch == epochs[-1]]
        yield table(
            ["epoch", *measured],
            [[str(epoch), *(number(values.get(epoch), 5) for values in measured.values())] for epoch in shown],
        )
        if every > 1:
            yield paragraph(f"(one epoch in {every}: --verbose shows all {len(epochs)})")
    for item in evidence:
        yield from _at_chance(item)
        yield from _still_falling(item)


def _by_epoch(item: Evidence) -> dict[int, float]:
    return {int(match[1]): value for name, value in item.details.items() if (match := _EPOCH.fullmatch(name))}


def _at_chance(item: Evidence) -> Iterator[str]:
    """A sentence if an accuracy is within two standard errors of always answering the most frequent label."""
    chance, count = item.details.get(MOST_FREQUENT), sum(item.samples.values())
    if chance is None or item.estimate is None or not count:
        return
    if item.estimate <= chance + 2 * math.sqrt(chance * (1 - chance) / count):
        yield paragraph(
            f"{item.quantity} is at chance: {number(item.estimate, 3)} on {count} examples, where always answering the "
            f"most frequent label reaches {number(chance, 3)}; it does not show that the model learned anything"
        )


def _still_falling(item: Evidence) -> Iterator[str]:
    """A sentence if the held-out loss fell in the last epoch by a twentieth or more of its whole fall."""
    before, losses = item.details.get("before"), [loss for _, loss in sorted(_by_epoch(item).items())]
    if item.quantity != _LOSS or before is None or item.estimate is None or len(losses) < 2:
        return
    fall, last = before - item.estimate, losses[-2] - item.estimate
    if last >= _FALLING * fall > 0:
        yield paragraph(
            f"the held-out loss still fell in the last epoch, by {number(last, 3)} of {number(fall, 3)} nats: a higher "
            "--learning-rate or more --epochs may learn more; choose them on public data, or by --search, "
            "which epsilon counts"
        )
