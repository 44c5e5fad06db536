"""A plan of protection as a safetensors file: how often each record is sampled, and the bounds for each secret.

It holds the digest of the data, the sampling probabilities, and the noise that suffices for them. Training reads all
three from it.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.checks import at_least, positive
from privctl.domain.errors import CommandError, InputError
from privctl.reports.codec import decode_value, encode_value
from privctl.reports.files import POINTER
from privctl.storage.arrays import read_arrays, staged_arrays
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.storage.atomic import PendingFile

VERSION = 1
_KEY = "privctl.secrets"
_WHAT = "a plan of protection; give the .safetensors file that privctl secrets plan wrote"
_LAYOUT = {
    "weights": "F64",
    "probabilities": "F64",
    "starts": "I64",
    "records": "I64",
    "priors": "F64",
    "posteriors": "F64",
    "budgets": "F64",
    "information": "F64",
    "posterior_bounds": "F64",
    "curve_bounds": "F64",
    "names": "U8",
}


class Form(StrEnum):
    """The comparison by which a bound on what a run reveals about a secret is stated.

    ``REFERENCE``: with the run in which the secret's records contribute nothing. ``PAIRWISE``: between two values of
    the secret with opposite contributions.
    """

    REFERENCE = "reference"
    PAIRWISE = "pairwise"


class ProtectionCalibration(StrEnum):
    """How the noise was calibrated.

    ``CURVE``: a secret's posterior is bounded by the whole trade-off curve, or by Fano's inequality if that is sharper.
    ``FANO``: only by Fano's inequality, so that every secret's information is within its budget.
    """

    CURVE = "curve"
    FANO = "fano"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What the plan is for: ``data`` is the digest of the data, ``examples`` the number of its records.

    ``texts`` is the digest of the texts that hold the secrets, by ``identified_texts``; None in plans of earlier
    versions. ``noise_multiplier`` is relative to a record's clip norm, ``batch_size`` is the expected one, and ``cap``
    None means weight 1 for all records. ``fano_noise_multiplier`` is what Fano's inequality alone would have required,
    None if ``calibration`` is Fano's.
    """

    version: int = VERSION
    data: str
    data_name: str
    examples: int
    secrets: str
    steps: int
    batch_size: float
    noise_multiplier: float
    form: Form
    cap: float | None
    calibration: ProtectionCalibration = ProtectionCalibration.FANO
    fano_noise_multiplier: float | None = None
    texts: str | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version is {self.version}; this privctl knows version {VERSION}")
        for name in ("examples", "steps"):
            at_least(name, getattr(self, name), 1)
        for name in ("batch_size", "noise_multiplier"):
            positive(name, getattr(self, name))
        if self.calibration is ProtectionCalibration.CURVE and self.form is not Form.REFERENCE:
            raise ValueError("calibration by the curve goes with the reference form only")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Protection:
    """A plan: ``weights`` and sampling ``probabilities`` [examples], and the bounds for each secret.

    Secret j is in ``records[starts[j]:starts[j + 1]]``. For each secret, float64: ``priors``, ``posteriors`` (the
    limits), ``budgets`` (in nats, that these allow), ``information`` (upper bound over all steps, in nats),
    ``posterior_bounds`` (by Fano's inequality) and ``curve_bounds`` (by the trade-off curve of the secret or of a law
    that dominates it; NaN if not computed). ``ids`` and ``kinds`` name the secrets.
    """

    facts: PlanFacts
    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    starts: NDArray[np.int64]
    records: NDArray[np.int64]
    priors: NDArray[np.float64]
    posteriors: NDArray[np.float64]
    budgets: NDArray[np.float64]
    information: NDArray[np.float64]
    posterior_bounds: NDArray[np.float64]
    curve_bounds: NDArray[np.float64]

    @property
    def largest_probability(self) -> float:
        """The largest sampling probability of any record."""
        return float(self.probabilities.max())

    @property
    def bounds(self) -> NDArray[np.float64]:
        """The sharper bound on each secret's posterior: by the curve, if computed, or by Fano's inequality."""
        sharper: NDArray[np.float64] = np.fmin(self.posterior_bounds, self.curve_bounds)
        return sharper

    def of_secret(self, position: int) -> NDArray[np.float64]:
        """The sampling probabilities of the records of one secret."""
        return self.probabilities[self.records[self.starts[position] : self.starts[position + 1]]]


def staged_protection(path: Path, plan: Protection, report: Path) -> AbstractContextManager[PendingFile]:
    """Write ``plan``, with a pointer to its ``report``, without committing it to ``path`` yet."""
    names = json.dumps([plan.ids, plan.kinds], ensure_ascii=False).encode()
    arrays: dict[str, NDArray[Any]] = {name: getattr(plan, name) for name in _LAYOUT if name != "names"}
    arrays["names"] = np.frombuffer(names, np.uint8)
    metadata = {POINTER: report.name, _KEY: json.dumps(encode_value(plan.facts), sort_keys=True)}
    return staged_arrays(path, arrays, metadata)


def require_no_other_tensors(path: Path) -> None:
    """Raise CommandError if a file at ``path`` holds tensors that are no plan, such as a model's weights."""
    if not path.is_file():
        return
    with suppress(InputError), SafetensorsFile(path) as file:
        if _KEY not in file.metadata:
            raise CommandError(f"{path} holds tensors that are no plan, which no plan replaces; name another file")


def read_protection(path: Path) -> Protection:
    """The plan at ``path``; raises InputError for any other file, and for an inconsistent plan."""
    if path.is_file() and path.suffix != ".safetensors":
        raise InputError(
            f"{path} is not a plan of protection; give the .safetensors file that privctl secrets plan wrote"
        )
    with SafetensorsFile(path) as file:
        if _KEY not in file.metadata:
            raise InputError(f"{path} does not hold {_WHAT}")
        arrays = read_arrays(file, _LAYOUT, _WHAT)
        facts = decode_value(PlanFacts, parse_json(file.metadata[_KEY], str(path)), str(path), "plan")
    ids, kinds = _names(arrays.pop("names"), path)
    plan = Protection(facts=facts, ids=ids, kinds=kinds, **arrays)
    if not _is_consistent(plan):
        raise InputError(f"{path} contradicts itself; plan again with privctl secrets plan")
    return plan


def _names(raw: NDArray[np.uint8], path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        text = raw.tobytes().decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} names its secrets in no UTF-8 text; plan again") from None
    names = parse_json(text, str(path))
    if not (
        isinstance(names, list)
        and len(names) == 2
        and all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in names)
    ):
        raise InputError(f"{path} does not hold {_WHAT}")
    return tuple(names[0]), tuple(names[1])


def _is_consistent(plan: Protection) -> bool:
    """Whether lengths agree, indices exist and numbers are in range."""
    secrets, examples = len(plan.ids), plan.facts.examples
    by_secret = (plan.kinds, plan.priors, plan.posteriors, plan.budgets, plan.information, plan.posterior_bounds)
    fits = (
        len(plan.weights) == len(plan.probabilities) == examples
        and len(plan.starts) == secrets + 1
        and all(len(part) == secrets for part in (*by_secret, plan.curve_bounds))
        and plan.starts[0] == 0
        and plan.starts[-1] == len(plan.records)
        and bool((np.diff(plan.starts) >= 0).all())
    )
    return (
        fits
        and _are_within(plan.weights, 0, 1)
        and _are_within(plan.probabilities, 0, 1)
        and _are_within(plan.records, 0, examples - 1)
        and bool(plan.probabilities.any())
        and bool(((plan.priors > 0) & (plan.priors < plan.posteriors) & (plan.posteriors < 1)).all())
        and _are_within(plan.posterior_bounds, 0, 1)
        and bool(((plan.budgets >= 0) & np.isfinite(plan.budgets)).all() and (plan.information >= 0).all())
        and not bool(((plan.curve_bounds < 0) | (plan.curve_bounds > 1)).any())
    )


def _are_within(values: NDArray[Any], low: float, high: float) -> bool:
    """Whether all of ``values`` are from ``low`` to ``high``; false for NaN."""
    return bool(((values >= low) & (values <= high)).all())
