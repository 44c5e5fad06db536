"""Compares the records that a membership audit says it left out or truncated with the file of ranks it kept.

A gate counts such members as distinguished, so the report must state all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from verify.audits.recounted import kept_file

#: The reasons for leaving out a record, by their numbers in the file.
REASONS = {
    1: "of too few tokens for one to be predicted",
    2: "repeating an earlier record of their file",
    3: "occurring among members and non-members alike",
    4: "given NaN or infinite scores by the model",
    5: "put aside for attacks that put such records in front of others",
    6: "with a text that several groups of the split have",
    7: "repeated, while others occur in both files",
}
_SIDES = {True: ("members", "member"), False: ("nonmembers", "nonmember")}
_LAYOUT = {"member": "BOOL", "truncated": "BOOL", "skipped_member": "BOOL", "skipped_reason": "U8"}
_SUBJECT = "an audit's scores; give a *.scores.safetensors file"


def faults(path: Path, report: PrivacyReport, files: NamedFiles) -> Iterator[str]:
    """Yields one sentence for each number of left out or truncated records that disagrees with the ranks."""
    if report.step != "audit" or all(artifact.role != "members" for artifact in report.inputs):
        return
    try:
        place = kept_file(path, report, files)
        if place is None:
            return
        with SafetensorsFile(place) as file:
            if not {tensor.name for tensor in file.tensors} >= _LAYOUT.keys():
                return
            arrays = read_arrays(file, _LAYOUT, _SUBJECT)
    except InputError:
        return  # unreadable ranks are reported by another check
    skipped = Counter(zip(arrays["skipped_member"].tolist(), arrays["skipped_reason"].tolist(), strict=True))
    stated = {(omission.what, omission.reason) for omission in report.omissions}
    left_out = {(counted(count, _SIDES[side][1]), REASONS.get(why, "")): side for (side, why), count in skipped.items()}
    for what, reason in sorted(left_out.keys() - stated):
        yield f"the ranks that it kept lack {what} ({reason}), and it does not say that it left them out"
    parameters = readable(AuditParameters, report)
    if parameters is None or (parameters.cut is None and (parameters.asked is None or not parameters.asked.max_length)):
        return  # older audits state the number of truncated records only in a warning
    for side, (name, noun) in _SIDES.items():
        count, reported = int(arrays["truncated"][arrays["member"] == side].sum()), (parameters.cut or {}).get(name, 0)
        if count != reported:
            yield f"by its ranks {counted(count, noun + ' was', noun + 's were')} cut, and it says {reported}"
