"""Tests on the first batches that no row of a collated batch, and no row's loss, depends on other records.

A record may change what it adds to the sum itself, but not what others add. A count or mean over the batch in the loss,
a network that scales its inputs by those of the batch, and mixup break this, and autograd's graph need not show it. So
a batch is computed again with either half of its records replaced by one of the others: what is computed from the
remaining ones must stay the same. So must the losses of a batch that is computed after such a changed one, and those of
its shorter records where these are padded less far alone. What cannot be computed twice alike, or draws other random
numbers for other records, is not judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from privctl.domain.errors import InputError
from privctl.integrations.carried_state import CarriedState
from privctl.integrations.drawn_rows import DrawnRows
from privctl.integrations.padding import FAULT, Shorter, has_same, shorter_alone
from privctl.train.clipping.passes import gradients_set_aside
from privctl.train.clipping.use import WithoutDraws, random_states, tensors_in
from privctl.train.contribution.network_state import fixed_seed, secret_seed

#: Batches of fewer examples are not tested, and no more batches than this. One may seem dependent, as a tensor that all
#: records share may have as many rows as one batch, but not as several of different sizes.
_LEAST, _MOST_BATCHES = 4, 3
#: What equal losses may differ by, relative to a loss and to the mean: in batches of one size, where something was in
#: half precision, and in batches of several sizes.
_TOLERANCE, _TOLERANCE_REDUCED, _TOLERANCE_SIZES = 1e-5, 1e-3, 5e-2
_CPU = torch.device("cpu")

_Rows = TypeVar("_Rows", slice, list[int])


class _Trial(NamedTuple):
    """The tensors that a computation gave, and the states of the random generators after it."""

    values: list[Tensor]
    random: list[bytes]


class Neighbours:
    """The tests of one training of the ``trainable`` parameters, on examples of ``run`` consecutive rows each."""

    def __init__(self, run: int, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
        self._run, self._model, self._trainable = run, model, trainable
        self._before: CarriedState | None = None
        self._shorter: Shorter | None = None  # of the latest batch
        #: By test, the numbers of rows of the batches that seemed dependent; and how many more batches to test.
        self._suspected: dict[str, list[int]] = {}
        self._remaining: dict[str, int] = {}

    def require_own_rows(self, collate: Callable[[list[Any]], Any], records: Sequence[Any]) -> None:
        """Raise InputError if ``collate`` makes rows that depend on several of the ``records`` of a batch."""
        count = len(records)
        self._shorter = None
        if not self._wanted("collate", count):
            return

        def collated(places: Sequence[int]) -> list[Tensor]:
            # A collate function may take fields out of a record.
            chosen = [records[place] for place in places]
            batch = collate([copy(record) if isinstance(record, MutableMapping) else record for record in chosen])
            return [tensor.detach().cpu() for tensor in _by_row(batch, len(chosen))]

        halves = self._halves(count)
        replaced = [(kept, partial(collated, _places(count, kept, self._run).tolist())) for kept in halves]
        if self._judged("collate", _depends(partial(collated, range(count)), replaced, _has_rows, _CPU), count):
            raise InputError(
                "the loader's collate_fn gives a record other rows when the other records of its batch are replaced, "
                "so that one record changes what several add; give one that does not mix records (as mixup does), nor "
                "scale them by what is in the batch"
            )
        with same_draws(_CPU, secret_seed()), suppress(Exception):  # of the user's code, which may not take half of it
            self._shorter = shorter_alone(collated, count) if self._run == 1 else None

    def before(self, losses_of: Callable[[], Tensor], rows: int) -> None:
        """Take down what ``losses_of`` carries from earlier calls; call this before each pass of ``rows`` rows."""
        self._before = CarriedState(losses_of, self._model) if self._wanted("losses", rows) else None

    def require_own_losses(
        self, losses_of: Callable[[], Tensor], batch: Any, drawn: DrawnRows, *, reduced: bool
    ) -> None:
        """Raise InputError if ``losses_of`` (n,) computes the losses of examples from several examples of ``batch``.

        The same if it computes them from the rows of earlier batches. These are the losses of the current rows of those
        ``drawn``. Gradients of parameters stay as they are, and so does what is carried from call to call. ``reduced``
        means that something is in half precision.
        """
        before, self._before = self._before, None
        if before is None:
            return
        after = CarriedState(losses_of, self._model)
        try:
            self._require_own_losses(losses_of, batch, drawn, before, reduced=reduced)
        finally:
            after.restore()

    def _require_own_losses(
        self, losses_of: Callable[[], Tensor], batch: Any, drawn: DrawnRows, before: CarriedState, *, reduced: bool
    ) -> None:
        rows = drawn.current
        count = rows.stop - rows.start
        tensors = list(_by_row(batch, drawn.rows))
        if rows.start or not tensors or not self._wanted("losses", count):  # a batch is tested in its first piece
            return
        device = next(iter(self._trainable.values())).device

        def losses(mode: AbstractContextManager[object]) -> list[Tensor]:
            with gradients_set_aside(self._trainable), torch.enable_grad(), WithoutDraws(), mode:
                found = losses_of()
            return [found.detach().double().cpu().repeat_interleave(self._run)]

        plain, halves = partial(losses, nullcontext()), self._halves(count)
        modes = [(kept, _Replacing(_replaced(tensors, rows, _places(count, kept, self._run)))) for kept in halves]
        replaced = [(kept, partial(losses, mode)) for kept, mode in modes]
        tolerance = _TOLERANCE_REDUCED if reduced else _TOLERANCE
        dependent = _depends(plain, replaced, partial(_has_losses, tolerance), device)
        if self._judged("losses", dependent, drawn.rows):
            raise InputError(
                "losses of rows change when other rows of the batch are replaced, so that one record changes what "
                "several add to the sum; compute each loss from its own row: divide by no count or mean over the "
                "batch, scale inputs by nothing computed from the batch, and mix no rows (as mixup does)"
            )
        seed, (first, mode) = secret_seed(), modes[0]

        def second_losses(mode: AbstractContextManager[object]) -> list[Tensor]:
            before.restore()
            with same_draws(device, seed):
                losses(mode)
            return plain()

        every = [(slice(0, count), partial(second_losses, mode))]
        if _depends(partial(second_losses, nullcontext()), every, partial(_has_losses, tolerance), device):
            raise InputError(
                "losses change when rows of the batch before are replaced: the model or the loop keeps something of a "
                "batch (such as a running mean or its latest output) and computes the next losses from it, so that one "
                "record changes what records of later steps add; carry nothing of the rows from batch to batch"
            )
        fewer = [(first, partial(losses, _Replacing(_cut(tensors, rows, first.stop))))]
        if self._judged("sizes", _depends(plain, fewer, _has_fewer, device), drawn.rows):
            raise InputError(
                "losses of rows change when the batch has fewer rows, so that one record changes what several add to "
                "the sum; divide by no number of rows: private steps divide by the expected batch size themselves"
            )
        shorter = self._shorter if (rows.start, rows.stop) == (0, drawn.rows) else None
        if shorter is None:
            return
        alone = [(shorter.kept, partial(losses, _Replacing(shorter.pairs)))]
        if self._judged("padding", _depends(plain, alone, has_same, device), drawn.rows):
            raise InputError(FAULT)

    def _wanted(self, test: str, rows: int) -> bool:
        return self._remaining.get(test, _MOST_BATCHES) > 0 and rows >= _LEAST * self._run

    def _halves(self, rows: int) -> tuple[slice, slice]:
        """The rows of either half of the examples."""
        half = rows // self._run // 2 * self._run
        return slice(0, half), slice(half, rows)

    def _judged(self, test: str, dependent: bool, rows: int) -> bool:
        """Whether several batches seemed ``dependent``, of which this one, of so many ``rows``, is the latest."""
        self._remaining[test] = self._remaining.get(test, _MOST_BATCHES) - 1
        sizes = self._suspected.setdefault(test, [])
        sizes += [rows] if dependent else []
        return dependent and (len(set(sizes)) > 1 or len(sizes) == _MOST_BATCHES)


def _depends(
    plain: Callable[[], list[Tensor]],
    changed: Sequence[tuple[_Rows, Callable[[], list[Tensor]]]],
    has: Callable[[_Rows, Tensor, Tensor], bool],
    device: torch.device,
) -> bool:
    """Whether a ``changed`` computation is seen to lack rows of the ``plain`` one.

    ``has`` is asked about the rows that were kept, and about each tensor of both.
    """
    seed, computations = secret_seed(), [plain, *[compute for _, compute in changed], plain]
    try:
        trials = [_tried(each, device, seed) for each in computations]
        first, *others, last = trials
        if not _alike(first, last) or any(other.random != first.random for other in others):
            return False
        pairs = [
            (kept, own, seen)
            for (kept, _), other in zip(changed, others, strict=True)
            for own, seen in zip(first.values, other.values, strict=True)
        ]
        if all(has(*each) for each in pairs):
            return False
        # A draw from a generator of the user's may have differed by chance.
        again = [_tried(each, device, seed) for each in computations * 2]
        return all(_alike(*each) for each in zip(again, trials * 2, strict=True))
    except Exception:  # of the user's code, which may not be made for such a batch
        return False


def _tried(compute: Callable[[], list[Tensor]], device: torch.device, seed: int) -> _Trial:
    with same_draws(device, seed):
        values = compute()
        states = [state.numpy().tobytes() for state in random_states(device)]
        numbers = repr(np.random.get_state()) + repr(random.getstate())
        return _Trial(values, [*states, numbers.encode()])


@contextmanager
def same_draws(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, the global generators of torch, numpy and Python are seeded; afterwards they are what they were."""
    ours, arrays = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with fixed_seed(device, seed):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(arrays)


def _alike(a: _Trial, b: _Trial) -> bool:
    return len(a.values) == len(b.values) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=_TOLERANCE, atol=0, equal_nan=True)
        for x, y in zip(a.values, b.values, strict=True)
    )


def _places(rows: int, kept: slice, run: int) -> Tensor:
    """Which row to take for each of ``rows``: itself if it is ``kept``, or else one of the ``run`` first kept ones."""
    places: Tensor = kept.start + torch.arange(rows) % run
    places[kept] = torch.arange(kept.start, kept.stop)
    return places


def _has_rows(kept: slice, rows: Tensor, others: Tensor) -> bool:
    """Whether ``others`` has the ``kept`` rows of a tensor, or as many of its rows, as records may be sorted.

    Rows of another length, as padded texts may have, are not compared.
    """
    if rows.shape != others.shape or torch.equal(rows[kept], others[kept]):
        return True
    known = {row.numpy().tobytes() for row in others}
    return sum(row.numpy().tobytes() in known for row in rows) >= len(rows[kept])


def _has_losses(tolerance: float, kept: slice, losses: Tensor, others: Tensor) -> bool:
    """The same for losses, which may differ by rounding."""
    allowed = tolerance * (losses.abs() + losses.abs().mean())
    if bool(((losses[kept] - others[kept]).abs() <= allowed[kept]).all()):
        return True
    ordered = others.sort().values
    above = torch.searchsorted(ordered, losses).clamp(max=len(ordered) - 1)
    distances = [(ordered[place] - losses).abs() for place in (above, (above - 1).clamp(min=0))]
    return int((torch.minimum(*distances) <= allowed).sum()) >= len(losses[kept])


def _has_fewer(kept: slice, losses: Tensor, fewer: Tensor) -> bool:
    """Whether the losses of the ``kept`` rows alone are among ``losses``, up to what another size of a batch rounds."""
    return len(fewer) != len(losses[kept]) or _has_losses(_TOLERANCE_SIZES, kept, fewer, losses)


def _by_row(batch: Any, rows: int) -> Iterator[Tensor]:
    """The tensors in ``batch`` with a first dimension of ``rows`` that can only be its rows."""
    for tensor in tensors_in(batch):
        plain = tensor.layout is torch.strided and not tensor.is_nested
        if not plain or not tensor.dim() or len(tensor) != rows or tensor.shape[1:2] == (rows,):
            continue
        if tensor.dim() == 1 and not tensor.is_floating_point() and not int(tensor[0]) and _is_sorted(tensor):
            continue  # perhaps where each record begins, as an embedding bag has it
        yield tensor


def _is_sorted(values: Tensor) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def _replaced(tensors: Sequence[Tensor], rows: slice, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The ``tensors``, whole and cut to ``rows``, and the same with those at ``places`` of ``rows`` as their rows."""
    for tensor in tensors:
        other = tensor.detach().clone()
        other[rows] = tensor.detach()[rows][places.to(tensor.device)]
        yield from ((tensor, other), (tensor[rows], other[rows]))


def _cut(tensors: Sequence[Tensor], rows: slice, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The ``tensors``, whole and cut to ``rows``, and the same that end after the first ``count`` of ``rows``."""
    for tensor in tensors:
        yield from ((tensor, tensor[: rows.start + count]), (tensor[rows], tensor[rows][:count]))


class _Replacing(TorchFunctionMode):
    """Inside, torch's functions get the other tensor of ``pairs`` in place of one equal to the first.

    Tensors are equal if their values are, wherever the code has them from.
    """

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._pairs = list(pairs)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func`` with tensors replaced."""
        leaves, form = tree_flatten((args, dict(kwargs or {})))
        positional, named = tree_unflatten([self._other(each) for each in leaves], form)
        return func(*positional, **named)

    def _other(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.requires_grad:
            return leaf
        for given, other in self._pairs:
            if leaf.shape == given.shape and torch.equal(leaf.to(given.device, given.dtype), given):
                return other.to(leaf.device, leaf.dtype)
        return leaf
