"""The stream of updates beside a training by published numbers: what its header says against what the report says.

The header decides what the stream replays to: the public seed, the groups, and how many directions each has. The
report's figures of what was published follow from the same settings, so both must state them alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile
from verify.compare import compare

_ROLE, _KEY = "updates", "privctl.updates"
#: Parameter of the report -> where the header has it, and what both mean where they leave it out.
_HEADER: dict[str, tuple[str, Any]] = {
    "public_seed": ("seed", None), "groups": ("groups", None), "fire_probability": ("fire_probability", None),
    "lost_steps": ("lost", []),
}  # fmt: skip
_RULE: dict[str, tuple[str, Any]] = {
    "directions": ("directions", 1), "steps": ("steps", None), "learning_rate": ("learning_rate", None),
    "silent": ("silent", None), "update_scale": ("update_scale", None),
}  # fmt: skip


def check_updates(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refute each figure of the report at ``path`` that the stream which it names states otherwise, where it is there.

    A stream that cannot be read is refuted as well. Whether it is the one recorded is the chain's business.
    """
    if report.step not in ("retrain", "replay"):
        return
    for artifact in (*report.outputs, *report.inputs):
        place = Path(os.path.normpath(path.parent.absolute() / artifact.path))
        if artifact.role != _ROLE or not os.path.isfile(place):
            continue
        try:
            with SafetensorsFile(place) as file:
                text = file.metadata.get(_KEY)
            header = None if text is None else parse_json(text, str(place))
        except InputError as fault:
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=str(fault))
            continue
        rule = header.get("rule") if isinstance(header, dict) else None
        if not isinstance(header, dict) or not isinstance(rule, dict):
            reason = "it holds no updates that are read here, so what was published is not known"
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=reason)
            continue
        for sentence in _differences(report, header, rule):
            yield Verdict(subject="parameters", outcome=Outcome.REFUTED, reason=sentence)


def _differences(report: PrivacyReport, header: Mapping[str, Any], rule: Mapping[str, Any]) -> Iterator[str]:
    stated, source = report.parameters, "the stream of updates has"
    for facts, names in ((header, _HEADER), (rule, _RULE)):
        for parameter, (name, usual) in names.items():
            if parameter in stated or parameter == "directions":
                yield from compare(parameter, stated.get(parameter, usual), facts.get(name, usual), source)
    if not header.get("lost"):  # of a step that was begun and never made, nothing is in the stream
        yield from compare("fired", stated.get("fired"), header.get("published"), source)
