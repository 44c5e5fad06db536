"""``privctl.gate``: hold reports against a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privctl.api.arguments import FilePath, path_or_none
from privctl.domain.errors import CommandError
from privctl.domain.gate import GateJudgement
from privctl.domain.progress import Notify, Progress, unseen


def judgement_of(
    reports: Sequence[Path],
    *,
    model: Path | None,
    policy: Path | None,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    progress: Progress,
) -> GateJudgement:
    """``reports`` and the ``model`` at hand against ``policy``; ``settings`` are texts by the keys' names."""
    from privctl.gate.checks import RULES
    from privctl.gate.judge import judge
    from privctl.gate.model_at_hand import model_at, model_bytes
    from privctl.gate.policy import read_policy

    effective = read_policy(policy, settings, environment, RULES)
    if model is None:
        return judge(reports, effective, None, datetime.now(UTC))
    with progress("digests", model_bytes(model), "bytes") as advance:
        held = model_at(model, advance)
    return judge(reports, effective, held, datetime.now(UTC))


def gate(
    *reports: FilePath,
    model: FilePath | None = None,
    policy: FilePath | None = None,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
    **settings: Any,
) -> GateJudgement:
    """Hold ``reports`` against a policy: the report written with a model and those of its audits, or the model itself.

    ``policy`` is a TOML file; by default the one of this folder, where there is one. ``settings`` are a policy's keys
    by their names, such as ``max_epsilon=8`` or ``require="proved"``, and override the file and the environment.

    Returns the judgement; its ``outcome`` is ``pass``, ``fail`` or ``inconclusive``. A failed policy is an outcome, no
    error. Guarantees of a training in another program's loop count only where the policy accepts that it was as
    described (``accepted_assumptions``).

    Raises CommandError for a malformed policy or call.
    """
    from privctl.gate.settings import KEYS, suggestion
    from privctl.reports.of_model import is_model, reports_at

    for name in settings:
        if name not in KEYS:
            raise CommandError(f"a policy has no key {name!r}; {suggestion(name, KEYS)}")
    paths = [Path(each) for each in reports]
    if not paths:
        raise CommandError("there are no reports to judge; give those of the model, such as model.report.json")
    models = [path for path in paths if is_model(path)]
    if len(models) > 1:
        raise CommandError(f"{models[0]} and {models[1]} are two models; judge one at a time")
    return judgement_of(
        reports_at(paths, progress, notify),
        model=models[0] if models and model is None else path_or_none(model),
        policy=path_or_none(policy),
        settings={name: _text(value) for name, value in settings.items()},
        environment=os.environ,
        progress=progress,
    )


def _text(value: Any) -> str:
    """A setting as a flag would state it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(size)}" for name, size in value.items())
    if isinstance(value, str | os.PathLike | int | float):
        return repr(value) if isinstance(value, float) else str(value)
    return ",".join(_text(each) for each in value)
