"""The self-test: synthetic records alone and among others, in every way that the run computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import CorpusTask
from privctl.train.clipping.engine import NotFiniteError
from privctl.train.clipping.products import full_precision
from privctl.train.contribution.carried import BufferSnapshot, seeded, stirred, without_dropout
from privctl.train.contribution.findings import ROUNDING, Dependence, DependentRecordsError
from privctl.train.contribution.place import first_apart
from privctl.train.contribution.probes import COPIES, DIFFERENT, PLAIN, BatchArrangement, BatchLimits, Probes, probes
from privctl.train.contribution.views import ComputationStage, Contribution, LossesOf

#: The place of the draws that the task makes for made-up records: behind those of steps and of measurements.
PLACE = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependenceTest:
    """A test that was passed: the batches' ``rows`` and ``tokens`` at most, and the largest difference by stage.

    ``allowed`` has what was allowed of each. ``padding`` is the length to which every text has to be padded, where it
    is needed.
    """

    rows: int
    tokens: int
    differences: Mapping[str, float]
    allowed: Mapping[str, float]
    padding: int | None = None


def examine(
    network: nn.Module, task: Task, limits: BatchLimits, stages: Sequence[ComputationStage], device: torch.device
) -> IndependenceTest:
    """Test ``network``, as it is, on records like those of ``task``, with the padding that the task has.

    The network is left as it was, and the random state too; a compiled one is run uncompiled. Without ``stages`` only
    what a pass leaves behind is tested. Raises DependentRecordsError, saying on what, where a record's loss or
    contribution depends on others; InputError for a network that cannot do what the run needs.
    """
    test = _Test(network=network, probes=probes(task, limits), limits=limits, device=device)
    before = BufferSnapshot(network)
    try:
        with torch.compiler.set_stance("force_eager"), without_dropout(network), stirred(network):
            test.carried()
            if stages:  # losses first, which tell best what is wrong
                test.stage(ComputationStage(name="loss in float32", view=_LossesOnly()))
            differences = {stage.name: test.stage(stage) for stage in stages}
            test.again()
    except NotFiniteError:
        raise InputError(
            "the loss or a gradient of made-up records is not finite; check that the model's weights are sound"
        ) from None
    finally:
        before.restore()
    return IndependenceTest(
        rows=max((len(each.rows) for each in test.probes.arrangements), default=1),
        tokens=limits.tokens,
        differences=differences,
        allowed={stage.name: stage.rounding for stage in stages},
        padding=_padding(task),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """One row of a batch, and how far it is from what it is alone."""

    batch: BatchArrangement
    row: int
    seen: Contribution
    moved: float


class _LossesOnly:
    """The losses in the mode that the run trains in."""

    def opened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def see(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
        with torch.no_grad():
            losses = losses_of()
        return [Contribution(loss=float(losses[row]), parts={}, size=1.0) for row in targets]


@dataclass(slots=True, kw_only=True)
class _Test:
    network: nn.Module
    probes: Probes
    limits: BatchLimits
    device: torch.device
    _losses: list[float] = field(init=False, default_factory=list)
    _draws: bool = field(init=False, default=False)

    def carried(self) -> None:
        """What passes leave behind: in buffers, in parameters, or anywhere else that shows in a loss."""
        before = None if self.padding is not None else BufferSnapshot(self.network)
        first = self._alone(seed=0)
        # Where everything is padded alike, what the first pass leaves is known beforehand.
        before = before or BufferSnapshot(self.network)
        for fill in self.probes.fills:
            self._plain(fill)
        self._require_unchanged(before, saved=True)
        # Tables that grow with the longest text are as long as they ever get now.
        settled = BufferSnapshot(self.network)
        for fill in (*self.probes.fills[::-1], (self.probes.longest,), (self.probes.subjects[0],)):
            self._plain(fill)
        self._require_unchanged(settled, saved=False)
        self._losses = self._alone(seed=0)
        self._same(first, self._losses)
        self._draws = max(map(_apart, self._losses, self._alone(seed=1))) > ROUNDING

    def again(self) -> None:
        """The first losses once more, after all else."""
        self._same(self._losses, self._alone(seed=0))

    def stage(self, stage: ComputationStage) -> float:
        """The largest difference of one stage."""
        exact = nullcontext() if stage.reduced else full_precision(self.device)
        with exact, stage.view.opened():
            if self.probes.fills:  # the largest batch first, which uses most of the network
                self._see(stage, self.probes.fills[0], (0,))
            alone = {subject: self._see(stage, (subject,), (0,))[0] for subject in self.probes.subjects}
            moved = [self._padded(stage, alone, *padding) for padding in self.probes.paddings]
            return max([*moved, self._among(stage, alone)])

    def _padded(self, stage: ComputationStage, alone: Mapping[int, Contribution], subject: int, length: int) -> float:
        task = self.probes.task
        assert isinstance(task, CorpusTask)
        longer = replace(task, padding=length)
        (contribution,) = self._see(stage, (subject,), (0,), longer)
        moved = contribution.distance(alone[subject])
        if not moved <= stage.rounding:
            where = self._where((subject,), 0, subject, longer)
            self._refuse(Dependence.PADDED_LENGTH, moved, stage, f"padded to {length} tokens", where)
        return moved

    def _among(self, stage: ComputationStage, alone: Mapping[int, Contribution]) -> float:
        """In every arrangement; the largest difference, or the refusal that names what is behind it."""
        looked = [
            _Looked(batch=each, row=row, seen=seen, moved=seen.distance(alone[each.rows[row]]))
            for each in self.probes.arrangements
            for row, seen in zip(each.targets, self._see(stage, each.rows, each.targets), strict=True)
        ]
        failed = [each for each in looked if not each.moved <= stage.rounding]
        crowded = [each for each in looked if each.batch.name in (COPIES, PLAIN, DIFFERENT)]
        beside = [each for each in crowded if each.row == each.batch.targets[-1]]
        for each in beside[1:]:  # the same shapes make the same rounding, however many bits there are
            moved = each.seen.distance(beside[0].seen)
            if not moved <= ROUNDING:
                kind = Dependence.RANDOM if self._draws else Dependence.CONTENT
                where = self._where(each.batch.rows, each.row, each.batch.rows[each.row], self.probes.task)
                self._refuse(kind, moved, replace(stage, rounding=ROUNDING), f"with {each.batch.name}", where)
        if failed:
            worst = max(failed, key=lambda each: each.moved)
            rows = worst.batch.rows
            where = self._where(rows, worst.row, rows[worst.row], self.probes.task)
            kind = self._kind(stage, crowded, failed)
            self._refuse(kind, worst.moved, stage, f"in a batch of {len(rows)}", where)
        return max((each.moved for each in looked), default=0.0)

    def _kind(self, stage: ComputationStage, crowded: Sequence[_Looked], failed: Sequence[_Looked]) -> Dependence:
        """What the batches that failed differ in from a record alone, where content is not it."""
        if self._draws:
            return Dependence.RANDOM
        if all(each.batch.mixed for each in failed):
            return Dependence.PADDED_LENGTH
        copies = [each.seen for each in crowded if each.batch.name == COPIES]
        if copies and not copies[0].distance(copies[-1]) <= stage.rounding:
            return Dependence.POSITION
        if not any(each.batch.name in (COPIES, PLAIN, DIFFERENT) for each in failed):
            return Dependence.CONTENT
        return Dependence.SIZE

    def _where(self, rows: Sequence[int], row: int, subject: int, among: Task) -> str:
        module = first_apart(
            self.network,
            partial(self._forward, (subject,), self.probes.task),
            partial(self._forward, rows, among),
            row,
        )
        return "" if module is None else f", first in module {module}"

    def _refuse(self, kind: Dependence, moved: float, stage: ComputationStage, batch: str, where: str = "") -> NoReturn:
        said = f"{batch} it moves by {moved:.3g} of its size where rounding explains {stage.rounding:g}"
        self._refuse_for(f"{said}, {stage.name}{where}", kind)

    @property
    def padding(self) -> int | None:
        """What every record is padded to."""
        return _padding(self.probes.task)

    def _require_unchanged(self, kept: BufferSnapshot, *, saved: bool) -> None:
        if (name := kept.buffer(saved=saved)) is not None:
            self._refuse_for(f"a forward pass changes the buffer {name!r}, which would be released without noise")
        if (name := kept.parameter()) is not None:
            said = f"a forward pass changes the parameter {name!r}, which would be released without noise"
            self._refuse_for(said, Dependence.PARAMETERS)

    def _same(self, before: Sequence[float], after: Sequence[float]) -> None:
        moved = max(map(_apart, before, after))
        if not moved <= ROUNDING:
            self._refuse_for(f"a lone record's loss moves by {moved:.3g} after other batches")

    def _refuse_for(self, evidence: str, kind: Dependence = Dependence.STATE) -> NoReturn:
        raise DependentRecordsError(kind, evidence, padded=self.padding, limited=self.limits.length is not None)

    def _alone(self, seed: int) -> list[float]:
        lone = (self.probes.longest, *self.probes.subjects[::-1])
        return [float(self._plain((each,), seed)[0]) for each in lone]

    def _plain(self, rows: Sequence[int], seed: int = 0) -> Tensor:
        """The losses, without gradients."""
        with torch.no_grad(), full_precision(self.device), seeded(self.device, seed):
            return self._forward(rows, self.probes.task).double().cpu()

    def _forward(self, rows: Sequence[int], task: Task) -> Tensor:
        inputs = task.batch(rows, self.device, PLACE)
        with self._computable(inputs):
            return task.losses(self.network, inputs)

    @contextmanager
    def _computable(self, inputs: Mapping[str, Tensor]) -> Iterator[None]:
        """What the model cannot compute, it cannot compute for a record that is padded so far by another."""
        try:
            yield
        except (AssertionError, IndexError, RuntimeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            if "input_ids" not in inputs or isinstance(error, torch.OutOfMemoryError):
                raise
            length = inputs["input_ids"].shape[1]
            self._refuse_for(f"a batch padded to {length} tokens cannot be computed, {said}", Dependence.PADDED_LENGTH)

    def _see(
        self, stage: ComputationStage, rows: Sequence[int], targets: Sequence[int], task: Task | None = None
    ) -> list[Contribution]:
        task = self.probes.task if task is None else task
        inputs = task.batch(rows, self.device, PLACE)

        def losses_of() -> Tensor:
            with (
                self._computable(inputs),
                torch.autocast(self.device.type, torch.bfloat16, enabled=stage.reduced),
            ):
                return task.losses(self.network, inputs)

        try:
            with seeded(self.device):
                return stage.view.see(losses_of, task.keys(rows), targets)
        except (AssertionError, NotImplementedError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise InputError(f"this model cannot be differentiated as the run needs it ({said}); use another") from None


def _padding(task: Task) -> int | None:
    return task.padding if isinstance(task, CorpusTask) else None


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(1.0, abs(other))
