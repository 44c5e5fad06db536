"""Compares audits of the scores of many models with the file of scores, which the report names by digest.

Recomputes the counts beyond thresholds, the bounds, the p-value of a claim and the verdict on it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile, read_text
from verify.audits.ranks import bound as rank_bound
from verify.audits.ranks import threshold as threshold_bound
from verify.audits.ranks.figures import auc_with_interval
from verify.audits.ranks.many_models import (
    ALPHA,
    CERTAIN,
    SizedTest,
    claim_p_value,
    is_largest_rejected,
    outcome,
    same_p_value,
    says_swapped,
    tests_of,
)
from verify.audits.split.groups import is_about_claim
from verify.files.places import as_recorded
from verify.laws.counts import fisher
from verify.texts.warnings.of_scores import EQUAL_SCORES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]

_METHODS = (rank_bound.METHOD, threshold_bound.METHOD)
_SIDES = ("with", "without")
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
#: If more than this fraction of the scores is distinct, ties are suspicious.
_CONTINUOUS = 0.5
_SLOP = 1e-9


def is_of_models(report: PrivacyReport) -> bool:
    """Whether the report is an audit of the scores of many models."""
    return report.step == "audit" and any(item.method in _METHODS for item in report.evidence)


def differences_from_scores(path: Path, report: PrivacyReport) -> tuple[list[str] | None, str]:
    """One sentence for each entry of the report at ``path`` that disagrees with its file of scores.

    If the file cannot be used, returns None and the reason.
    """
    stated = readable(AuditParameters, report)
    if stated is None or stated.asked is None:
        return None, "the report does not say which scores it judges"
    places = [as_recorded(path, item) for item in report.inputs if item.role == "scores"]
    if len(places) != 1 or places[0] is None:
        return None, "the file of scores is not at hand as it was"
    try:
        inner, outer = (np.asarray(side, np.float64) for side in _read_scores(places[0]))
        if min(len(inner), len(outer)) < 2 or np.isnan(inner).any() or np.isnan(outer).any():
            raise ValueError("two scores a side are needed, and each is a number")
    except (InputError, ValueError, TypeError, KeyError, IndexError, StopIteration, csv.Error) as fault:
        return [f"the file of scores is not what the report says of it ({fault})"], ""
    return list(_differences(report, stated.asked, inner, outer)), ""


def _read_scores(file: Path) -> tuple[Any, Any]:
    """The scores of models with the record and of those without it. Exceptions of reading are passed on."""
    if file.suffix.lower() == ".safetensors":
        return _read_tensors(file)
    text = read_text(file)
    if file.suffix.lower() == ".json":
        content = parse_json(text, str(file))
        return content["with"], content["without"]
    lines = csv.reader(text.removeprefix("\ufeff").splitlines())
    header = [cell.strip().lower() for cell in next(lines)]
    score, member = header.index("score"), header.index("member")
    sides: dict[bool, list[float]] = {True: [], False: []}
    inside = {"1": True, "true": True, "0": False, "false": False}
    for row in filter(None, lines):
        sides[inside[row[member].strip().lower()]].append(float(row[score]))
    return sides[True], sides[False]


def _read_tensors(file: Path) -> tuple[Any, Any]:
    digests = {}
    with SafetensorsFile(file) as opened:
        for tensor in opened.tensors:
            if tensor.name not in _SIDES:
                continue
            raw = opened.read(tensor)
            if tensor.dtype == "BF16":  # a float32 without its lower half
                digests[tensor.name] = np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype="<u4").view("<f4")
            else:
                digests[tensor.name] = np.frombuffer(raw, _KINDS[tensor.dtype])
    return digests["with"], digests["without"]


def _differences(report: PrivacyReport, asked: AskedAudit, inner: Scores, outer: Scores) -> Iterator[str]:
    sizes = {"with": len(inner), "without": len(outer)}
    tests = [(test, *_threshold_and_count(test, inner, outer)) for test in tests_of(len(inner), len(outer))]
    counted = [(test, beyond) for test, _, beyond in tests]
    swapped = auc_with_interval(inner, outer, ALPHA, "").upper
    is_swapped = swapped is not None and swapped < 0.5
    for item in report.evidence:
        if dict(item.samples) != sizes:
            wrong = [f"it is of {dict(item.samples)}, and the file has {sizes}"]
        elif item.method == threshold_bound.METHOD:
            wrong = list(_threshold_faults(item, inner, outer))
        elif item.lower is None:
            p_value = claim_p_value(counted, item.details["epsilon"], item.details["delta"])
            wrong = list(_claim_faults(report, item, p_value, is_swapped=is_swapped))
        else:
            wrong = list(_rank_faults(item, tests))
        yield from (f"{item.method}: {item.quantity}: {fault}" for fault in wrong)
    if is_swapped is not says_swapped(report):
        yield f"it {'does not warn' if is_swapped else 'warns'} that models without the record score higher"
    if _are_suspicious(inner, outer) and not any(re.fullmatch(EQUAL_SCORES, text) for text in report.warnings):
        yield "it does not warn that some scores of one side are equal"


def _threshold_faults(item: Evidence, inner: Scores, outer: Scores) -> Iterator[str]:
    threshold = item.details["threshold"]
    for name, side in (("true_positives", inner), ("false_positives", outer)):
        if (count := int((side > threshold).sum())) != item.details[name]:
            yield f"its {name.replace('_', ' ')} are {item.details[name]:g}, but the scores in the file give {count}"


def _rank_faults(item: Evidence, tests: Sequence[tuple[SizedTest, float, int]]) -> Iterator[str]:
    """Yields a sentence if the named test has other counts, or if the bound is not the largest rejected value."""
    details = item.details
    named = next(
        (test for test in tests if (test[0].rank, test[0].from_without) == (
            details.get("rank"), bool(details.get("threshold_from_without"))
        )),
        None,
    )  # fmt: skip
    if named is None:
        return  # reported by another check
    _, threshold, beyond = named
    if details.get("threshold") != (threshold if math.isfinite(threshold) else None):
        yield f"its threshold is {details.get('threshold', 'missing')}, but the scores in the file give {threshold:.9g}"
    if details["beyond"] != beyond:
        yield f"{details['beyond']:g} models lie beyond its threshold, but the scores in the file give {beyond}"
    curve = rank_bound.curve_of(item)
    lower = item.lower
    if curve is None or lower is None:
        return
    if not is_largest_rejected(lower, [(test, counted_pairs) for test, _, counted_pairs in tests], curve(lower)):
        yield f"its bound is {lower:.6g}, which is not the largest that the scores in the file reject"


def _claim_faults(report: PrivacyReport, item: Evidence, p: float, *, is_swapped: bool) -> Iterator[str]:
    if item.estimate is None or not same_p_value(item.estimate, p):
        yield f"its p-value is {item.estimate}, but the scores in the file give {p:.6g}"
    if math.isclose(p, ALPHA, rel_tol=rank_bound.ROUNDING):
        return
    epsilon, delta = item.details["epsilon"], item.details["delta"]
    expected = outcome(item, p, epsilon, swapped=is_swapped)
    for verdict in report.verdicts:
        if is_about_claim(verdict.subject, epsilon, delta) and verdict.outcome is not expected:
            yield f"its verdict is {verdict.outcome}, but the scores in the file make it {expected}"


def _threshold_and_count(test: SizedTest, inner: Scores, outer: Scores) -> tuple[float, int]:
    """The threshold of the test, and how many of the other side lie beyond it under almost every order of ties."""
    sign = 1.0 if test.from_without else -1.0
    ranked, counted = (sign * outer, sign * inner) if test.from_without else (sign * inner, sign * outer)
    threshold = float(np.sort(ranked)[::-1][test.rank])
    above, equal = int((counted > threshold).sum()), int((counted == threshold).sum())
    higher, same = int((ranked > threshold).sum()), int((ranked == threshold).sum())
    return sign * threshold + 0.0, above + _surely_ahead(equal, same, test.rank - higher)


def _surely_ahead(equal: int, same: int, before: int) -> int:
    """The number of ``equal`` tied models that almost surely precede the threshold's model among ``same`` others.

    That model is the one of the others with ``before`` others ahead of it. In a random order, at least m of the tied
    models precede it if at most ``before`` of the first ``before`` + m models are others.
    """
    low, high = 0, equal
    while low < high:
        middle = (low + high + 1) // 2
        # The first ``before`` + ``middle`` models contain at least ``middle`` of the tied ones.
        enough = fisher(middle, equal, before, same) >= CERTAIN * (1 - _SLOP)
        low, high = (middle, high) if enough else (low, middle - 1)
    return low


def _are_suspicious(inner: Scores, outer: Scores) -> bool:
    """Whether models of one side have equal scores although most scores are distinct."""
    repeated = any(len(np.unique(side)) < len(side) for side in (inner, outer))
    return repeated and len(np.unique(np.concatenate([inner, outer]))) > _CONTINUOUS * (len(inner) + len(outer))
