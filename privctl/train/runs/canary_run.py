"""Canaries in the gradients of a training job: their file beside the model, and what the report says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from privctl.domain.report import PrivacyReport
from privctl.parallel import Workers
from privctl.reports.files import now
from privctl.storage.atomic import PendingFile, require_absent
from privctl.storage.digest import tag
from privctl.train.preparation.job import TrainingJob
from privctl.train.runs.gradient_training import MethodHooks
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.canary_laws import participation_phrase
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.loop import FinishedRun

if TYPE_CHECKING:
    from torch import nn

KIND = "privctl-gradient-canaries"
SUFFIX = ".gradient-canaries.json"
_WARNING = (
    "an audit run, not for release: its weights hold the gradients of {count} canaries, which no record asked for; the "
    "guarantee of the records holds as stated, because canaries are drawn without looking at them, but train again "
    "without --gradient-canaries for a model to use; each canary {part}"
)
_APART = ", and takes part in no measurement of layers, so canaries show the noise of the steps alone"


class CanaryRun:
    """The canaries of a training job, as the hooks of ``train_by_gradients`` ask for them."""

    def __init__(self, count: int, recipe: TrainingSettings, *, measured: bool = False) -> None:
        """``measured`` says that there are side releases, in which no canary takes part."""
        self._count, self._part = count, participation_phrase(recipe) + _APART * measured
        self._canaries: GradientCanaries | None = None
        self._content: bytes = b""

    def start(self, job: TrainingJob, network: nn.Module, workers: Workers) -> GradientCanaries | None:
        """Draw the canaries: in the main process, or in all that share the network. Every process must call this.

        Raises CommandError for more than it has numbers, or where their file is in the way.
        """

        def drawn() -> bytes:
            require_absent(path_of(job.request.output), job.request.force)
            return os.urandom(32)

        def made() -> GradientCanaries:
            return GradientCanaries(self._count, _trained(network), job.recipe, seed, workers)

        seed = workers.once(drawn)
        self._canaries = made() if workers.lockstep else workers.in_main(made)
        return self._canaries

    @contextmanager
    def staged(self, job: TrainingJob, network: nn.Module) -> Iterator[list[PendingFile]]:
        """The file of coins and observations, readable by its owner alone, yet to get its final name."""
        assert self._canaries is not None
        recipe = job.recipe
        data: dict[str, Any] = {
            "kind": KIND,
            "version": 1,
            "created": now(),
            "model": job.request.output.name,
            "delta": job.delta,
            "noise_multiplier": recipe.noise_multiplier,
            "sample_rate": recipe.sample_rate,
            "steps": recipe.steps,
            "included": [int(coin) for coin in self._canaries.included],
            "every_step": self._canaries.every_step.tolist(),
            "end": self._canaries.end(_trained(network)).tolist(),
        }
        self._content = (json.dumps(data, allow_nan=False) + "\n").encode()
        with PendingFile(path_of(job.request.output)) as pending:
            pending.write_at(0, self._content)
            yield [pending]

    def amend(self, report: PrivacyReport, _: FinishedRun) -> PrivacyReport:
        """The report with the canaries' number, the digest of their file, and what the model is not for."""
        return replace(
            report,
            parameters={
                **report.parameters,
                "gradient_canaries": self._count,
                "gradient_canaries_file": tag(blake3(self._content)),
            },
            warnings=(*report.warnings, _WARNING.format(count=self._count, part=self._part)),
        )


def with_canaries(job: TrainingJob, hooks: MethodHooks) -> MethodHooks:
    """``hooks``, with the canaries that are asked for; they stay as they are where none are."""
    request, recipe = job.request, job.recipe
    count = request.method.canaries(request)
    if count is None:
        return hooks
    measured = request.method.side_releases(request, len(job.task), recipe.steps, recipe.sample_rate)
    canaries = CanaryRun(count, recipe, measured=measured is not None)

    def amend(report: PrivacyReport, finished: FinishedRun) -> PrivacyReport:
        return canaries.amend(hooks.amend(report, finished), finished)

    return replace(hooks, canaries=canaries.start, amend=amend, beside=canaries.staged)


def path_of(output: Path) -> Path:
    """The canaries' file of a training with this ``output``."""
    return output.with_name(output.name + SUFFIX)


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
