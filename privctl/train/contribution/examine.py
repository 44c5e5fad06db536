"""The contribution test: synthetic records alone and in batches, in every mode in which the run computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError, in_one_line
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import CorpusTask
from privctl.parallel import is_out_of_memory
from privctl.train.clipping.passes import NotFiniteError
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.promotion import Promotion
from privctl.train.contribution.findings import ROUNDING, Dependence, DependentRecordsError
from privctl.train.contribution.first_difference import first_differing_module
from privctl.train.contribution.network_state import (
    BufferSnapshot,
    DropoutDraws,
    fixed_seed,
    perturbed_constants,
    without_dropout,
)
from privctl.train.contribution.probes import COPIES, DIFFERENT, PLAIN, BatchArrangement, BatchLimits, Probes, probes
from privctl.train.contribution.views import ClippedGradients, ComputationStage, Contribution, LossesOf

#: The step number for random draws on synthetic records, beyond those of training steps and measurements.
PLACE = 1 << 40
#: The number of seeds under which a loss is computed, and the rate of LayerDrop meanwhile.
_SEEDS, _LAYERS_DROPPED = 8, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependenceTest:
    """A passed test: the largest ``rows`` and ``tokens`` of a batch, and the largest difference by stage.

    ``allowed`` holds the tolerance of each stage. ``padding`` is the length to which every text must be padded, or
    None. The ``promoted`` modules are differentiated as a whole, which takes the fraction ``promoted_share`` of the
    time for the gradients of the largest batch.
    """

    rows: int
    tokens: int
    differences: Mapping[str, float]
    allowed: Mapping[str, float]
    padding: int | None = None
    promoted: tuple[Promotion, ...] = ()
    promoted_share: float | None = None


def examine(
    network: nn.Module, task: Task, limits: BatchLimits, stages: Sequence[ComputationStage], device: torch.device
) -> IndependenceTest:
    """Test ``network`` in its current mode on synthetic records like those of ``task``, with the task's padding.

    The network and the random state are restored; a compiled network is run uncompiled. Without ``stages``, only
    whether a pass leaves state behind is tested. Raises DependentRecordsError, naming the cause, if a record's loss or
    contribution depends on other records, and InputError for a network that does not support what the run needs.
    """
    test = _Test(network=network, probes=probes(task, limits), limits=limits, device=device)
    snapshot = BufferSnapshot(network)
    try:
        with torch.compiler.set_stance("force_eager"), perturbed_constants(network):
            with without_dropout(network):
                test.check_state()
            # If each record is a pass of its own, none shares a draw with another.
            with without_dropout(network, of_layers=_LAYERS_DROPPED if limits.rows > 1 else 0.0):
                test.check_draws()
            if limits.rows > 1 and any(module.training for module in network.modules()):
                test.check_dropout()
            with without_dropout(network):
                if stages:  # losses first, as they give the clearest error
                    test.check_stage(ComputationStage(name="loss in float32", view=_LossesOnly()))
                differences = {stage.name: test.check_stage(stage) for stage in stages}
                test.check_repeatable()
                promoted, share = test.promoted(stages)
    except NotFiniteError:
        raise InputError(
            "the loss or a gradient of made-up records is not finite; check that the model's weights are sound"
        ) from None
    finally:
        snapshot.restore()
    return IndependenceTest(
        rows=max((len(arrangement.rows) for arrangement in test.probes.arrangements), default=1),
        tokens=limits.tokens,
        differences=differences,
        allowed={stage.name: stage.rounding for stage in stages},
        padding=_padding(task),
        promoted=promoted,
        promoted_share=share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """The contribution of one row of a batch, and its distance from that of the same record alone."""

    batch: BatchArrangement
    row: int
    contribution: Contribution
    distance: float


class _LossesOnly:
    """A view of the losses in the mode that the run trains in."""

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def contributions(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
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

    def check_state(self) -> None:
        """Check that passes leave no state: in buffers, in parameters, or anywhere else that affects a loss."""
        snapshot = None if self.padding is not None else BufferSnapshot(self.network)
        first_losses = self._lone_losses()
        # If all texts are padded to one length, the state after the first pass does not depend on the records.
        snapshot = snapshot or BufferSnapshot(self.network)
        for fill in self.probes.fills:
            self._losses_of(fill)
        self._require_unchanged(snapshot, saved=True)
        # Tables that grow with the longest text have reached their final size.
        settled = BufferSnapshot(self.network)
        for fill in (*self.probes.fills[::-1], (self.probes.longest,), (self.probes.subjects[0],)):
            self._losses_of(fill)
        self._require_unchanged(settled, saved=False)
        self._losses = self._lone_losses()
        self._require_same_losses(first_losses, self._losses)

    def check_draws(self) -> None:
        """Check that, without dropout, no loss depends on random numbers.

        A draw that the records of a pass share has another law if another record moves one of them to the next pass.
        The draws of one seed are the same in all passes, so comparing batches does not show this.
        """
        subject = self.probes.subjects[0]
        losses = [float(self._losses_of((subject,), seed)[0]) for seed in range(_SEEDS)]
        difference = max(_loss_difference(loss, losses[0]) for loss in losses)
        if not difference <= ROUNDING:
            self._refuse_for(f"a lone record's loss moves by {difference:.3g} with them", Dependence.RANDOM)

    def check_dropout(self) -> None:
        """Check that dropout draws anew for each record of a pass, and for nothing that records share.

        Dropped embeddings of positions, for example, have the fault described in ``check_draws``.
        """
        subject = self.probes.subjects[0]
        alone, twice = (self._numbers_dropped((subject,) * count) for count in (1, 2))
        if twice != [2 * count for count in alone]:
            self._refuse_for("dropout does not draw twice as many for two records as for one", Dependence.RANDOM)

    def _numbers_dropped(self, rows: Sequence[int]) -> list[int]:
        draws = DropoutDraws()
        with draws:
            self._losses_of(rows)
        return draws.counts

    def check_repeatable(self) -> None:
        """Check that the first losses are unchanged after everything else."""
        self._require_same_losses(self._losses, self._lone_losses())

    def promoted(self, stages: Sequence[ComputationStage]) -> tuple[tuple[Promotion, ...], float | None]:
        """The modules that the stages differentiate as a whole, and the measured fraction of time that takes."""
        for stage in reversed(stages):
            view = stage.view
            if isinstance(view, ClippedGradients) and view.promoted and not view.rounds:
                rows = max((self.probes.fills or ((0,),)), key=len)
                inputs = self.probes.task.batch(rows, self.device, PLACE)
                with fixed_seed(self.device):
                    return view.promoted, view.share_of(self._losses_in(stage, inputs, self.probes.task))
        return (), None

    def check_stage(self, stage: ComputationStage) -> float:
        """Check one stage; returns its largest difference."""
        exact = nullcontext() if stage.reduced else full_precision(self.device)
        with exact, stage.view.open():
            if self.probes.fills:  # the largest batch first, which uses most of the network
                self._contributions(stage, self.probes.fills[0], (0,))
            alone = {subject: self._contributions(stage, (subject,), (0,))[0] for subject in self.probes.subjects}
            differences = [self._check_padding(stage, alone, *padding) for padding in self.probes.paddings]
            return max([*differences, self._check_arrangements(stage, alone)])

    def _check_padding(
        self, stage: ComputationStage, alone: Mapping[int, Contribution], subject: int, length: int
    ) -> float:
        task = self.probes.task
        assert isinstance(task, CorpusTask)
        longer = replace(task, padding=length)
        (contribution,) = self._contributions(stage, (subject,), (0,), longer)
        difference = contribution.distance(alone[subject])
        if not difference <= stage.rounding:
            where = self._first_module_text((subject,), 0, subject, longer)
            self._refuse(Dependence.PADDED_LENGTH, difference, stage, f"padded to {length} tokens", where)
        return difference

    def _check_arrangements(self, stage: ComputationStage, alone: Mapping[int, Contribution]) -> float:
        """Compare all arrangements; returns the largest difference, or raises an error that names the cause."""
        comparisons = [
            _Comparison(
                batch=arrangement,
                row=row,
                contribution=contribution,
                distance=contribution.distance(alone[arrangement.rows[row]]),
            )
            for arrangement in self.probes.arrangements
            for row, contribution in zip(
                arrangement.targets, self._contributions(stage, arrangement.rows, arrangement.targets), strict=True
            )
        ]
        failed = [comparison for comparison in comparisons if not comparison.distance <= stage.rounding]
        crowded = [comparison for comparison in comparisons if comparison.batch.name in (COPIES, PLAIN, DIFFERENT)]
        same_shape = [comparison for comparison in crowded if comparison.row == comparison.batch.targets[-1]]
        for comparison in same_shape[1:]:  # batches of the same shape round alike in any precision
            difference = comparison.contribution.distance(same_shape[0].contribution)
            if not difference <= ROUNDING:
                where = self._first_module_text(
                    comparison.batch.rows, comparison.row, comparison.batch.rows[comparison.row], self.probes.task
                )
                beside = f"with {comparison.batch.name}"
                self._refuse(Dependence.CONTENT, difference, replace(stage, rounding=ROUNDING), beside, where)
        if failed:
            worst = max(failed, key=lambda comparison: comparison.distance)
            rows = worst.batch.rows
            where = self._first_module_text(rows, worst.row, rows[worst.row], self.probes.task)
            kind = self._kind(stage, crowded, failed)
            self._refuse(kind, worst.distance, stage, f"in a batch of {len(rows)}", where)
        return max((comparison.distance for comparison in comparisons), default=0.0)

    def _kind(
        self, stage: ComputationStage, crowded: Sequence[_Comparison], failed: Sequence[_Comparison]
    ) -> Dependence:
        """The kind of dependence that explains which batches failed."""
        if all(comparison.batch.mixed for comparison in failed):
            return Dependence.PADDED_LENGTH
        copies = [comparison.contribution for comparison in crowded if comparison.batch.name == COPIES]
        if copies and not copies[0].distance(copies[-1]) <= stage.rounding:
            return Dependence.POSITION
        if not any(comparison.batch.name in (COPIES, PLAIN, DIFFERENT) for comparison in failed):
            return Dependence.CONTENT
        return Dependence.SIZE

    def _first_module_text(self, rows: Sequence[int], row: int, subject: int, among: Task) -> str:
        module = first_differing_module(
            self.network,
            partial(self._forward, (subject,), self.probes.task),
            partial(self._forward, rows, among),
            row,
        )
        return "" if module is None else f", first in module {module}"

    def _refuse(
        self, kind: Dependence, difference: float, stage: ComputationStage, batch: str, where: str = ""
    ) -> NoReturn:
        evidence = f"{batch} it moves by {difference:.3g} of its size where rounding explains {stage.rounding:g}"
        self._refuse_for(f"{evidence}, {stage.name}{where}", kind)

    @property
    def padding(self) -> int | None:
        """The length that every record is padded to, or None."""
        return _padding(self.probes.task)

    def _require_unchanged(self, snapshot: BufferSnapshot, *, saved: bool) -> None:
        if (name := snapshot.changed_buffer(saved=saved)) is not None:
            self._refuse_for(f"a forward pass changes the buffer {name!r}, which would be released without noise")
        if (name := snapshot.changed_parameter()) is not None:
            evidence = f"a forward pass changes the parameter {name!r}, which would be released without noise"
            self._refuse_for(evidence, Dependence.PARAMETERS)

    def _require_same_losses(self, expected: Sequence[float], losses: Sequence[float]) -> None:
        difference = max(map(_loss_difference, expected, losses))
        if not difference <= ROUNDING:
            self._refuse_for(f"a lone record's loss moves by {difference:.3g} after other batches")

    def _refuse_for(self, evidence: str, kind: Dependence = Dependence.STATE) -> NoReturn:
        raise DependentRecordsError(kind, evidence, padded=self.padding, limited=self.limits.length is not None)

    def _lone_losses(self) -> list[float]:
        lone = (self.probes.longest, *self.probes.subjects[::-1])
        return [float(self._losses_of((subject,))[0]) for subject in lone]

    def _losses_of(self, rows: Sequence[int], seed: int = 0) -> Tensor:
        """The losses, without gradients."""
        with torch.no_grad(), full_precision(self.device), fixed_seed(self.device, seed):
            return self._forward(rows, self.probes.task).double().cpu()

    def _forward(self, rows: Sequence[int], task: Task) -> Tensor:
        inputs = task.batch(rows, self.device, PLACE)
        with self._computable(inputs):
            return task.losses(self.network, inputs)

    @contextmanager
    def _computable(self, inputs: Mapping[str, Tensor], *, reduced: bool = False) -> Iterator[None]:
        """Refuse a model that fails on a padded batch, as another record could cause a record to be padded that far.

        A ``reduced`` stage comes after one that computed the same batches in float32.
        """
        try:
            yield
        except (AssertionError, IndexError, RuntimeError, ValueError) as error:
            message = in_one_line(error)
            if is_out_of_memory(error):
                raise
            if reduced:
                raise InputError(f"this model cannot be computed in bfloat16 ({message}); give --float32") from None
            if "input_ids" not in inputs:
                raise
            length = inputs["input_ids"].shape[1]
            self._refuse_for(
                f"a batch padded to {length} tokens cannot be computed, {message}", Dependence.PADDED_LENGTH
            )

    def _losses_in(self, stage: ComputationStage, inputs: Mapping[str, Tensor], task: Task) -> LossesOf:
        """The function that runs a forward pass on ``inputs`` as ``stage`` computes it."""

        def losses_of() -> Tensor:
            with (
                self._computable(inputs, reduced=stage.reduced),
                torch.autocast(self.device.type, torch.bfloat16, enabled=stage.reduced),
            ):
                return task.losses(self.network, inputs)

        return losses_of

    def _contributions(
        self, stage: ComputationStage, rows: Sequence[int], targets: Sequence[int], task: Task | None = None
    ) -> list[Contribution]:
        task = self.probes.task if task is None else task
        losses_of = self._losses_in(stage, task.batch(rows, self.device, PLACE), task)
        try:
            with fixed_seed(self.device):
                return stage.view.contributions(losses_of, task.keys(rows), targets)
        except (AssertionError, NotImplementedError) as error:
            message = in_one_line(error)
            if "model.train()" in message:
                raise InputError(
                    "this model computes its layers anew as it goes back (Reformer's reversible layers do), and only "
                    "in training mode, so that no record's gradient can be taken by itself; train another architecture"
                ) from None
            raise InputError(
                f"this model cannot be differentiated as the run needs it ({message}); use another"
            ) from None


def _padding(task: Task) -> int | None:
    return task.padding if isinstance(task, CorpusTask) else None


def _loss_difference(loss: float, expected: float) -> float:
    return abs(loss - expected) / max(1.0, abs(expected))
