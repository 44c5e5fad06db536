"""The FERRET loop: most steps are silent and cost nothing; where groups fire, weights move along their directions.

The same loop trains and replays, with different sources of amounts, so a replay cannot deviate from its run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError, RunInterruptedError
from privctl.domain.progress import Advance
from privctl.parallel import Workers
from privctl.train.directional import FiredGroup, direction
from privctl.train.methods.ferret.amounts import DerivativeStats, PrivateExamples, UpdateSource, finite
from privctl.train.methods.ferret.groups import Groups, trainable
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.update import UpdateRule, Updates
from privctl.train.network.tensors import load_tensors, named_tensors, require_finite
from privctl.train.settings.recipe import whole_epochs
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.loop import FinishedRun
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.watch import Unwatched, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedFerret:
    """A run that came to its end; ``amounts`` (fired,) were published, ``lost`` are steps (from, to) never made."""

    finished: FinishedRun
    amounts: Tensor
    lost: tuple[tuple[int, ...], ...]


@dataclass(slots=True, kw_only=True)
class FerretTrainer:
    """One run over the steps of ``masks``; call ``run`` once.

    ``epoch_steps`` is after how many steps the network is looked at; by Poisson batches at ``epoch_rate`` it is after
    step ceil(k / rate) for each epoch k. With ``once`` no step may be begun twice: steps
    that were begun and not saved are lost. Else they are made again, which publishes the same again. The rest is as in
    ``loop.Trainer``.
    """

    network: nn.Module
    groups: Groups
    masks: Masks
    rule: UpdateRule
    source: UpdateSource
    epoch_steps: int
    epoch_rate: float | None = None
    device: torch.device
    once: bool = True
    workers: Workers = field(default_factory=Workers)
    folder: RunFolder | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    first_look: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    advance: Advance = lambda _: None
    watch: Watch = field(default_factory=Unwatched)
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0
    _amounts: list[Tensor] = field(default_factory=list, init=False)
    _lost: tuple[tuple[int, ...], ...] = field(default=(), init=False)

    def run(
        self,
        start: SavedState | None = None,
        stop: Callable[[], bool] = lambda: False,
        lost: tuple[tuple[int, ...], ...] = (),
    ) -> FinishedFerret:
        """Go through all steps, those ``lost`` before excepted.

        ``stop`` is asked after each step that publishes; where any process says yes, the state is saved and
        RunInterruptedError raised in all. Raises InputError where a weight is not finite after an epoch.
        """
        before = finite(self.first_look(self.network)) if self.workers.is_main else {}
        updates = Updates(trainable(self.network), self.groups, self.rule, self.masks.counts)
        place, history = self._restored(start, updates)
        self._lost += lost
        last_save = self.clock()
        while place < self.rule.steps:
            beyond = self._beyond(place)
            if beyond > place:
                self.advance(beyond - place)
                place = beyond
                continue
            speaks = self._step(place, updates)
            place += 1
            self.watch.step(place, (), ())
            ended = self._epochs(place) > self._epochs(place - 1) or place == self.rule.steps
            if ended:
                updates.settle(place)
                history.append(self._entry(place))
                self.watch.epoch(place, history[-1])
            if speaks or ended:
                # One process's clock decides for all, and so does a signal that reached only one.
                due = self.workers.is_main and self.clock() - last_save > self.save_every
                stopping, due = self.workers.any_of(stop(), due)
                if ended or stopping or due:
                    self._save(
                        updates, SavedState(updates=place, steps_begun=place, tensors={}, history=tuple(history))
                    )
                    last_save = self.clock()
                if stopping:
                    raise RunInterruptedError(self._parting(place))
            self.advance(1)
        updates.settle(self.rule.steps)
        require_finite(self.network, self.rule.steps)
        finished = FinishedRun(updates=place, steps_begun=place, history=tuple(history), before=before)
        return FinishedFerret(finished=finished, amounts=_joined(self._amounts), lost=self._lost)

    def _step(self, step: int, updates: Updates) -> bool:
        """One step; whether anything was published in it."""
        chosen = [FiredGroup(index=index, parameters=self.groups[index]) for index in self.masks.fired(step)]
        if not chosen:
            return False
        if self.folder is not None and self.workers.is_main:
            self.folder.mark(step + 1)
        updates.settle(step)
        parameters = dict(self.network.named_parameters())
        directions = [
            direction(
                self.masks.seed, step, group.index, {n: parameters[n].shape for n in group.parameters}, self.device
            )
            for group in chosen
        ]
        amounts = self.source.amounts(step, chosen, directions)
        for group, along, amount in zip(chosen, directions, amounts.tolist(), strict=True):
            updates.apply(step, group.index, along, amount)
        self._amounts.append(amounts)
        return True

    def _epochs(self, steps: int) -> int:
        return whole_epochs(steps, self.epoch_steps, self.epoch_rate)

    def _beyond(self, place: int) -> int:
        """The first step from ``place`` on that was not lost."""
        for begin, end in self._lost:
            if begin <= place < end:
                return end
        return place

    def _entry(self, step: int) -> dict[str, float]:
        """One epoch's finite measures. Raises InputError for weights that are not finite."""
        require_finite(self.network, step)
        met = self._met()
        met.gather(self.workers)
        clip_norm = self.source.publisher.clip_norm if isinstance(self.source, PrivateExamples) else None
        measured = self.evaluate(self.network)
        return finite({"step": float(step), **met.summary(clip_norm), **measured})

    def _met(self) -> DerivativeStats:
        return self.source.met if isinstance(self.source, PrivateExamples) else DerivativeStats()

    def _save(self, updates: Updates, reached: SavedState) -> None:
        met = self._met()
        met.gather(self.workers)

        def write() -> None:
            if self.folder is not None:
                tensors = {f"model.{name}": tensor for name, tensor in named_tensors(self.network).items()}
                tensors |= updates.tensors() | met.tensors()
                tensors["ferret.amounts"] = _joined(self._amounts)
                tensors["ferret.lost"] = torch.tensor(self._lost, dtype=torch.int64).view(-1, 2)
                self.folder.save(replace(reached, tensors=tensors))

        self.workers.in_main(write)  # torchrun ends the others as soon as one has left

    def _restored(self, start: SavedState | None, updates: Updates) -> tuple[int, list[Mapping[str, float]]]:
        """Put back what was saved; the step to go on with, and the history so far."""
        if start is None:
            return 0, []
        tensors = start.tensors
        if tensors:
            prefix = "model."
            load_tensors(self.network, {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
            try:
                updates.restore(tensors)
                self._amounts = [tensors["ferret.amounts"]]
                self._lost = tuple((int(begin), int(end)) for begin, end in tensors["ferret.lost"].tolist())
            except (KeyError, RuntimeError):
                raise InputError("the saved state is of another run; resume with the settings it began with") from None
            if isinstance(self.source, PrivateExamples) and self.workers.is_main:
                self.source.met = DerivativeStats.restored(tensors)
        if self.once and start.steps_begun > start.updates:
            self._lost += ((start.updates, start.steps_begun),)
        return start.updates, list(start.history)

    def _parting(self, step: int) -> str:
        done = f"interrupted after step {step} of {self.rule.steps}"
        if self.folder is None:
            return done
        return f"{done}; the state was saved in {self.folder.path}: continue with --resume and the same settings"


def _joined(parts: list[Tensor]) -> Tensor:
    """One vector, float64."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *parts])
