"""Measures the noise between two checkpoints tensor by tensor, in one pass over both that also computes digests.

Under the report's claim, the deviates are independent and N(0, 1). The tests share the level ``LEVEL`` (Bonferroni):
the mean, the standard deviation and the shape (Kolmogorov-Smirnov) of each tensor's noise, and the correlation of every
two stretches. A test that does not reject proves nothing, so the verdict is then CONSISTENT.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from privctl.domain.progress import Advance, silent
from privctl.storage.digest import TensorHasher
from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.values import VIEWS, Floats, count_off_grid, deviates, numbers
from verify.laws.common import chi_square_tails, kolmogorov_tail, normal_below, normal_quantile

#: Probability that noise as claimed is rejected, over all tests of one checkpoint.
LEVEL = 1e-6
#: The tests that share it: change, mean, deviation and shape of each tensor; deviation of all together; and reuse.
_TESTS = 6
#: Bytes read from each file at a time; deviates kept of each tensor; and first deviates of a stretch that are compared.
_CHUNK = 4 << 20
_SAMPLE, _HEAD = 8192, 512
_MOST_HEADS = 4096
_LEAST_COMPARED = 64
#: The largest relative spacing of neighbouring weights.
_GRAIN = {"F64": 2.0**-52, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
#: The absolute spacing next to 0, if it is relevant.
_LEAST_GRAIN = {"F16": 2.0**-24}


@dataclass(slots=True)
class TensorNoise:
    """The noise measured in one tensor: sums of differences over all its weights, and deviates of a sample.

    ``astray`` counts weights that are not on the ``grid``, which is 0 if sums were not rounded to a grid.
    """

    name: str
    dtype: str
    elements: int
    changed: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    astray: int = 0
    grid: float = 0.0
    deviates: list[Floats] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean of the differences, in the weights' units."""
        return self.total / self.elements if self.elements else 0.0

    @property
    def stddev(self) -> float:
        """The root mean square of the differences, in the weights' units, including rounding of the stored weights."""
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def sample(self) -> Floats:
        """A sample of deviates that is spread evenly over the tensor."""
        return np.concatenate(self.deviates) if self.deviates else np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNoise:
    """The noised tensors, those without noise that changed (``touched``), missing ones, and both files' digests."""

    noised: tuple[TensorNoise, ...]
    touched: tuple[str, ...]
    missing: tuple[str, ...]
    heads: tuple[tuple[str, Floats], ...]
    before: TensorHasher | None
    after: TensorHasher


def measure(
    before: SafetensorsFile,
    after: SafetensorsFile,
    stddev: float,
    untouched: Sequence[str],
    advance: Advance = silent,
    grid: float | None = None,
) -> CheckpointNoise:
    """Read both files once from front to back and compare them; ``untouched`` names tensors without noise.

    If sums were rounded to a ``grid``, every noised weight is checked to lie on it. The digest of ``before`` is None if
    its tensors are in another order.
    """
    old = {tensor.name: tensor for tensor in before.tensors}
    untouched_names = frozenset(untouched)
    same_layout = [_tensor_kind(t) for t in before.tensors] == [_tensor_kind(t) for t in after.tensors]
    walk = _Sums(
        stddev=stddev, before=TensorHasher(_header(before)) if same_layout else None, after=TensorHasher(_header(after))
    )
    for tensor in after.tensors:
        matching = old.get(tensor.name)
        if matching is not None and _tensor_kind(matching) != _tensor_kind(tensor):
            matching = None
        is_untouched = tensor.name in untouched_names or tensor.dtype not in VIEWS
        noise = TensorNoise(name=tensor.name, dtype=tensor.dtype, elements=tensor.elements, grid=grid or 0.0)
        changed = False
        for start, old_part, new_part in _chunks(before, after, matching, tensor):
            walk.digest(old_part, new_part)
            if matching is not None and is_untouched:
                changed = changed or old_part != new_part
            elif matching is not None:
                walk.take(noise, old_part, new_part, start, tensor.size)
            advance(len(old_part) + len(new_part))
        walk.finish(matching, tensor)
        if matching is None:
            walk.missing.append(tensor.name)
        elif not is_untouched:
            walk.noised.append(noise)
        elif changed:
            walk.touched.append(tensor.name)
    return CheckpointNoise(
        noised=tuple(walk.noised), touched=tuple(walk.touched), missing=tuple(walk.missing), heads=tuple(walk.heads),
        before=walk.before, after=walk.after,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Sums:
    """The state that accumulates while both files are read."""

    stddev: float
    before: TensorHasher | None
    after: TensorHasher
    noised: list[TensorNoise] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    heads: list[tuple[str, Floats]] = field(default_factory=list)
    coins: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def digest(self, old: memoryview, new: memoryview) -> None:
        """Add a chunk of both files to their digests; ``old`` is skipped if no digest of it is wanted."""
        if self.before is not None:
            self.before.update(old)
        self.after.update(new)

    def finish(self, matching: TensorInfo | None, tensor: TensorInfo) -> None:
        if self.before is not None and matching is not None:
            self.before.finish_tensor(matching)
        self.after.finish_tensor(tensor)

    def take(self, noise: TensorNoise, old: memoryview, new: memoryview, start: int, size: int) -> None:
        """Add one stretch of a tensor of ``size`` bytes to ``noise``, and keep its first deviates as a head."""
        room = max(256, _SAMPLE * len(new) // max(size, 1))
        head = _add_stretch(noise, old, new, self.stddev, self.coins, room)
        if len(self.heads) < _MOST_HEADS and len(head) >= _LEAST_COMPARED:
            self.heads.append((f"{noise.name} from weight {start // VIEWS[noise.dtype].itemsize}", head))


def _tensor_kind(tensor: TensorInfo) -> tuple[str, str, tuple[int, ...]]:
    return tensor.name, tensor.dtype, tensor.shape


def _header(file: SafetensorsFile) -> bytes:
    header = bytearray(file.header.data_start)
    file.read_into(0, memoryview(header))
    return bytes(header)


def _chunks(
    before: SafetensorsFile, after: SafetensorsFile, matching: TensorInfo | None, tensor: TensorInfo
) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yields the stretches of both tensors in order; empty for the old one if there is no matching tensor."""
    for start in range(0, tensor.size, _CHUNK):
        size = min(_CHUNK, tensor.size - start)
        new = memoryview(after.read(tensor, start, size))
        yield start, memoryview(before.read(matching, start, size)) if matching is not None else memoryview(b""), new


def _add_stretch(
    noise: TensorNoise, old: memoryview, new: memoryview, stddev: float, coins: np.random.Generator, room: int
) -> Floats:
    """Add one stretch to ``noise`` and return the deviates of its first weights."""
    view = VIEWS[noise.dtype]
    before, after = np.frombuffer(old, view), np.frombuffer(new, view)
    if noise.dtype == "BF16":
        start = numbers(before, noise.dtype)
        difference = numbers(after, noise.dtype) - start
    else:
        start = before
        difference = np.subtract(after, before, dtype=np.float64)
    if noise.grid:
        noise.astray += count_off_grid(after, noise.dtype, noise.grid)
    noise.changed += int(np.count_nonzero(before != after))
    noise.total += float(difference.sum())
    noise.squares += float(np.dot(difference, difference))
    noise.largest = max(noise.largest, float(start.max(initial=0)), -float(start.min(initial=0)))
    step = -(-len(before) // room)
    kept = slice(None, None, step)
    noise.deviates.append(
        deviates(before[kept], after[kept], noise.dtype, stddev, coins.random(-(-len(before) // step)), noise.grid)
    )
    count = min(_HEAD, len(before))
    return deviates(before[:count], after[:count], noise.dtype, stddev, coins.random(count), noise.grid)


def complaints(parts: Sequence[CheckpointNoise], stddev: float, tied: Sequence[Sequence[str]] = ()) -> list[str]:
    """One sentence per way in which the noise contradicts the claim, naming the tensors; empty if no test rejects.

    ``stddev`` is the reported one; ``tied`` lists groups of tensors that were to get the same noise.
    """
    tensors = [tensor for part in parts for tensor in part.noised if tensor.elements]
    sentences = [f"tensor {name!r} was to stay as it was, but changed" for part in parts for name in part.touched]
    sentences += [f"tensor {name!r} is not in the parent in this shape" for part in parts for name in part.missing]
    level = LEVEL / _TESTS / max(len(tensors), 1)
    sentences += [
        f"{tensor.astray} of {tensor.elements} weights of tensor {tensor.name!r} are no points of the grid reported: "
        "their low bits may show the weights before noise"
        for tensor in tensors
        if tensor.astray
    ]
    forgotten = {t.name: t for t in tensors if not t.changed and _would_show(t, stddev, level)}
    sentences += [f"tensor {name!r} got no noise: it equals its parent's" for name in forgotten]
    for tensor in tensors:
        if tensor.name not in forgotten:
            sentences += _tensor_complaints(tensor, stddev, level)
    if not sentences:
        sentences += _pooled_complaints(tensors)
    heads = [head for part in parts for head in part.heads]
    return [*sentences, *_reuse_complaints(heads, tied, set(forgotten))]


def _would_show(tensor: TensorNoise, stddev: float, level: float) -> bool:
    """Whether noise would have changed at least one weight despite rounding, except with probability ``level``.

    A weight stays the same if the noise is less than half the distance to its neighbours.
    """
    spacing = max(tensor.largest * _GRAIN[tensor.dtype], _LEAST_GRAIN.get(tensor.dtype, 0.0), 2 * tensor.grid)
    return math.erf(spacing / stddev / math.sqrt(8)) ** tensor.elements < level


def _tensor_complaints(tensor: TensorNoise, stddev: float, level: float) -> Iterator[str]:
    sample, count = tensor.sample, len(tensor.sample)
    if count == 0:
        return
    if not np.isfinite(sample).all():
        yield f"tensor {tensor.name!r} holds weights that are not finite"
        return
    squares = float(np.dot(sample, sample))
    if tensor.dtype in ("F32", "F64") and tensor.largest * 2.0**-23 < 1e-4 * stddev:
        # Rounding is negligible, so all weights are used rather than the sample alone.
        # The grid adds the variance of a uniform distribution over a cell.
        spread = math.hypot(stddev, tensor.grid / math.sqrt(12))
        count, squares = tensor.elements, tensor.squares / spread / spread
        mean = tensor.total / stddev / math.sqrt(count)
    else:
        mean = float(sample.sum()) / math.sqrt(count)
    if 2 * normal_below(-abs(mean)) < level:
        yield f"tensor {tensor.name!r}: its noise has mean {mean / math.sqrt(count) * stddev:.4g}, which is not 0"
    if 2 * min(chi_square_tails(squares, count)) < level:
        ratio = math.sqrt(squares / count)
        yield (
            f"tensor {tensor.name!r}: its noise has standard deviation {ratio * stddev:.6g}, {ratio:.4g} times the "
            f"{stddev:.6g} reported"
        )
    elif count >= 8 and (shape := _kolmogorov(sample)) < level:
        yield f"tensor {tensor.name!r}: its noise is not Gaussian (p = {shape:.2g})"


def _kolmogorov(sample: Floats) -> float:
    ordered = normal_below(np.sort(sample))
    ranks = np.arange(len(sample) + 1) / len(sample)
    distance = max(float((ranks[1:] - ordered).max()), float((ordered - ranks[:-1]).max()))
    return kolmogorov_tail(distance, len(sample))


def _pooled_complaints(tensors: Sequence[TensorNoise]) -> Iterator[str]:
    """Tests all tensors together, which detects faults that no small tensor reveals on its own."""
    if not tensors:
        return
    sample = np.concatenate([tensor.sample for tensor in tensors])
    squares = float(np.dot(sample, sample))
    if 2 * min(chi_square_tails(squares, len(sample))) < LEVEL / _TESTS:
        yield f"all tensors together: the noise is {math.sqrt(squares / len(sample)):.6g} times what is reported"


def _reuse_complaints(
    heads: Sequence[tuple[str, Floats]], tied: Sequence[Sequence[str]], without: set[str]
) -> Iterator[str]:
    """Yields a sentence for each pair of stretches with the same noise, whose products do not average out."""
    heads = [(name, head) for name, head in heads if name.rpartition(" from weight ")[0] not in without]
    if len(heads) < 2:
        return
    lengths = np.array([len(head) for _, head in heads])
    table = np.zeros((len(heads), _HEAD))
    for row, (_, head) in zip(table, heads, strict=True):
        row[: len(head)] = np.clip(head, -6, 6)
    pairs = len(heads) * (len(heads) - 1) / 2
    limit = float(normal_quantile(LEVEL / 2 / _TESTS / pairs)) * 1.5  # because sums of products are not quite normal
    groups: Mapping[str, int] = {name: i for i, group in enumerate(tied) for name in group}
    shown = 0
    for i in range(len(heads)):
        scores = table[i + 1 :] @ table[i] / np.sqrt(np.minimum(lengths[i], lengths[i + 1 :]))
        for j in np.flatnonzero(np.abs(scores) > limit) + i + 1:
            names = [heads[k][0].rpartition(" from weight ")[0] for k in (i, j)]
            if names[0] != names[1] and groups.get(names[0], -1) == groups.get(names[1], -2):
                continue
            yield f"{heads[i][0]!r} and {heads[j][0]!r} got the same noise: one can be taken off with the other"
            shown += 1
            if shown == 5:
                return
