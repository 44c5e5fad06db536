"""Every way to make one entry of a report look better, and those that may pass, with the reason."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Report = dict[str, Any]
Path_ = tuple[str | int, ...]

#: Where a change says nothing about what is promised, or is not for ``privctl verify`` to see: the first keys of the
#: place ("*" is any), and why.
HARMLESS: dict[tuple[str, ...], str] = {
    ("created",): "when; nothing follows from it",
    ("versions",): "of packages; nothing follows from them",
    ("warnings",): "words",
    ("omissions",): "words about what is not there",
    ("schema_version",): "another version is not read",
    ("guarantees", "*", "note"): "words about a number that is itself checked",
    ("guarantees", "#"): "a bound fewer promises less; which must be there is checked of each mechanism",
    ("outputs", "#"): "a companion less is described; that a model is described is checked elsewhere",
    ("outputs", "*", "role"): "what a companion is called",
    ("parameters", "ledger"): "where the file lay; its digest is an input's",
    ("inputs", "*", "path"): "where a file lay; its digest is checked where it is found",
    ("parameters", "methods", "*", "seconds"): "how long it took",
    ("mechanism", "noise_source"): "words around the one phrase that is looked for",
    ("mechanism", "training", "beta1"): "of Adam, and the training was by SGD",
    ("mechanism", "training", "beta2"): "of Adam, and the training was by SGD",
    ("evidence",): "measurements: those that an audit's ranks do not give are not repeated, and a line says so",
    ("verdicts",): "of audits: conclusions from measurements; why a verification came to what it did",
    ("parameters", "simulated"): "whether there are simulations too, which are random",
}


def at(report: Any, place: Path_) -> Any:
    """The entry at ``place``."""
    for key in place:
        report = report[key]
    return report


#: Of a training's parameters those that its guarantees rest on; the others tell how it went.
BEARING = frozenset({
    "method", "examples", "batch_size", "sample_rate", "noise_multiplier", "delta", "fired", "fired_by_group",
    "bit_epsilon", "release", "measure_rate", "measure_noise", "measurements_begun", "initial_weights", "noise_source",
    "plan",
})  # fmt: skip
#: What else they rest on where signs are published as they are, and where they are not.
_OF_SIGNS, _OF_LEDGER = {"number_of_groups", "fire_probability", "steps"}, {"fired_steps"}


def harmless(place: Path_, report: Report) -> str | None:
    """Why a change at ``place`` may pass; None where it may not."""
    signs = (report["mechanism"] or {}).get("type") == "sign-bits"
    bearing = BEARING | (_OF_SIGNS if signs else _OF_LEDGER)
    if report["step"] == "retrain" and place[0] == "parameters" and len(place) > 1 and place[1] not in bearing:
        return "how the training went; its mechanism and guarantees say what it released"
    if place[0] == "verdicts" and report["step"] == "verify" and place[-1] != "reason":
        return None
    if place[0] == "inputs" and report["step"] == "retrain" and (len(place) == 1 or place[-1] == "role"):
        return "which data were read decides nothing that is promised"
    if place in (("guarantees",), ("outputs",)):
        return HARMLESS[place[0], "#"]
    if place == ("parameters", "fired_by_group"):
        return "a group that never fired is left out; their sum is checked"
    for prefix, reason in HARMLESS.items():
        if len(place) >= len(prefix) and all(a in ("*", str(b)) for a, b in zip(prefix, place, strict=False)):
            return reason
    return None


def leaves(value: Any, place: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every leaf, and every list that has entries to lose."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*place, key))
    elif isinstance(value, list):
        if value:
            yield place, value
        for index, item in enumerate(value):
            yield from leaves(item, (*place, index))
    else:
        yield place, value


def changes(place: Path_, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for one leaf, each with a word for it."""
    last = str(place[-1])
    if isinstance(value, list):
        for index in range(len(value) if len(value) <= 4 else 2):
            yield f"without {index}", [*value[:index], *value[index + 1 :]]
    elif isinstance(value, bool):
        yield "the other", not value
    elif isinstance(value, int | float):
        for word, factor in (("halved", 0.5), ("doubled", 2), ("a little less", 0.98), ("a little more", 1.02)):
            changed = round(value * factor) if isinstance(value, int) else value * factor
            if changed != value:
                yield word, changed
    elif isinstance(value, str):
        choices = {
            "status": ("proved", "conditional"), "state": ("enforced", "checked"),
            "adjacency": ("zero-out", "add-or-remove", "replace-one"), "scope": ("all-candidates", "this-model"),
            "unit": ("secret", "example"), "notion": ("approximate-dp", "secret-protection", "mutual-information"),
            "batches": ("poisson", "shuffled", "fixed-size"), "outcome": ("PROVED", "CONSISTENT"),
        }.get(last, (f"{value} or so", "another"))  # fmt: skip
        yield from ((f"now {choice!r}", choice) for choice in choices if choice != value)
    elif value is None and last in ("epsilon", "follows"):
        yield "now 1", 1.0
    elif value is None and last == "floor":
        yield "now 1e9", 1e9  # a low one may well be true


def mutants(report: Report) -> Iterator[tuple[str, Path_, Report]]:
    """Every one-entry change of ``report``, and all deltas together."""
    for place, value in leaves(report):
        for word, other in changes(place, value):
            mutant = copy.deepcopy(report)
            at(mutant, place[:-1])[place[-1]] = other
            yield f"{'.'.join(map(str, place))} {word}", place, mutant
    for factor in (0.5, 0.1):
        mutant = copy.deepcopy(report)
        for guarantee in mutant["guarantees"]:
            guarantee["delta"] *= factor
        if mutant != report:
            yield f"all deltas times {factor}", ("guarantees", "*", "delta"), mutant


def better(place: Path_, value: Any, other: Any, report: Report) -> bool:
    """Whether the change at ``place`` can make what is promised look better: a bound that only got weaker does not."""
    if place[:1] == ("parameters",) and place[-1] in ("epsilon", "posterior") and isinstance(value, int | float):
        return bool(other < value)  # what was asked for; that a bound stays below it is checked
    inside = place[:1] == ("guarantees",) and len(place) > 2 and place[-1] != "status"
    if inside and report["guarantees"][place[1]]["status"] in ("refuted", "void"):
        return False  # it promises nothing, and says so
    if inside and report["guarantees"][place[1]]["status"] == "claimed" and place[-1] == "epsilon":
        return False  # a number that others state, and the report does not stand behind
    if not place or place[0] != "guarantees" or not isinstance(value, int | float) or isinstance(other, bool):
        return True
    weaker = {"epsilon": 1, "delta": 1, "bound": 1, "follows": 1, "floor": -1, "at": 0}.get(str(place[-1]))
    return weaker is None or not isinstance(other, int | float) or (other - value) * weaker <= 0
