"""Canary gradients, randomly included in a private training: an audit from inside the training.

A canary is a gradient with the clip norm in a single coordinate of its own (a Dirac gradient), the strongest that one
record can contribute (Nasr et al. 2023; Steinke, Nasr and Jagielski 2023, section 6). Each is included with probability
1/2, and an included one takes part in the run as its law says (``steps.canary_laws``). Two things are observed of each
canary: the log-likelihood ratio of its coordinate in all released gradients, and how far its coordinate of the weights
moved.

With sharded parameters each process adds to and reads the coordinates that it holds, with the same random choices.

A canary is one more record, so the mechanism's guarantee covers it as any record. Canaries do not depend on the
records, whose guarantee is therefore the same as without them; but they move the weights along their directions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privctl.domain.errors import CommandError, InputError
from privctl.parallel import ALONE, Workers
from privctl.train.clipping.shards import first_row, own_part
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.canary_laws import law_of
from privctl.train.steps.sampling import BatchSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREFIX = "canaries."
#: A canary's norm relative to the clip norm, which leaves the same margin for float rounding as clipping does.
_RELATIVE_NORM = 1 - 2.0**-10


class GradientCanaries:
    """The canaries of one run: in its main process, or in every process if the parameters are sharded."""

    def __init__(
        self,
        count: int,
        parameters: Sequence[nn.Parameter],
        recipe: TrainingSettings,
        seed: bytes | None = None,
        workers: Workers = ALONE,
    ) -> None:
        """Draw inclusions and coordinates; raises CommandError for more canaries than coordinates.

        ``workers`` in lockstep share the parameters and must pass the same secret ``seed``; None draws a fresh one.
        """
        self._together = workers if workers.lockstep else ALONE
        self._whole = list(_ranges(parameters, whole=True))
        self._own = list(_ranges(parameters, whole=False))
        total = sum(size for _, size in self._whole)
        if count > total:
            raise CommandError(f"--gradient-canaries is {count}, but the model trains {total} numbers only; give fewer")
        self._batch_size = recipe.batch_size
        self._key = np.frombuffer(os.urandom(32) if seed is None else seed, np.uint8)
        source = np.random.default_rng(self._key)
        self.included: NDArray[np.bool_] = source.random(count) < 0.5
        self._places = torch.from_numpy(np.sort(source.choice(total, count, replace=False)))
        self._law = law_of(recipe, count)
        self._begun = self._read_own([own_part(parameter) for parameter in parameters])

    @property
    def every_step(self) -> NDArray[np.float64]:
        """Each canary's log-likelihood ratio of all released gradients, for being included versus not."""
        return self._law.scores()

    def unit(self, clip_norm: float) -> float:
        """A canary's entry in a step's gradient, which is divided by the expected batch size like all gradients."""
        return _RELATIVE_NORM * clip_norm / self._batch_size

    def add(self, gradients: Sequence[Tensor], clip_norm: float, step: int, batches: BatchSource | None = None) -> None:
        """Add the canaries that take part in ``step`` to the sums ``gradients``, before noise.

        ``batches`` are those of the records. The count that an adaptive clip norm follows is unchanged, as a gradient
        of exactly the clip norm adds 0 to it.
        """
        amounts = torch.from_numpy(self._law.amounts(step, self._coins, batches) * self.included)
        taking_part = amounts != 0
        chosen, added = self._places[taking_part], self.unit(clip_norm) * amounts[taking_part]
        for gradient, inside, begin in _tensors_with_places(gradients, self._own, chosen):
            gradient.view(-1)[(chosen[inside] - begin).to(gradient.device)] += added[inside].to(gradient)

    def observe(self, gradients: Sequence[Tensor], clip_norm: float, step: int) -> None:
        """Record the canaries' entries of the released ``gradients`` of ``step``, which include noise."""
        self._law.observe(step, self._read_own(gradients) / self.unit(clip_norm))

    def end(self, parameters: Sequence[nn.Parameter]) -> NDArray[np.float64]:
        """How far each canary's weight moved against its gradient, as descent moves it; ``parameters`` are whole."""
        return self._begun - np.asarray(self._read(parameters, self._whole).numpy(), dtype=np.float64)

    def tensors(self) -> dict[str, Tensor]:
        """What an interrupted run needs to continue."""
        arrays = {"included": self.included, "begun": self._begun}
        kept = {
            "places": self._places,
            "key": torch.from_numpy(self._key.copy()),
            **{name: torch.from_numpy(np.asarray(value, np.float64)) for name, value in arrays.items()},
            **self._law.tensors(),
        }
        return {_PREFIX + name: value for name, value in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from ``tensors`` if they hold a saved state. Raises InputError if an older privctl saved it."""
        own_tensors = {
            name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)
        }
        if own_tensors and "key" not in own_tensors:
            raise InputError("the saved canary gradients are an older privctl's; begin the run again")
        if own_tensors:
            self._places = own_tensors["places"].cpu()
            self._key = own_tensors["key"].cpu().numpy().copy()
            self.included = own_tensors["included"].cpu().numpy() > 0
            self._begun = own_tensors["begun"].cpu().numpy().copy()
            self._law.restore(own_tensors)

    def _coins(self, number: int) -> np.random.Generator:
        """The generator of ``number``, under a saved key so that a resumed run draws the same numbers."""
        return np.random.default_rng([*self._key, 1 + number])

    def _read_own(self, tensors: Sequence[Tensor]) -> NDArray[np.float64]:
        """The canaries' entries of ``tensors``, which may be sharded over processes."""
        values = self._read(tensors, self._own)
        self._together.all_reduce([values])  # 0 in the processes that do not hold the entry
        return np.asarray(values.numpy(), dtype=np.float64)

    def _read(self, tensors: Sequence[Tensor], ranges: Sequence[tuple[int, int]]) -> Tensor:
        values = torch.zeros(len(self._places), dtype=torch.float64)
        for tensor, inside, begin in _tensors_with_places(tensors, ranges, self._places):
            positions = (self._places[inside] - begin).to(tensor.device)
            values[inside] = tensor.detach().reshape(-1)[positions].double().cpu()
        return values


def _ranges(parameters: Sequence[nn.Parameter], *, whole: bool) -> Iterator[tuple[int, int]]:
    """Each parameter's offset among all entries and its size, ``whole`` or of this process's shard."""
    begin = 0
    for parameter in parameters:
        size = parameter.numel()
        if whole:
            yield begin, size
        else:
            row = size // max(1, len(parameter)) if parameter.dim() else size
            yield begin + first_row(parameter) * row, own_part(parameter).numel()
        begin += size


def _tensors_with_places(
    tensors: Sequence[Tensor], ranges: Sequence[tuple[int, int]], places: Tensor
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Each of ``tensors`` that holds some of ``places``, a mask of those places, and where its range begins."""
    for tensor, (begin, size) in zip(tensors, ranges, strict=True):
        inside = (places >= begin) & (places < begin + size)
        if bool(inside.any()):
            yield tensor, inside, begin
