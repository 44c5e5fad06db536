"""The training loop of FERRET: in steps in which groups fire, weights move along their directions.

Most steps are silent and cost nothing. The same loop trains and replays, with different sources of amounts, so a replay
cannot deviate from its run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError, NoStepsLeftError
from privctl.domain.progress import Advance, Notify
from privctl.domain.shown import counted
from privctl.parallel import Workers
from privctl.train.directional import FiredGroup, direction
from privctl.train.methods.ferret.amounts import DerivativeStats, PrivateExamples, UpdateSource
from privctl.train.methods.ferret.groups import Groups, trainable
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.update import UpdateRule, Updates
from privctl.train.network.tensors import load_tensors, named_tensors, require_finite
from privctl.train.settings.recipe import whole_epochs
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.loop import FinishedRun, finite_of
from privctl.train.steps.saved_state import SavedState, interruption, last_saved
from privctl.train.steps.watch import Unwatched, Watch

#: Ranges of steps (from, to).
Spans = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedFerret:
    """A finished run; ``amounts`` (fired,) were published, steps in the ranges ``lost`` (from, to) were not made."""

    finished: FinishedRun
    amounts: Tensor
    lost: Spans


@dataclass(slots=True, kw_only=True)
class FerretTrainer:
    """A single run over the steps of ``masks``; call ``run`` once.

    An epoch is ``epoch_steps`` steps; with Poisson batches at ``epoch_rate``, epoch k ends with step ceil(k / rate).
    With ``once`` no step may be begun twice, so steps that were begun and not saved are lost; otherwise they are
    repeated, which publishes the same amounts if steps draw no random numbers. The other fields are as in
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
    notify: Notify = lambda _: None
    clock: Callable[[], float] = time.monotonic
    save_every: float = 300.0
    _amounts: list[Tensor] = field(default_factory=list, init=False)
    _lost: Spans = field(default=(), init=False)

    def run(
        self,
        start: SavedState | None = None,
        stop: Callable[[], bool] = lambda: False,
        lost: Spans = (),
    ) -> FinishedFerret:
        """Make all steps except those in ``lost``.

        ``stop`` is called after each step that publishes; if it returns True in any process, the state is saved and
        RunInterruptedError raised in all. Raises InputError if a weight is not finite after an epoch,
        NoStepsLeftError if every step that publishes was lost.
        """
        before = finite_of(self.first_look(self.network)) if self.workers.is_main else {}
        updates = Updates(trainable(self.network), self.groups, self.rule, self.masks.counts)
        place, history = self._restored(start, updates)
        self._lost += lost
        last_save = last_saved(start, self.folder, self.clock())
        while place < self.rule.steps:
            beyond = _after_lost(place, self._lost)
            if beyond > place:
                self.advance(beyond - place)
                place = beyond
                continue
            published = self._step(place, updates)
            place += 1
            self.watch.step(place, (), ())
            ended = self._epochs(place) > self._epochs(place - 1) or place == self.rule.steps
            if ended:
                updates.catch_up(place)
                history.append(self._entry(place))
                self.watch.epoch(place, history[-1])
            if published or ended:
                # The main process's clock decides for all, and so does a signal that reached only one process.
                due = self.workers.is_main and self.clock() - last_save > self.save_every
                stopping, due = self.workers.any_of(stop(), due)
                if ended or stopping or due:
                    self._save(
                        updates, SavedState(updates=place, steps_begun=place, tensors={}, history=tuple(history))
                    )
                    last_save = self.clock()
                if stopping:
                    raise interruption(place, self.rule.steps, self.folder)
            self.advance(1)
        updates.catch_up(self.rule.steps)
        require_finite(self.network, self.rule.steps)
        finished = FinishedRun(updates=place, steps_begun=place, history=tuple(history), before=before)
        return FinishedFerret(finished=finished, amounts=_as_vector(self._amounts), lost=self._lost)

    def _step(self, step: int, updates: Updates) -> bool:
        """One step; whether anything was published in it."""
        chosen = [FiredGroup(index=index, parameters=self.groups[index]) for index in self.masks.fired(step)]
        if not chosen:
            return False
        if self.folder is not None and self.workers.is_main:
            self.folder.mark(step + 1)
        updates.catch_up(step)
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

    def _entry(self, step: int) -> dict[str, float]:
        """The finite metrics of one epoch. Raises InputError for weights that are not finite."""
        require_finite(self.network, step)
        statistics = self._statistics()
        statistics.gather(self.workers)
        clip_norm = self.source.publisher.clip_norm if isinstance(self.source, PrivateExamples) else None
        measured = self.evaluate(self.network)
        return finite_of({"step": float(step), **statistics.summary(clip_norm), **measured})

    def _statistics(self) -> DerivativeStats:
        return self.source.statistics if isinstance(self.source, PrivateExamples) else DerivativeStats()

    def _save(self, updates: Updates, reached: SavedState) -> None:
        statistics = self._statistics()
        statistics.gather(self.workers)

        def write() -> None:
            if self.folder is not None:
                tensors = {f"model.{name}": tensor for name, tensor in named_tensors(self.network).items()}
                tensors |= updates.tensors() | statistics.tensors()
                tensors["ferret.amounts"] = _as_vector(self._amounts)
                tensors["ferret.lost"] = torch.tensor(self._lost, dtype=torch.int64).view(-1, 2)
                self.folder.save(replace(reached, tensors=tensors))

        self.workers.in_main(write)  # all wait for it, as torchrun ends the others once one has exited

    def _restored(self, start: SavedState | None, updates: Updates) -> tuple[int, list[Mapping[str, float]]]:
        """Restore the saved state; returns the next step and the history so far."""
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
                self.source.statistics = DerivativeStats.restored(tensors)
        if self.once:
            self._lost += (newly := _newly_lost(start))
            _require_published_left(self.masks, self._lost, newly, self.notify)
        return start.updates, list(start.history)


def _as_vector(parts: list[Tensor]) -> Tensor:
    """One vector, float64."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *parts])


def _newly_lost(start: SavedState) -> Spans:
    """The range of steps that was lost after the state ``start`` was saved, if any."""
    return ((start.updates, start.steps_begun),) if start.steps_begun > start.updates else ()


def _after_lost(step: int, lost: Spans) -> int:
    """The first step from ``step`` on that is in none of the ranges ``lost``."""
    for begin, end in lost:
        if begin <= step < end:
            return end
    return step


def _require_published_left(masks: Masks, lost: Spans, newly: Spans, notify: Notify) -> None:
    """Say how many steps that publish are in ``newly``, the last of the ranges ``lost``, as they are spent.

    Raises NoStepsLeftError if every step that publishes is lost, as nothing would be trained.
    """
    if not newly:
        return
    active, gone = masks.active_steps, _published(masks, lost)
    if gone == active:
        raise NoStepsLeftError(
            f"all {active} steps of this run that publish were begun and none of them was saved, so none is left to "
            "train with; start again with another --output, and account for what this run may have released"
        )
    count = _published(masks, newly)
    begun = counted(count, "step that publishes was", "steps that publish were")
    notify(
        f"{begun} begun and not saved; {'it counts' if count == 1 else 'they count'} in the guarantee and "
        f"{'is' if count == 1 else 'are'} not made again, which leaves {active - gone} of {active}"
    )


def _published(masks: Masks, spans: Spans) -> int:
    """How many of the steps in ``spans`` publish."""
    return sum(bool(masks.fired(step)) for begin, end in spans for step in range(begin, end))
