"""Checks a protection plan on disk: whether its noise keeps every secret's posterior within its target.

The file ties the records' sampling probabilities to the secrets they hold; see ``privctl secrets plan``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.errors import InputError
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.arrays import read_arrays
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile
from verify.losses import secret
from verify.losses.bound_pair import BoundPair
from verify.recompute.curve_posteriors import check_posteriors
from verify.recompute.opposite_secret import opposite_information

KEY = "privctl.secrets"
LAYOUT = {
    "weights": "F64", "probabilities": "F64", "starts": "I64", "records": "I64", "priors": "F64", "posteriors": "F64",
    "budgets": "F64", "information": "F64", "posterior_bounds": "F64", "curve_bounds": "F64",
}  # fmt: skip
_ROUNDING = 1e-7
#: The most secrets that are recomputed, starting with those that use the largest fraction of their budget.
MOST = 3000

REFERENCE = "reference"
#: For each form of a plan, the bounds in nats on a secret, from its records' probabilities, sigma and the steps.
INFORMATION: dict[str, Callable[[Sequence[float], float, int], BoundPair]] = {
    REFERENCE: secret.information_about_records,
    "pairwise": opposite_information,
}

Arrays = dict[str, NDArray[Any]]


def check_plan(file: SafetensorsFile) -> Iterator[Verdict]:
    """Verdicts on the plan in ``file``, whose metadata has ``KEY``. Raises InputError if it is malformed."""
    facts = parse_json(file.metadata[KEY], str(file.path))
    arrays = arrays_of(file)
    name = file.path.name
    faults = list(_faults(facts, arrays))
    if faults:
        yield from (Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason) for reason in faults)
    elif facts.get("form") not in INFORMATION:
        reason = f"its form is {facts.get('form')!r}; a plan has one of {', '.join(INFORMATION)}"
        yield Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)
    else:
        yield _information(facts, arrays, name)
        yield from check_posteriors(facts, arrays, name)


def arrays_of(file: SafetensorsFile) -> Arrays:
    """The plan's arrays. Raises InputError unless they fit together, so that every later index is valid."""
    arrays = read_arrays(file, LAYOUT, "a plan of protection")
    starts, records = arrays["starts"], arrays["records"]
    secrets, examples = len(arrays["budgets"]), len(arrays["probabilities"])
    fits = (
        all(values.ndim == 1 for values in arrays.values())
        and len(starts) == secrets + 1
        and starts[0] == 0
        and starts[-1] == len(records)
        and bool((np.diff(starts) >= 0).all())
        and bool(((records >= 0) & (records < examples)).all())
        and len(arrays["weights"]) == examples
        and bool(((arrays["probabilities"] >= 0) & (arrays["probabilities"] <= 1)).all())
        and all(
            len(arrays[name]) == secrets
            for name in ("priors", "posteriors", "information", "posterior_bounds", "curve_bounds")
        )
    )
    if not fits:
        raise InputError(f"{file.path} is no plan of protection: its arrays do not fit together; make the plan again")
    return arrays


def names_of(file: SafetensorsFile) -> list[list[str]]:
    """The ids and the kinds of the plan's secrets. Raises InputError unless these are two lists of equal length."""
    raw = read_arrays(file, {"names": "U8"}, "a plan of protection")["names"].tobytes()
    names = parse_json(raw.decode(errors="replace"), str(file.path))
    if not (
        isinstance(names, list) and [type(part) for part in names] == [list, list] and len({*map(len, names)}) == 1
    ):
        raise InputError(f"{file.path} does not name its secrets; make the plan again")
    return names


def _faults(facts: Any, arrays: Arrays) -> Iterator[str]:
    """Yields one sentence per contradiction within the plan's probabilities, budgets and bounds."""
    if not isinstance(facts, dict) or not all(
        isinstance(facts.get(name), (int, float)) and facts[name] > 0
        for name in ("steps", "batch_size", "noise_multiplier")
    ):
        raise InputError("the plan of protection does not say its steps, batch_size and noise_multiplier")
    _check_shapes(arrays)
    weights, chances = arrays["weights"], arrays["probabilities"]
    by_curve = facts.get("calibration") == "curve"
    if not np.allclose(chances * weights.sum(), facts["batch_size"] * weights, rtol=_ROUNDING, atol=1e-15):
        yield "its probabilities are not batch_size times the weights' shares"
    for j, (prior, allowed, budget, nats) in enumerate(
        zip(arrays["priors"], arrays["posteriors"], arrays["budgets"], arrays["information"], strict=True)
    ):
        wanted = secret.relative_entropy(float(allowed), float(prior))
        if not math.isclose(budget, wanted, rel_tol=_ROUNDING):
            yield f"secret {j}: its budget is {budget:.9g} nats, but its prior and posterior allow {wanted:.9g}"
        if not nats <= (math.inf if by_curve else budget * (1 + _ROUNDING)):
            yield f"secret {j}: it may lose {nats:.9g} nats, more than its budget of {budget:.9g}"
            continue
        least = secret.posterior(float(nats), float(prior))
        if not arrays["posterior_bounds"][j] >= least * (1 - _ROUNDING):
            bound = arrays["posterior_bounds"][j]
            yield f"secret {j}: its posterior is said to be {bound:.9g} at most, but {least:.9g} follows from its nats"
        sharper = float(np.fmin(arrays["posterior_bounds"][j], arrays["curve_bounds"][j]))
        if by_curve and not sharper <= allowed * (1 + _ROUNDING):
            yield f"secret {j}: its posterior may be {sharper:.9g}, more than the {allowed:.9g} that it is allowed"


def _check_shapes(arrays: Arrays) -> None:
    """Raises InputError unless every secret has its numbers and records, and probabilities lie in [0, 1]."""
    starts, records, chances = arrays["starts"], arrays["records"], arrays["probabilities"]
    by_secret = ("priors", "posteriors", "budgets", "information", "posterior_bounds", "curve_bounds")
    if not (
        len(arrays["weights"]) == len(chances)
        and all(len(arrays[name]) == len(starts) - 1 for name in by_secret)
        and starts[0] == 0
        and starts[-1] == len(records)
        and (np.diff(starts) >= 0).all()
        and ((records >= 0) & (records < len(chances))).all()
        and ((chances >= 0) & (chances <= 1)).all()
        and ((arrays["priors"] > 0) & (arrays["priors"] <= arrays["posteriors"]) & (arrays["posteriors"] <= 1)).all()
    ):
        raise InputError("the plan of protection contradicts itself: lengths, positions or probabilities do not fit")


def _information(facts: dict[str, Any], arrays: Arrays, name: str) -> Verdict:
    """Recomputes the nats of each secret, starting with those closest to their budgets."""
    starts, records, doubtful = arrays["starts"], arrays["records"], ""
    order = np.argsort(-arrays["information"] / np.maximum(arrays["budgets"], 1e-300))[:MOST]
    for j in order:
        chances = arrays["probabilities"][records[starts[j] : starts[j + 1]]]
        enclosure = INFORMATION[facts["form"]](chances.tolist(), float(facts["noise_multiplier"]), int(facts["steps"]))
        stated = float(arrays["information"][j])
        if stated < enclosure.lower * (1 - _ROUNDING):
            reason = f"secret {j}: {enclosure.lower:.9g} nats are given away, and the plan says {stated:.9g}"
            return Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)
        if stated < enclosure.upper * (1 - _ROUNDING):
            doubtful = f"secret {j}: its nats lie {enclosure}, and {stated:.9g} is not proved"
    if doubtful:
        return Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason=doubtful)
    limit = "as the plan says" if facts.get("calibration") == "curve" else "within their budgets"
    checked = f"{len(order)} of {len(arrays['information'])} secrets"
    outcome = Outcome.PROVED if len(order) == len(arrays["information"]) else Outcome.CONSISTENT
    return Verdict(subject=name, outcome=outcome, reason=f"the nats of {checked} are {limit}, computed again")
