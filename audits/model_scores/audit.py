"""An audit from scores alone: one score for each of many models, trained with or without a record.

The engine of ``privctl audit --from-scores``. It certifies a lower bound on epsilon, tests a claim, and reports the
statistical power of that many models.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.claims import DEFAULT_DELTA, VIOLATION, EpsilonClaim, subject_of
from audits.statistics.metrics import auc
from audits.statistics.power import POWER, two_arm_ceiling, two_arm_detectable, two_arm_detectable_gaussian
from audits.statistics.two_arm import (
    ApproximateDp,
    RankTest,
    TwoArmBound,
    claim_p_value,
    epsilon_bound,
    mu_bound,
    rank_tests,
)
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.shown import counted, downward
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import SafetensorsFile, read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHOD = "rank test"
INTERVAL = "exact rank test, Bonferroni over ranks"
#: Above this fraction of distinct values, scores are treated as continuous and ties as suspicious.
_CONTINUOUS = 0.5

ARMS = ("with", "without")
_FORMATS = (
    'a safetensors file with the 1-D float tensors "with" and "without", a JSON object {"with": [...], "without": '
    "[...]}, or a CSV file with the columns score,member"
)
_DECODED = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_MEMBER = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresAudit:
    """The parts of the report."""

    evidence: tuple[Evidence, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]


def audit_scores(
    path: Path, *, delta: float | None = None, claim: EpsilonClaim | None = None, alpha: float = 0.05
) -> ScoresAudit:
    """Read ``path``, bound epsilon at ``delta`` (the claim's, otherwise 1e-5) and mu, and test ``claim``.

    Raises InputError for a file without scores of at least two models per side, CommandError for a delta or a claim out
    of range.
    """
    if delta is None:
        delta = DEFAULT_DELTA if claim is None else claim.delta
    check_settings(delta, claim)
    with_scores, without_scores = read_scores(path)
    tests = rank_tests(with_scores, without_scores)
    models = (len(with_scores), len(without_scores))
    evidence = [_bound_evidence(tests, models, delta, alpha), _mu_evidence(tests, models, alpha)]
    verdicts = []
    if claim is not None:
        p_value = claim_p_value(tests, ApproximateDp(epsilon=claim.epsilon, delta=claim.delta))
        power = {
            "ceiling": two_arm_ceiling(*models, claim.delta, alpha),
            **_detectable(models, claim.delta, alpha, claim.epsilon),
            "power": POWER,
        }
        evidence.append(_claim_evidence(models, claim, p_value, alpha, power))
        verdicts.append(
            _claim_verdict(tests, claim, p_value, alpha, power, backwards=auc(with_scores, without_scores).upper < 0.5)
        )
    return ScoresAudit(
        evidence=tuple(evidence), verdicts=tuple(verdicts), warnings=tuple(warnings_of(with_scores, without_scores))
    )


def read_scores(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores of the models with the record, and of those without it; infinity is allowed.

    Raises InputError for a file that cannot be read, NaN, or fewer than 2 models per side.
    """
    readers = {".safetensors": _from_safetensors, ".json": _from_json, ".csv": _from_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is not a kind of file that scores are read from; give {_FORMATS}")
    with_scores, without_scores = (np.asarray(scores, np.float64) for scores in reader(path))
    for name, scores in zip(ARMS, (with_scores, without_scores), strict=True):
        if len(scores) < 2:
            raise InputError(
                f"{path} has {counted(len(scores), 'score')} {name} the record; at least 2 models a side are needed"
            )
        bad = np.flatnonzero(np.isnan(scores))
        if len(bad):
            raise InputError(f"{path} has NaN as score {bad[0] + 1} {name} the record; give each model a number")
    return with_scores, without_scores


def _from_safetensors(path: Path) -> tuple[NDArray[Any], ...]:
    scores = []
    with SafetensorsFile(path) as file:
        tensors = {tensor.name: tensor for tensor in file.tensors}
        for name in ARMS:
            tensor = tensors.get(name)
            if tensor is None:
                raise InputError(f"{path} has no tensor {name!r}; give {_FORMATS}")
            if len(tensor.shape) != 1 or tensor.dtype not in (*_DECODED, "BF16"):
                raise InputError(
                    f"{path}: the tensor {name!r} is {tensor.dtype} of shape {list(tensor.shape)}; expected one "
                    f"dimension of {', '.join(_DECODED)} or BF16"
                )
            raw = file.read(tensor)
            if tensor.dtype == "BF16":  # the upper half of a float32
                scores.append((np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4"))
            else:
                scores.append(np.frombuffer(raw, _DECODED[tensor.dtype]))
    return tuple(scores)


def _from_json(path: Path) -> tuple[list[float], ...]:
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in ARMS):
        raise InputError(f'{path} is not a JSON object with the lists "with" and "without"; give {_FORMATS}')
    for name in ARMS:
        for index, value in enumerate(data[name], start=1):
            if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e308:
                raise InputError(f"{path} has {shown(value)} as score {index} {name} the record; expected a number")
    return tuple(data[name] for name in ARMS)


def _from_csv(path: Path) -> tuple[list[float], ...]:
    lines = csv.reader(read_text(path).removeprefix("\ufeff").splitlines())
    try:
        rows = [(lines.line_num, row) for row in lines]
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error} at line {lines.line_num}") from None
    header = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if header.count("score") != 1 or header.count("member") != 1:
        raise InputError(f"{path} does not begin with a line that names the columns score and member; give {_FORMATS}")
    if "id" in header:
        raise InputError(
            f"{path} has a column id, so its rows are records, where one score a model is wanted; remove the column, "
            f"or judge records with privctl audit scores {path}"
        )
    columns = header.index("score"), header.index("member")
    arms: dict[bool, list[float]] = {True: [], False: []}
    for number, row in rows[1:]:
        if row:
            score, member = _cells(row, columns, f"{path} line {number}")
            arms[member].append(score)
    return arms[True], arms[False]


def _cells(row: list[str], columns: tuple[int, int], where: str) -> tuple[float, bool]:
    if len(row) <= max(columns):
        raise InputError(f"{where} has {len(row)} columns, fewer than its header")
    score, member = (row[column].strip() for column in columns)
    if member.lower() not in _MEMBER:
        raise InputError(f"{where} has {shown(member)} as member; expected 1 or 0, true or false")
    try:
        return float(score), _MEMBER[member.lower()]
    except ValueError:
        raise InputError(f"{where} has {shown(score)} as score; expected a number") from None


def check_settings(delta: float, claim: EpsilonClaim | None) -> None:
    """Raise CommandError for a ``delta`` or a ``claim`` out of range."""
    if not 0 <= delta < 1:
        raise CommandError(f"delta is {delta:g}; expected at least 0 and below 1")
    if claim is not None and not 0 <= claim.delta < 1:
        raise CommandError(f"the claimed delta is {claim.delta:g}; expected at least 0 and below 1")
    if claim is not None and not 0 <= claim.epsilon < math.inf:
        raise CommandError(f"the claimed epsilon is {claim.epsilon:g}; expected a number of at least 0")


def _detectable(models: tuple[int, int], delta: float, alpha: float, claim: float = 0.0) -> dict[str, float]:
    size = (*models, delta, alpha, claim)
    return {"detectable": two_arm_detectable(*size), "detectable_gaussian": two_arm_detectable_gaussian(*size)}


def _bound_evidence(tests: Sequence[RankTest], models: tuple[int, int], delta: float, alpha: float) -> Evidence:
    best = epsilon_bound(tests, delta, alpha)
    details = {
        "delta": delta,
        "ceiling": two_arm_ceiling(*models, delta, alpha),
        **_detectable(models, delta, alpha),
        "power": POWER,
        **_counts(best, len(tests)),
    }
    return Evidence(
        method=METHOD,
        quantity=f"epsilon lower bound at delta {delta:g}",
        estimate=best.value,
        lower=best.value,
        confidence=1 - alpha,
        bound=Bound.LOWER,
        interval=INTERVAL,
        samples=dict(zip(ARMS, models, strict=True)),
        details=_finite(details),
    )


def _mu_evidence(tests: Sequence[RankTest], models: tuple[int, int], alpha: float) -> Evidence:
    """From the same tests as epsilon's bound, without further correction: see ``audits.statistics.two_arm``."""
    best = mu_bound(tests, alpha)
    return Evidence(
        method=METHOD,
        quantity="lower bound on mu of Gaussian differential privacy",
        estimate=best.value,
        lower=best.value,
        confidence=1 - alpha,
        bound=Bound.LOWER,
        interval=INTERVAL,
        samples=dict(zip(ARMS, models, strict=True)),
        details=_finite(_counts(best, len(tests))),
    )


def _counts(bound: TwoArmBound, tried: int) -> dict[str, float]:
    test = bound.test
    return {
        "threshold": test.threshold,
        "rank": test.rank,
        "ranked": test.ranked,
        "beyond": test.beyond,
        "counted": test.counted,
        "threshold_from_without": float(test.from_without),
        "share": test.share,
        "tests": tried,
    }


def _claim_evidence(
    models: tuple[int, int], claim: EpsilonClaim, p_value: float, alpha: float, power: dict[str, float]
) -> Evidence:
    return Evidence(
        method=METHOD,
        quantity=f"p-value of the claim of epsilon {claim.epsilon:g} at delta {claim.delta:g}",
        estimate=p_value,
        confidence=1 - alpha,
        bound=Bound.NONE,
        samples=dict(zip(ARMS, models, strict=True)),
        details=_finite({"epsilon": claim.epsilon, "delta": claim.delta, **power}),
    )


def _claim_verdict(
    tests: Sequence[RankTest],
    claim: EpsilonClaim,
    p_value: float,
    alpha: float,
    power: dict[str, float],
    *,
    backwards: bool,
) -> Verdict:
    """Refuted; or consistent, if a violation by either kind of mechanism would have been detected; or inconclusive."""
    outcome, limit = Outcome.INCONCLUSIVE, VIOLATION * claim.epsilon
    response, gaussian = power["detectable"], power["detectable_gaussian"]
    models = {"randomized response": response} | ({} if math.isnan(gaussian) else {"a Gaussian mechanism": gaussian})
    noticed = " and ".join(
        f"{name} {'at no epsilon' if math.isinf(least) else f'from epsilon {least:.3g} on'}"
        for name, least in models.items()
    )
    if p_value <= alpha:
        outcome = Outcome.REFUTED
        certified = epsilon_bound(tests, claim.delta, alpha).value
        reason = (
            f"the models show an epsilon of at least {downward(certified, 3)} at this delta with "
            f"{100 * (1 - alpha):g} % confidence; if the claim held, such scores would have a chance of at most "
            f"{p_value:.2g}"
        )
    elif backwards:
        reason = (
            "the models differ, but those without the record score higher; check that the two sides were not swapped, "
            "and give scores that rise with use of the record"
        )
    elif power["ceiling"] < claim.epsilon:
        reason = (
            f"so few models cannot certify more than epsilon {power['ceiling']:.3g}, whatever they leak: the claim "
            "could not have been refuted; train more models"
        )
    elif max(models.values()) > limit:
        reason = (
            f"not refuted (p {p_value:.2g}), but with the best score and no ties so many models notice, "
            f"{100 * POWER:g} times in 100, {noticed}; a violation by a factor of {VIOLATION:g} is epsilon "
            f"{limit:.3g}; train more models"
        )
    else:
        outcome = Outcome.CONSISTENT
        reason = (
            f"not refuted (p {p_value:.2g}), and with the best score and no ties so many models notice, "
            f"{100 * POWER:g} times in 100, {noticed}, within {VIOLATION:g} times the claim; a weaker score, or one "
            "with few values, may have missed more"
        )
    return Verdict(subject=subject_of(claim), outcome=outcome, reason=reason)


def warnings_of(with_scores: NDArray[np.float64], without_scores: NDArray[np.float64]) -> list[str]:
    """The premises of conclusions from the scores of models."""
    warnings = [
        "the models are taken to be independent and alike but for the record, as the caller asserts: scores of many "
        "records by one model, or models that share a random seed, make the bound invalid",
        "the bound is about this record and this score; another record or a stronger score may show a larger epsilon",
        "what the bound certifies is the training procedure, not one model made by it",
    ]
    repeated = [1 - len(np.unique(scores)) / len(scores) for scores in (with_scores, without_scores)]
    # With few distinct values, ties come from a discrete score, not from models that were counted twice.
    distinct = len(np.unique(np.concatenate([with_scores, without_scores])))
    if max(repeated) > 0 and distinct > _CONTINUOUS * (len(with_scores) + len(without_scores)):
        warnings.append("some scores of one side are equal; a model that is counted twice makes the bound invalid")
    if auc(with_scores, without_scores).upper < 0.5:
        warnings.append(
            "models without the record score higher than those with it; check that the two sides were not swapped and "
            "that a higher score means that the record was used"
        )
    return warnings


def _finite(details: dict[str, float]) -> dict[str, float]:
    """Drop values that are not finite, which a report cannot hold."""
    return {name: value for name, value in details.items() if math.isfinite(value)}
