"""``privctl.gate``: check reports against a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import FilePath, path_at, path_or_none
from privctl.domain.errors import CommandError, InputError
from privctl.domain.gate import GateJudgement
from privctl.domain.progress import Notify, Progress, unseen

if TYPE_CHECKING:
    from privctl.gate.model_at_hand import ModelAtHand


def judge_reports(
    reports: Sequence[Path],
    *,
    model: ModelAtHand | None,
    policy: Path | None,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
) -> GateJudgement:
    """Judge ``reports``, and the ``model`` if there is one, by ``policy``.

    ``settings`` are values of the policy's keys, as texts. Raises CommandError for a malformed policy.
    """
    from privctl.gate.checks import RULES
    from privctl.gate.judge import judge
    from privctl.gate.policy import read_policy

    effective = read_policy(policy, settings, environment, RULES)
    return judge(reports, effective, model, datetime.now(UTC))


def reports_and_model(
    paths: Sequence[Path], model: Path | None, progress: Progress, notify: Notify
) -> tuple[tuple[Path, ...], ModelAtHand | None]:
    """The reports at ``paths``, of which one may be a model, and the model to judge, if there is one.

    A model among ``paths`` means the reports beside it; it is also the model to judge, unless ``model`` is given. If
    its weights match no report, the report that names its files is used, and the gate then refutes the weights. Raises
    CommandError for two models among ``paths``, InputError for a model that cannot be read or has no report.
    """
    from privctl.gate.model_at_hand import model_at
    from privctl.reports.of_model import is_model, reports_at, weight_bytes

    models = list(dict.fromkeys(path for path in paths if is_model(path)))
    if len(models) > 1:
        raise CommandError(f"{models[0]} and {models[1]} are two models; judge one at a time")
    contents = None
    for path in dict.fromkeys([*models, *([] if model is None else [model])]):
        try:
            size = weight_bytes(path)
        except InputError as error:
            prefix = f"{path} is neither a report nor a model: " if path in models else ""
            raise InputError(f"{prefix}{error}") from None
        with progress("digests", size, "bytes") as advance:
            at_hand = model_at(path, advance)
        if path in models:
            paths = reports_at(paths, progress, notify, known={path: at_hand.digests}, by_name=True)
        contents = at_hand if path == model or model is None else contents
    return tuple(paths), contents


def gate(
    *reports: FilePath,
    model: FilePath | None = None,
    policy: FilePath | None = None,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
    **settings: Any,
) -> GateJudgement:
    """Check ``reports`` against a policy: the report written with a model and those of its audits, or the model itself.

    ``policy`` is a TOML file; by default that of the current folder, if there is one. ``settings`` are keys of a policy
    by name, such as ``max_epsilon=8`` or ``require="proved"``, and override the file and the environment; None is as
    if it were not given.

    Returns the judgement, whose ``outcome`` is ``pass``, ``fail`` or ``inconclusive``. A policy that is not met is an
    outcome, not an error. Guarantees of a training in your own loop count only where the policy accepts the assumptions
    about that loop (``accepted_assumptions``).

    Raises CommandError for a malformed policy or call, InputError for reports or a model that cannot be read.
    """
    from privctl.gate.settings import KEYS, suggestion

    for name in settings:
        if name not in KEYS:
            raise CommandError(f"a policy has no key {name!r}; {suggestion(name, KEYS)}")
    paths = [path_at(report, "report") for report in reports]
    if not paths:
        raise CommandError("there are no reports to judge; give those of the model, such as model.report.json")
    report_paths, contents = reports_and_model(paths, path_or_none(model), progress, notify)
    return judge_reports(
        report_paths,
        model=contents,
        policy=path_or_none(policy),
        settings={name: _text(value) for name, value in settings.items() if value is not None},
        environment=os.environ,
    )


def _text(value: Any) -> str:
    """The value of a setting as the text of its command-line option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(size)}" for name, size in value.items())
    if isinstance(value, str | os.PathLike | int | float):
        return repr(float(value)) if isinstance(value, float) else str(value)
    return ",".join(_text(item) for item in value)
