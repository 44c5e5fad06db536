"""The rows of ``verify/texts`` that genuine reports carry: each is missed where it is left out, or listed here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome

Row = tuple[str, str]

#: Methods of ``tests/train/methods/test_plugin.py``, for which nothing says what their reports must warn of.
_OF_TESTS = {"loud", "hushed"}
#: Step and row -> why no other entry of a report calls for it.
NOT_CALLED_FOR: dict[Row, str] = {
    **{
        ("audit", name): "how many records it is about, which only the data say"
        for name in (
            "left out", "cut", "one prefix", "fresh secrets left out", "undecided completions", "extraction: undecided",
            "extraction: cued", "extraction: short", "extraction: short records", "extraction: cut prompts",
            "extraction: in the prompts", "extraction: groups", "extraction: chosen prompts", "secrets: some",
            "secrets: elsewhere", "secrets: never drawn",
        )
    },
    **{
        ("audit", name): "what the model, or a report at hand then, said when it was audited"
        for name in (
            "unusable report", "missing report", "report of other weights", "other bits", "secrets: planned",
            "secrets: planted", "secrets: broken",
        )
    },
    **{
        ("audit", name): "what the reference is; the tests against it are held to its files"
        for name in (
            "extraction: known elsewhere", "extraction: reference", "extraction: began with",
            "extraction: not known to begin with",
        )
    },
    **{
        ("audit", name): "what the file of scores holds, which is none of the report's"
        for name in ("equal scores", "sides swapped", "names spelled alike")
    },
    ("account", "unit of reports"): "what the reports say that it was made from",
    **{
        ("account", name): "a comparison or a default of the plan; what is guaranteed states its own numbers"
        for name in ("adjacency", "one band", "bands", "error by bands", "buffers", "search")
    },
    **{
        ("retrain", name): "which reports were at hand then, beside the initial weights"
        for name in ("report of other initial weights", "initial weights audited as trained")
    },
    ("retrain", "held-out records trained on"): "what the files hold, which only the data say",
    ("retrain", "held-out records of users trained on"): "whom the files name, which only the data say",
    ("retrain", "classes of an adapter"): "the names are in the model's configuration",
    ("noise", "coarse tensors"): "how the numbers of the weights are spaced, which the weights say",
    ("secrets-scan", "texts in no record"): "how many of the texts given were found, which only the data say",
    ("shadow", "left out"): "how many records repeat, which only the data say",
}  # fmt: skip


def rows_of(report: PrivacyReport) -> Iterator[tuple[Row, str]]:
    """The rows that ``report`` carries, each with its text."""
    from verify.stated import method_of
    from verify.texts.warnings.table import TEXTS

    method = method_of(report)
    known = {**TEXTS.get(report.step, {}), **({} if method is None else dict(method.warnings))}
    for text in report.warnings:
        for name, form in known.items():
            if re.fullmatch(form, text, re.DOTALL):
                yield (report.step, name), text


def faults(path: Path, report: PrivacyReport, seen: set[Row]) -> Iterator[str]:
    """The rows, not ``seen`` before, that ``report`` can lose without a word from verify, and need not."""
    from privctl.domain.errors import PrivctlError
    from privctl.reports.chain import path_of
    from privctl.reports.files import read_report
    from verify.warned.check import check_warnings

    if report.parameters.get("method") in _OF_TESTS:
        return
    rows = [(row, text) for row, text in rows_of(report) if row not in seen]
    parents = []
    for named in report.parents if rows else ():
        try:
            parents.append(read_report(path_of(path, named)))
        except PrivctlError:
            continue
    for row, text in rows:
        seen.add(row)
        without = replace(report, warnings=tuple(warning for warning in report.warnings if warning != text))
        missed = any(found.outcome is Outcome.REFUTED for found in check_warnings(path, without, parents))
        if not missed and row not in NOT_CALLED_FOR:
            yield f"verify passes {path.name} without its warning {row}: {text}"
