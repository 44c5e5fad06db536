"""Every way to make one entry of a report look better, and those that may pass, with the reason."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from privctl.domain.errors import PrivctlError
from privctl.reports.codec import decode

Report = dict[str, Any]
Path_ = tuple[str | int, ...]
Change = Callable[[Report], None]

#: Where a change says nothing about what is promised, or is not for verify and gate to see: the first keys of the place
#: ("*" is any, "#" an entry less), and why.
HARMLESS: dict[tuple[str, ...], str] = {
    ("created",): "when; nothing follows from it but its age, which a policy bounds",
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
    ("inputs", "*", "tensors"): "of what was read; the digest of its file holds them all",
    ("parameters", "methods", "*", "seconds"): "how long it took",
    ("mechanism", "noise_source"): "words around the one phrase that is looked for",
    ("mechanism", "training", "beta1"): "of Adam, and the training was by SGD",
    ("mechanism", "training", "beta2"): "of Adam, and the training was by SGD",
    ("evidence",): "measurements: those that an audit's ranks do not give are not repeated, and a line says so",
    ("verdicts",): "of audits: conclusions from measurements; why a verification came to what it did",
    (
        "mechanism",
        "formula",
    ): "which of two readings of one formula; the noise is compared with that",
    (
        "guarantees",
        "*",
        "arithmetic",
        "coordinates",
    ): "more numbers than were released cost more, and fewer are noticed",
    ("parameters", "simulated"): "whether there are simulations too, which are random",
    ("parameters", "include"): "patterns that take the same tensors; others are refuted",
    ("parameters", "exclude"): "patterns that take the same tensors; others are refuted",
}
#: The same in reports of one step.
HARMLESS_OF: dict[str, dict[tuple[str, ...], str]] = {
    "audit": {
        ("step",): "an audit by another name counts for none",
        ("evidence",): "measurements that do not contradict themselves: only another audit, or its signer, says more",
        ("verdicts",): "conclusions that do not contradict the intervals",
        ("parameters",): "how it was measured, which the numbers are conditional on",
        ("inputs", "#"): "files of records; a gate compares those of members with what was trained on",
        ("inputs", "*", "role"): "files of records; a gate compares those of members with what was trained on",
        ("parents",): "the model is known by its own digest",
        ("log", "path"): "a log elsewhere is not at hand, which verify says; a policy that requires the log finds it",
    },
    "noise": {
        ("inputs", "*", "role"): "of what lies beside the weights; that weights were read is checked",
        ("evidence",): "measurements, which privctl verify does not repeat and says so",
        ("inputs", "#"): "what lies beside the weights is compared with the outputs; that weights were read is checked",
        ("parents",): "a chain less; what it says of the facts is then asserted only",
    },
    "retrain": {
        ("evidence",): "measurements, which privctl verify does not repeat and says so",
        ("parents",): "the plan is an input too, under its own digest",
        ("parameters", "plan", "cap"): "how the plan was made, and not what it protects",
        ("parameters", "plan", "kept_fraction"): "how much is learned, and not what is given away",
        ("parameters", "plan", "expected_epochs"): "how much is learned, and not what is given away",
        ("parameters", "plan", "secrets_checked"): "a step without these numbers computed them again; verify does too",
        ("parameters", "plan", "records_never_drawn"): "how much is learned, and not what is given away",
    },
    "external-training": {
        ("evidence",): "measurements, which no gate counts in such a report",
    },
    "account": {
        ("parameters", "found"): "what was looked for; the mechanism holds it, and the bounds are on that",
        ("evidence",): "a plan has measured nothing",
    },
    "secrets-plan": {
        ("inputs", "*", "role"): "what is not named is not compared; a training names the plan and its book by digests",
        ("evidence",): "how the secrets stand in all; the bounds are the guarantees'",
        ("parameters", "caps"): "what was tried on the way; the plan itself is checked",
        ("parameters", "kinds"): "counts for people; the plan has them itself, where it is at hand",
        ("parameters", "default_prior"): "compared with the book where that is at hand",
        ("parameters", "default_posterior"): "compared with the book where that is at hand",
        ("parameters", "targets"): "compared with the book where that is at hand",
        ("inputs", "#"): "what is not named is not compared; a training names the plan and its book by digests",
        ("parents",): "the book is an input too, under its own digest",
    },
    "secrets-scan": {
        ("parameters",): "a scan promises nothing: a plan is held against the book itself",
        ("inputs",): "a scan promises nothing: a plan is held against the book itself",
        ("step",): "a scan promises nothing under any name",
    },
    "verify": {
        ("step",): "a verification by another name counts for none",
        ("verdicts", "*", "reason"): "why a verification came to what it did, which is found again",
        ("evidence",): "measurements, which are repeated with the verdicts",
        ("parameters",): "whether there are simulations too, which are random",
    },
}  # fmt: skip
#: Of entries that are left out altogether: what was asked of a plan, and numbers that say more than must be said.
LEFT_OUT: dict[tuple[str, ...], str] = {
    ("parameters",): "what a plan was asked for; its mechanism holds it, and the bounds are on that",
    ("outputs", "*", "tensors"): "which tensors it holds; its own digest says so too",
    ("guarantees", "*", "follows"): "one number less beside another that promises nothing",
    ("guarantees", "*", "floor"): "one number less beside another that promises nothing",
    ("guarantees", "*", "noise_multiplier"): "one number less; where the bound is on one noise it must be there",
}
#: The same of a plan of protection: counts for people, which plans of earlier versions do not all say.
_COUNTS: dict[tuple[str, ...], str] = {
    ("parameters", name): "a count less for people; the plan itself is checked"
    for name in ("dataset_size", "memberships", "records_with_a_secret", "largest_secret", "secrets_in_no_record")
}
#: What verify sees and a gate does not, which has no files but reports and the model.
BEYOND_A_GATE: dict[tuple[str, ...], str] = {
    ("log",): "its place in a log, which a policy that requires the log compares",
    ("inputs", "*", "digest"): "the data, and the model before noise, are not the customer's to hash",
    ("inputs", "*", "bytes"): "the data, and the model before noise, are not the customer's to measure",
    ("outputs", "*", "path"): "which model is meant is said by --model, and known by its digest",
    ("outputs", "*", "bytes"): "of companions, whose digests are compared, and of scores and updates",
    ("outputs", "*", "digest"): "of scores and updates, which are no part of the model",
    ("outputs", "*", "tensors", "*", "digest"): "the digest of the file is compared, which holds those of its tensors",
    ("mechanism", "grid"): "that the weights lie on it is for verify to see, which reads them",
    ("verdicts",): "what a verification says of weights is believed as far as its signer; the rest is computed again",
    ("parents", "*", "path"): "reports are known by their digests, wherever they lie",
}  # fmt: skip


#: Lists of at most this many entries lose each of them in turn; longer ones three.
_ALL = 20


def at(report: Any, path: Path_) -> Any:
    """The entry at ``path``."""
    for key in path:
        report = report[key]
    return report


#: Of a training's parameters those that its guarantees rest on; the others tell how it went.
BEARING = frozenset({
    "method", "examples", "batch_size", "sample_rate", "noise_multiplier", "delta", "fired", "fired_by_group",
    "bit_epsilon", "release", "measure_rate", "measure_noise", "measurements_begun", "initial_weights", "noise_source",
    "plan", "collected_from_data", "task",
})  # fmt: skip
#: The same of a training in a loop that is not privctl's.
_BEARING_OUTSIDE = frozenset({
    "program", "examples", "batch_size", "sample_rate", "noise_multiplier", "delta", "steps_begun", "noise_source",
    "released_numbers", "accountant_history",
})  # fmt: skip
#: What else they rest on where signs are published as they are, and where they are not.
_OF_NOISE = {"sample_rate", "noise_multiplier", "delta", "noise_source"}
_OF_SIGNS, _OF_LEDGER = {"number_of_groups", "fire_probability", "steps"}, {"fired_steps"}


#: What may be left out as a whole.
_WHOLE: dict[Path_, str] = {
    ("guarantees",): HARMLESS["guarantees", "#"],
    ("outputs",): HARMLESS["outputs", "#"],
    ("log",): "an audit outside a log, which a policy that requires the log refuses",
    ("parameters", "fired_by_group"): "a group that never fired is left out; their sum is checked",
}


def harmless(path: Path_, report: Report, *, gate: bool = False, left_out: bool = False) -> str | None:
    """Why a change at ``path`` may pass verify, or a ``gate``; None where it may not."""
    if left_out and (report["step"] == "account" or path[0] in ("guarantees", "outputs")):
        of = _guarantee(path, report)
        if of is not None and of["status"] in ("refuted", "void"):
            return "of what promises nothing, and says so"
        found = next((reason for prefix, reason in LEFT_OUT.items() if _fits(prefix, path)), None)
        if found is not None and not (report["step"] == "noise" and path[0] == "outputs"):
            return found
    signs = (report["mechanism"] or {}).get("type") == "sign-bits"
    bearing = BEARING | (_OF_SIGNS if signs else _OF_LEDGER)
    if report["parameters"].get("method") == "clipped":
        bearing -= _OF_NOISE
    if report["step"] == "retrain" and path[0] == "parameters" and len(path) > 1 and path[1] not in bearing:
        return "how the training went; its mechanism and guarantees say what it released"
    outside = report["step"] == "external-training" and path[0] == "parameters" and len(path) > 1
    if outside and path[1] not in _BEARING_OUTSIDE:
        return "how the training went; its mechanism and guarantees say what it released"
    if path[0] == "inputs" and report["step"] == "retrain" and (len(path) == 1 or path[-1] == "role"):
        return "which data were read decides nothing that is promised"
    if path in _WHOLE:
        return _WHOLE[path]
    if (
        (of := _guarantee(path, report)) is not None
        and of["status"] == "claimed"
        and of["name"].startswith("dpquant, ")
    ):
        return "what a paper would have claimed of measurements that were not made; no policy counts it by itself"
    rows = {**HARMLESS, **HARMLESS_OF.get(report["step"], {}), **(BEYOND_A_GATE if gate else {})}
    rows |= _COUNTS if left_out and report["step"] == "secrets-plan" else {}
    return next((reason for prefix, reason in rows.items() if _fits(prefix, path)), None)


def _guarantee(path: Path_, report: Report) -> Report | None:
    within = path[0] == "guarantees" and len(path) > 1 and isinstance(path[1], int)
    return at(report, path[:2]) if within else None


def _fits(prefix: tuple[str, ...], path: Path_) -> bool:
    whole = prefix[:-1] if prefix[-1] == "#" else prefix
    if prefix[-1] == "#" and len(path) > len(whole):
        return False
    return len(path) >= len(whole) and all(a in ("*", str(b)) for a, b in zip(whole, path, strict=False))


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every leaf, and every list that has entries to lose."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        if value:
            yield path, value
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def changes(path: Path_, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for one leaf, each with a word for it."""
    last = str(path[-1])
    if isinstance(value, list):
        for index in range(len(value) if len(value) <= _ALL else 3):
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
            "step": ("retrain", "noise", "replay", "audit", "verify", "account", "inspect", "another"),
            "role": ("model", "companion", "data", "scores", "another"),
            "bound": ("upper", "lower", "two-sided", "none"),
            "type": ("ledger", "clipped-training", "laplace", "randomized-response"),
        }.get(last, (f"{value} or so", "another"))  # fmt: skip
        yield from ((f"now {choice!r}", choice) for choice in choices if choice != value)
    elif value is None and last in ("epsilon", "follows"):
        yield "now 1", 1.0
    elif value is None and last == "floor":
        yield "now 1e9", 1e9  # a low one may well be true


def mutants(report: Report, every: int = 1) -> Iterator[tuple[str, Path_, Report]]:
    """Every (so many-th) one-entry change of ``report``, and some that go together; none that is read as the same."""
    text = json.dumps(report)
    genuine = decode(text, "genuine")
    for name, path, change in itertools.islice(_changes(report), 0, None, every):
        mutant = json.loads(text)
        change(mutant)
        try:
            if decode(json.dumps(mutant), name) == genuine:
                continue
        except PrivctlError:
            pass  # unreadable is not the same
        yield name, path, mutant


def _changes(report: Report) -> Iterator[tuple[str, Path_, Change]]:
    for path, value in leaves(report):
        for word, other in changes(path, value):
            yield f"{'.'.join(map(str, path))} {word}", path, functools.partial(_put, path=path, value=other)
    for path, table in _tables(report):
        for key in [key for key, item in table.items() if item is not None]:
            where = (*path, key)
            yield f"{'.'.join(map(str, where))} left out", where, functools.partial(_leave_out, path=where)
    names = {assumption["name"] for guarantee in report["guarantees"] for assumption in guarantee["assumptions"]}
    for name in sorted(names):
        change = functools.partial(_without_premise, name=name)
        yield f"no assumption {name!r}", ("guarantees", "*", "assumptions"), change
    for factor in (0.5, 0.1):
        change = functools.partial(_smaller_deltas, factor=factor)
        yield f"all deltas times {factor}", ("guarantees", "*", "delta"), change


def _put(report: Report, path: Path_, value: Any) -> None:
    at(report, path[:-1])[path[-1]] = value


def _leave_out(report: Report, path: Path_) -> None:
    """An entry of a table left out has its default or none."""
    del at(report, path[:-1])[path[-1]]


def _without_premise(report: Report, name: str) -> None:
    """An assumption taken from every guarantee, and each status what the remaining ones earn."""
    for guarantee in report["guarantees"]:
        guarantee["assumptions"] = [assumption for assumption in guarantee["assumptions"] if assumption["name"] != name]
        asserted = any(assumption["state"] == "asserted" for assumption in guarantee["assumptions"])
        if guarantee["status"] == "conditional" and not asserted:
            guarantee["status"] = "proved"


def _smaller_deltas(report: Report, factor: float) -> None:
    for guarantee in report["guarantees"]:
        guarantee["delta"] *= factor


def _tables(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _tables(item, (*path, key))


def better(path: Path_, value: Any, other: Any, report: Report) -> bool:
    """Whether the change at ``path`` can make what is promised look better: a bound that only got weaker does not."""
    if path[:1] == ("parameters",) and path[-1] in ("epsilon", "posterior") and isinstance(value, int | float):
        return bool(other < value)  # what was asked for; that a bound stays below it is checked
    inside = path[:1] == ("guarantees",) and len(path) > 2 and path[-1] != "status"
    if inside and report["guarantees"][path[1]]["status"] in ("refuted", "void"):
        return False  # it promises nothing, and says so
    if inside and report["guarantees"][path[1]]["status"] == "claimed" and path[-1] == "epsilon":
        return False  # a number that others state, and the report does not stand behind
    if not path or path[0] != "guarantees" or not isinstance(value, int | float) or isinstance(other, bool):
        return True
    weaker = {"epsilon": 1, "delta": 1, "bound": 1, "follows": 1, "floor": -1, "at": 0, "coordinates": 1}.get(
        str(path[-1])
    )
    return weaker is None or not isinstance(other, int | float) or (other - value) * weaker <= 0
