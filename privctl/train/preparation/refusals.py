"""Checks of ``privctl retrain`` that need only its options, before torch is imported, which takes seconds.

Preparing the request repeats all of them, as model and data may have changed by then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from privctl.data.places import require_inputs
from privctl.data.several import data_at, paths_of
from privctl.domain.errors import CommandError
from privctl.models.choices import CLASSIFICATION, LABELLED, NOT_ON_TEXTS, TaskName
from privctl.storage.atomic import require_name
from privctl.storage.reader import missing_model
from privctl.train.preparation.places import nothing_to_resume, remove_finished, require_places, run_folder
from privctl.train.settings.own_settings import own_settings
from privctl.train.settings.request import Method

#: The tasks that each option does not apply to.
_UNUSED: Mapping[str, Collection[TaskName]] = {
    "--unit": NOT_ON_TEXTS,
    "--long": NOT_ON_TEXTS,
    "--max-length": (TaskName.IMAGE_CLASSIFICATION,),
    "--text-column": (*NOT_ON_TEXTS, TaskName.QUESTION_ANSWERING),
    "--label-column": set(TaskName) - {*LABELLED},
    "--vocabulary": NOT_ON_TEXTS,
    "--response-only": set(TaskName) - {TaskName.CAUSAL_LM},
    "--resize": set(TaskName) - {TaskName.IMAGE_CLASSIFICATION},
    "--labels": set(TaskName) - {*CLASSIFICATION},
}


def refuse_early(method: Method, options: Mapping[str, Any]) -> None:
    """Raise CommandError for contradictory options and for outputs that exist, InputError for missing inputs."""
    own_settings(method.settings, options)
    if options["data"] is None:
        raise CommandError(
            f"there is nothing to train {method.name} on; give --data, or --replay with a stream of updates"
        )
    if method.noised and method.guaranteed and options.get("secrets") is None:
        names = ("epsilon", "noise_multiplier")
        require_one(method.name, {f"--{name.replace('_', '-')}": options.get(name) for name in names})
    if options["task"] in list(TaskName):
        stated = {flag: bool(options.get(flag[2:].replace("-", "_"))) for flag in _UNUSED}
        require_applicable(TaskName(options["task"]), stated)
    data = [data_at(options[name]) for name in ("data", "held_out", "public") if options.get(name)]
    models = [Path(options[name]) for name in ("model", "base") if options.get(name) is not None]
    if not models[0].exists():
        raise missing_model(models[0])
    require_inputs(*data)
    output = Path(options["output"])
    require_name(output)
    if options["resume"]:
        if not options.get("search") and not run_folder(output).is_dir():
            raise nothing_to_resume(run_folder(output), output)
        return  # existing outputs may be the run's own
    remove_finished(output)
    inputs = [*models, *(path for each in data for path in paths_of(each))]
    require_places(output, force=options["force"], suffixes=method.files, inputs=inputs)


def require_one(command: str, given: Mapping[str, float | None]) -> None:
    """Raise CommandError unless exactly one of the options in ``given``, by flag, has a value."""
    if sum(value is not None for value in given.values()) != 1:
        raise CommandError(f"{command} needs either {' or '.join(given)}; give exactly one of them")


def require_applicable(task: TaskName, stated: Mapping[str, bool]) -> None:
    """Raise CommandError for an option that was given (``stated``, by flag) and does not apply to ``task``."""
    refused = [flag for flag, unused in _UNUSED.items() if stated[flag] and task in unused]
    if "--unit" in refused:
        raise CommandError(
            f"--unit does not apply to the task {task}, which protects one record at a time; remove it: what that "
            "means for all K records of one person, privctl inspect OUTPUT --group-size K shows"
        )
    for flag in refused:
        raise CommandError(f"{flag} does not apply to the task {task}; remove it")
