"""A record's contribution as the run computes it: clipped gradients, or derivatives along directions."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping.check import sketch
from privctl.train.clipping.promotion import Promotion
from privctl.train.contribution.findings import DEVIATIONS, ROUNDING
from privctl.train.directional import Derivatives, FiredGroup
from privctl.train.directional.difference import rounding
from privctl.train.directional.queries import parameters_of, queries_for
from privctl.train.settings.choices import DerivativeMethod

#: For a group with a small gradient, differences are relative to at least this fraction of the whole gradient.
_LEAST_SHARE = 0.1
_TINY = 1e-30

LossesOf = Callable[[], Tensor]
#: Given the keys of a batch's records, a context in which the network computes as in a step of the run.
Around = Callable[[Sequence[int]], AbstractContextManager[None]]


def _unchanged(keys: Sequence[int]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One record's ``loss`` in nats and its contribution in ``parts``, which may be sketches.

    Differences are relative to ``size``, after subtracting ``slack`` for rounding. Each of ``groups`` of parts is
    clipped by itself; without groups, all parts are clipped together.
    """

    loss: float
    parts: Mapping[str, Tensor]
    size: float
    slack: float = 0.0
    groups: tuple[frozenset[str], ...] = ()

    def distance(self, other: Contribution) -> float:
        """The largest of the difference of losses (relative above one nat) and the relative ones of contributions."""
        gaps = {
            name: _gap(self.parts.get(name), other.parts.get(name)) for name in self.parts.keys() | other.parts.keys()
        }
        distances = [abs(self.loss - other.loss) / max(1.0, abs(other.loss))]
        if gaps:
            distances.append(max(0.0, _norm(gaps.values()) - other.slack) / max(other.size, _TINY))
        for group in other.groups:
            group_size = _norm(_size(other.parts[name]) for name in group if name in other.parts)
            group_gap = _norm(gap for name, gap in gaps.items() if name in group)
            distances.append(group_gap / max(group_size + _LEAST_SHARE * other.size, _TINY))
        # NaN counts as an infinite distance.
        return max(math.inf if math.isnan(distance) else distance for distance in distances)


class ContributionView(Protocol):
    """Computes the contributions of some records of a batch."""

    def open(self) -> AbstractContextManager[None]:
        """The context in which ``contributions`` may be called."""
        ...

    def contributions(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
        """The contributions of the rows ``targets`` of a batch whose records have ``keys``."""
        ...


@dataclass(slots=True, kw_only=True)
class ClippedGradients:
    """Each record's gradient as the engine would clip and add it.

    With per-layer clipping every group is compared by itself. ``rounds`` means that passes inside ``around`` round
    randomly, so that no two agree. ``promoted`` are the modules known so far to be differentiated as a whole.
    """

    network: nn.Module
    clipping: Clipping
    around: Around = _unchanged
    rounds: bool = False
    promoted: tuple[Promotion, ...] = ()
    passes: int = 1
    _engine: PerExample | None = field(init=False, default=None)

    @contextmanager
    def open(self) -> Iterator[None]:
        """See ``ContributionView``."""
        with PerExample(self.network, self.clipping, self.promoted, passes=self.passes) as engine:
            self._engine = engine
            try:
                yield
                self.promoted = engine.promoted
            finally:
                self._engine = None

    def share_of(self, losses_of: LossesOf) -> float:
        """The fraction of a step's time, without its update, that is spent on rerunning promoted modules."""
        with PerExample(self.network, self.clipping, self.promoted, passes=self.passes) as engine:
            try:
                engine.accumulate(losses_of)  # not timed, as the first one also compares with autograd
                for parameter in engine.trainable.values():
                    parameter.grad = None
                with engine.timed() as inside:
                    start = time.perf_counter()
                    engine.accumulate(losses_of)
                    return min(1.0, inside() / (time.perf_counter() - start))
            finally:
                for parameter in engine.trainable.values():
                    parameter.grad = None

    def contributions(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
        """See ``ContributionView``. Raises what ``PerExample.accumulate`` does."""
        engine = self._engine
        assert engine is not None
        if self.rounds:
            engine.verify(losses_of)
        with self.around(keys):
            losses, row_parts = engine.rows(losses_of, targets, sketch)
        groups = tuple(frozenset(names) for names in engine.groups) if len(engine.groups) > 1 else ()
        return [
            Contribution(loss=float(losses[row]), parts=parts, size=_length(parts), groups=groups)
            for row, parts in zip(targets, row_parts, strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class ClippedDerivatives:
    """Each record's derivatives along directions, for each of ``fired_groups``: groups that fire together.

    Each entry pairs the groups with their directions. Derivatives are relative to the norm of the gradient in the
    tensors that fired.
    """

    engine: Derivatives
    fired_groups: Sequence[tuple[Sequence[FiredGroup], Sequence[Mapping[str, Tensor]]]]

    def open(self) -> AbstractContextManager[None]:
        """See ``ContributionView``."""
        return nullcontext()

    def contributions(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
        """See ``ContributionView``. Raises what ``Derivatives.per_example`` does."""
        parts: list[dict[str, Tensor]] = [{} for _ in targets]
        squares, slack = 0.0, 0.0
        for number, (fired, directions) in enumerate(self.fired_groups):
            together = Counter(group.parameters for group in fired)
            lengths = torch.tensor(
                [
                    math.sqrt(_dimension(along) / together[group.parameters])
                    for group, along in zip(fired, directions, strict=True)
                ],
                dtype=torch.float64,
            )
            derivatives = self.engine.per_example(losses_of, fired, directions).detach().cpu() * lengths
            for part, row in zip(parts, targets, strict=True):
                part[str(number)] = derivatives[row]
            if len(keys) == 1:
                size, noise = self._gradient_size(losses_of, fired, directions)
                squares += size**2
                slack += float((noise.cpu() * lengths).norm())
        with torch.no_grad():
            losses = losses_of()
        return [
            Contribution(loss=float(losses[row]), parts=part, size=math.sqrt(squares), slack=DEVIATIONS * slack)
            for part, row in zip(parts, targets, strict=True)
        ]

    def _gradient_size(
        self, losses_of: LossesOf, fired: Sequence[FiredGroup], directions: Sequence[Mapping[str, Tensor]]
    ) -> tuple[float, Tensor]:
        """The norm of the gradient in the fired groups, and the standard deviations of finite differences' rounding."""
        queries = queries_for(self.engine.network, fired, directions)
        chosen = list(parameters_of(queries).values())
        required = [p.requires_grad for p in chosen]
        try:
            for p in chosen:
                p.requires_grad_(True)
            with torch.enable_grad():
                loss = losses_of().sum()
            gradients = torch.autograd.grad(loss, chosen, allow_unused=True) if loss.requires_grad else []
        finally:
            for p, was_required in zip(chosen, required, strict=True):
                p.requires_grad_(was_required)
        noise = torch.zeros(len(fired), dtype=torch.float64)
        if self.engine.choose_method(fired, per_example=True) is DerivativeMethod.DIFFERENCE:
            alone = [rounding(losses_of, [query], self.engine.step) for query in queries]
            noise = torch.cat(alone)
        return math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None)), noise


@dataclass(slots=True, kw_only=True)
class LossOnly:
    """The loss alone, without gradients and with the network in evaluation mode, as in measurements."""

    network: nn.Module
    around: Around = _unchanged

    @contextmanager
    def open(self) -> Iterator[None]:
        """See ``ContributionView``."""
        modes = [(module, module.training) for module in self.network.modules()]
        self.network.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def contributions(self, losses_of: LossesOf, keys: Sequence[int], targets: Sequence[int]) -> list[Contribution]:
        """See ``ContributionView``."""
        with torch.no_grad(), self.around(keys):
            losses = losses_of()
        return [Contribution(loss=float(losses[row]), parts={}, size=1.0) for row in targets]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationStage:
    """One mode in which the run computes, with its tolerance; ``reduced`` means autocast to bfloat16."""

    name: str
    view: ContributionView
    rounding: float = ROUNDING
    reduced: bool = False


def _dimension(along: Mapping[str, Tensor]) -> int:
    return sum(entries.numel() for entries in along.values())


def _length(parts: Mapping[str, Tensor]) -> float:
    return _norm(_size(part) for part in parts.values())


def _size(part: Tensor) -> float:
    return float(torch.linalg.vector_norm(part, dtype=torch.float64))


def _gap(expected: Tensor | None, actual: Tensor | None) -> float:
    """The norm of the difference; a missing part counts as zero."""
    if expected is None or actual is None:
        return sum(_size(part) for part in (expected, actual) if part is not None)
    return _size(expected - actual)


def _norm(lengths: Iterable[float]) -> float:
    return math.sqrt(sum(length**2 for length in lengths))
