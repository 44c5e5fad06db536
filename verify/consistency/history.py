"""What a training measured after each epoch: its evidence must be that of its history, and possible.

``privctl verify`` runs no model, so nothing here says that a loss is the model's; but a gate reads these figures, and
each of them stands in the history of the epochs too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.measures import QUANTITIES
from verify.compare import compare
from verify.methods.expected import ExpectedMethod, StatedTraining

_AFTER, _WHILE = "measured after the epoch", "measured while training, each example as it was met"
_HELD_OUT, _PUBLIC = "held_out_", "public_"
#: Counts, which each entry states alike.
_COUNTS = ("held_out_tokens", "held_out_examples")
#: Measures that are shares of a whole.
_SHARES = (
    "clipped_fraction", "clipped_derivatives", "zeroed_fraction", "held_out_accuracy", "held_out_micro_f1",
    "held_out_entity_f1", "held_out_exact_match", "held_out_f1",
)  # fmt: skip
_LOSS, _PERPLEXITY, _SQUARES = "held_out_loss", "held_out_perplexity", "held_out_squared_error"
_BEFORE, _MOST_FREQUENT = "before", "most frequent label"
#: Above this loss a perplexity is no float, and none is stated.
_LARGEST = math.log(1.7976931348623157e308)


def faults(report: PrivacyReport, parameters: StatedTraining, method: ExpectedMethod | None) -> Iterator[str]:
    """Yields one sentence for each measure that is impossible, or that evidence and history state differently."""
    history = parameters.history
    private = method is not None and method.noised
    for number, entry in enumerate(history, start=1):
        yield from _of_epoch(entry, history[0], f"epoch {number} of its history", private=private)
    for key, role in ((_HELD_OUT, "held-out"), (_PUBLIC, "public")):
        if any(name.startswith(key) for entry in history for name in entry) and not _reads(report, role):
            yield f"its history has measures of {role} records, and it names no {role} file among its inputs"
    yield from _evidence(report, parameters, history)


def _of_epoch(entry: Mapping[str, float], first: Mapping[str, float], when: str, *, private: bool) -> Iterator[str]:
    for name, value in entry.items():
        known = name in QUANTITIES or name in _COUNTS or name == "step"
        if not known or (private and not name.startswith((_HELD_OUT, _PUBLIC))):
            yield f"{when} states {name}, which no such training does"
        elif value < 0 or (name in _SHARES and value > 1):
            yield f"{when} has {name} {value:g}, which nothing measures"
        elif name in _COUNTS:
            yield from compare(f"{name} of {when}", value, first.get(name), "the first epoch's is")
    yield from _follows(entry, when)


def _follows(measures: Mapping[str, float], when: str) -> Iterator[str]:
    """The perplexity is the loss's exponential, and a squared error is twice the loss."""
    loss = measures.get(_LOSS)
    if loss is None:
        return
    for name, follows in ((_PERPLEXITY, math.exp(loss) if loss < _LARGEST else math.inf), (_SQUARES, 2 * loss)):
        if name in measures:
            yield from compare(f"{name} of {when}", measures[name], follows, "by its loss it is")


def _reads(report: PrivacyReport, role: str) -> bool:
    return any(artifact.role == role for artifact in report.inputs)


def _evidence(
    report: PrivacyReport, parameters: StatedTraining, history: Sequence[Mapping[str, float]]
) -> Iterator[str]:
    items = [item for item in report.evidence if item.method in (_AFTER, _WHILE)]
    last = history[-1] if history else {}
    wanted = [quantity for name, quantity in QUANTITIES.items() if name in last]
    if [item.quantity for item in items] != wanted:
        yield from compare(
            "what its evidence measures of epochs", ", ".join(i.quantity for i in items), ", ".join(wanted),
            "its history measures",
        )  # fmt: skip
        return
    keys = {quantity: name for name, quantity in QUANTITIES.items()}
    before, held_out = dict[str, float](), set[tuple[tuple[str, int], ...]]()
    for item in items:
        key = keys[item.quantity]
        yield from _of_item(item, key, history)
        if _BEFORE in item.details:
            before[key] = item.details[_BEFORE]
        if key.startswith(_HELD_OUT):
            held_out.add(tuple(item.samples.items()))
        else:
            count = getattr(parameters, "public_examples", None) if key.startswith(_PUBLIC) else parameters.examples
            yield from compare(f"the sample of {item.quantity!r}", dict(item.samples), {"examples": count}, "it is of")
    if len(held_out) > 1 or any([name for name, _ in sample] != ["examples"] for sample in held_out):
        yield "its held-out figures are not all of the same number of examples"
    yield from _of_epoch(before, before, "its evidence before the training", private=False)


def _of_item(item: Evidence, key: str, history: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Its numbers are those of the history, and an exact measure has no interval and no reason."""
    held_out = key.startswith(_HELD_OUT)
    what = f"evidence of {item.quantity!r}"
    yield from compare(f"the method of {what}", item.method, _AFTER if held_out else _WHILE, "it is")
    yield from compare(f"the estimate of {what}", item.estimate, history[-1][key], "the last epoch of its history has")
    epochs = {f"epoch {number}": entry[key] for number, entry in enumerate(history, start=1) if key in entry}
    more = {name: value for name, value in item.details.items() if name not in epochs}
    for name, value in epochs.items():
        yield from compare(f"{name} of {what}", item.details.get(name), value, "its history has")
    allowed = {_BEFORE} if held_out else set()
    allowed |= {_MOST_FREQUENT} if key == "held_out_accuracy" else set()
    for name in sorted(more.keys() - allowed):
        yield f"{what} states {name!r}, which no training measures of it"
    if not 0 < more.get(_MOST_FREQUENT, 1) <= 1:
        yield f"{what} has a most frequent label with a share of {more[_MOST_FREQUENT]:g}"
    exact = Evidence(method=item.method, quantity=item.quantity, estimate=item.estimate, bound=Bound.NONE)
    for name in ("lower", "upper", "confidence", "bound", "interval", "reason", "test"):
        yield from compare(f"{name} of {what}", getattr(item, name), getattr(exact, name), "an exact measure has")
