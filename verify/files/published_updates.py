"""Compares the header of an update stream with the report of the training by published numbers that wrote it.

The header decides what the stream replays to: the public seed, the groups, and the directions of each. The report's
figures on what was published follow from the same settings, so the two must agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import parameters_as
from privctl.storage.json_text import parse_json
from privctl.storage.reader import SafetensorsFile
from verify.compare import compare
from verify.files.places import located

_ROLE, _KEY = "updates", "privctl.updates"
#: The entries that are compared: by their names in the header, and in its update rule.
_HEADER = {"public_seed": "seed", "groups": "groups", "fire_probability": "fire_probability", "lost_steps": "lost"}
_RULE = ("directions", "steps", "learning_rate", "silent", "update_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedUpdates:
    """The parameters on updates of a training by published numbers, or of a replay of one."""

    fired: int
    public_seed: str
    directions: int = 1
    groups: str | None = None
    fire_probability: float | None = None
    lost_steps: tuple[tuple[int, ...], ...] | None = None
    steps: int | None = None
    learning_rate: float | None = None
    silent: str | None = None
    update_scale: str | None = None


def check_updates(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes each figure of the report at ``path`` that disagrees with its update stream, if that is present.

    An unreadable stream is refuted as well. Whether it is the recorded one is checked with the chain.
    """
    if report.step not in ("retrain", "replay"):
        return
    for artifact in (*report.outputs, *report.inputs):
        place = located(path, artifact.path)
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
        for sentence in _differences(parameters_as(StatedUpdates, report), header, rule):
            yield Verdict(subject="parameters", outcome=Outcome.REFUTED, reason=sentence)


def _differences(stated: StatedUpdates, header: Mapping[str, Any], rule: Mapping[str, Any]) -> Iterator[str]:
    source = "the stream of updates has"
    expected = {name: header[key] for name, key in _HEADER.items() if key in header}
    # Older streams do not state the number of directions, which is 1.
    expected |= {"directions": 1} | {name: rule[name] for name in _RULE if name in rule}
    for field, in_header in expected.items():
        in_report = getattr(stated, field)
        if in_report is not None:
            yield from compare(
                field, list(map(list, in_report)) if field == "lost_steps" else in_report, in_header, source
            )
    if not header.get("lost"):  # the stream holds nothing of a step that was begun and lost
        yield from compare("fired", stated.fired, header.get("published"), source)
