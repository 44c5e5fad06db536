"""Whether the counts of an extraction audit agree: those of all texts, and those of the texts it compares.

A comparison leaves out texts that occur in both files, repeated texts if there are such, texts whose suffix may be
copied from the prefix, and texts that a reference model produces too. So the number extracted among the compared texts
follows from the total, and an edit of the comparison alone is detected. Standard library only, like
``verify.audits.consistency``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.extraction.exact_tests import GRID
from verify.audits.terms import BEYOND, sides_by_coins

_METHOD = "extraction"
_SIDES = {"training": "training", "held-out": "held_out"}


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each count of a comparison that contradicts other counts of the same audit."""
    by_quantity = {item.quantity: item for item in report.evidence if item.method == _METHOD}
    compared = [by_quantity.get(name) for name in BEYOND]
    rates = {name: by_quantity.get(f"rate on {side} text") for side, name in _SIDES.items()}
    exact, near = compared
    if exact is None or None in rates.values():
        return  # reported by another check
    for item in (entry for entry in compared if entry is not None):
        for fault in _text_faults(item, rates, parameters):
            yield f"{_METHOD}, {item.quantity}: {fault}"
    for side, name in _SIDES.items():
        rate = rates[name]
        if rate is not None and (fault := _extracted_fault(exact, rate, name, parameters)):
            yield f"{_METHOD}, {exact.quantity}: {fault}"
        for compares, whole in ((exact, rate), (near, _farthest(by_quantity, side))):
            if compares is not None and whole is not None and (fault := _side_fault(compares, whole, name, parameters)):
                yield f"{_METHOD}, {compares.quantity}: {fault}"
        open_ones = 0 if rate is None else rate.details.get("undecided", 0)
        if near is not None and near.details[f"{name}_extracted"] < exact.details[f"{name}_extracted"] - open_ones:
            yield f"{_METHOD}: more of its {name} texts come out word for word than nearly so"
        counts = {_texts(exact, name), *([] if near is None else [_texts(near, name)])}
        if len(counts | ({by_quantity[GRID].samples.get(name, 0)} if GRID in by_quantity else set())) > 1:
            yield f"{_METHOD}: its comparisons are not of the same {name} texts"


def _farthest(by_quantity: Mapping[str, Evidence], side: str) -> Evidence | None:
    """The near-verbatim rate on one side at the largest edit distance, which comparisons use."""
    begins = f"near-verbatim rate on {side} text, edit distance to "
    return max((by_quantity[name] for name in by_quantity if name.startswith(begins)), key=_distance, default=None)


def _distance(item: Evidence) -> float:
    return item.details.get("distance", 0.0)


def _side_fault(item: Evidence, whole: Evidence, name: str, parameters: AuditParameters) -> str:
    """What is wrong with one side of a comparison, which must be all its texts minus those said to be left out.

    If coins were drawn for groups, groups are counted, and a group is extracted if any of its texts is. Older reports
    do not say how many texts are left out on each side, which in some cases follows from their other counts.
    """
    if not {f"{name}_left_out", f"{name}_left_out_extracted"} <= item.details.keys():
        weak = _has_shared_texts(parameters) or _counts_groups(parameters)
        return f"it does not say how many of its {name} texts are left out, and of these come out" if weak else ""
    left_out, left_out_extracted = (item.details[f"{name}_left_out{more}"] for more in ("", "_extracted"))
    texts, expected = whole.details["texts"] - left_out, whole.details["extracted"] - left_out_extracted
    stated, extracted = _texts(item, name), item.details[f"{name}_extracted"]
    reasoned = (name, item.quantity) == ("training", BEYOND[0]) and "known_training" not in item.details
    if reasoned and left_out > _left_out(item):
        return f"it leaves out {left_out:g} training texts, and gives reasons for {_left_out(item):g}"
    if not (0 <= left_out_extracted <= left_out <= whole.details["texts"] and 0 <= expected <= texts):
        return f"what it leaves out of its {name} texts does not fit what comes out in all"
    if _counts_groups(parameters):
        fits = stated <= texts and extracted <= expected
        fits = fits and bool(stated) is bool(texts) and bool(extracted) is bool(expected)
    else:
        fits = (stated, extracted) == (texts, expected)
    if not fits:
        return (
            f"it counts {extracted:g} of {stated:g} {name} texts that come out, and without those left out it is "
            f"{expected:g} of {texts:g}"
        )
    return ""


def _texts(item: Evidence, name: str) -> float:
    """The number of texts of a side that are compared."""
    return item.details.get(f"{name}_texts", 0.0)


def _left_out(item: Evidence) -> float:
    names = ("in_both", "cued", "repeated", "known_training", "known_held_out")
    return sum(item.details.get(name, 0) for name in names)


def _text_faults(item: Evidence, rates: dict[str, Evidence | None], parameters: AuditParameters) -> Iterator[str]:
    """Yields a sentence if the texts not compared are not as many as those said to be left out."""
    texts = sum(rate.details["texts"] for rate in rates.values() if rate is not None)
    compared = sum(_texts(item, name) for name in rates)
    if not _counts_groups(parameters) and not _has_shared_texts(parameters) and texts - compared != _left_out(item):
        yield f"{texts - compared:g} texts are not compared, and it says that {_left_out(item):g} are left out"


def _extracted_fault(item: Evidence, rate: Evidence, name: str, parameters: AuditParameters) -> str:
    """What is wrong with the number extracted among compared texts, given the total and the texts left out."""
    stated, total = item.details[f"{name}_extracted"], rate.details["extracted"]
    kept = total - rate.details.get("extracted_cued", 0) - item.details.get(f"known_{name}_extracted", 0)
    if stated > total:
        return f"it counts {stated:g} of its {name} texts that come out, and {total:g} do in all"
    if not _counts_groups(parameters) and not _has_shared_texts(parameters):
        return (
            ""
            if stated == kept
            else f"it counts {stated:g} of its {name} texts that come out, and {kept:g} are compared"
        )
    if name != "training":
        return ""  # the number left out on the other side is not stated
    least = kept - item.details.get("in_both", 0) - item.details.get("repeated_extracted", 0)
    least = min(1.0, least) if _counts_groups(parameters) else least
    return (
        "" if stated >= least else f"it counts {stated:g} training texts that come out, and compares {least:g} or more"
    )


def _counts_groups(parameters: AuditParameters) -> bool:
    """Whether comparisons count groups of which any text is extracted."""
    return parameters.group_by is not None and sides_by_coins(parameters.extraction)


def _has_shared_texts(parameters: AuditParameters) -> bool:
    """Whether some text occurs in both files, so that repeated texts of either are left out too."""
    return bool((parameters.extraction or {}).get("windows_in_both_files", 1))
