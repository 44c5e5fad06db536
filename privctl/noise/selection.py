"""Which tensors of a checkpoint get noise, which are left unchanged, and the assumptions behind it."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from blake3 import blake3

from privctl.domain.errors import CommandError, InputError
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.noise.integers import Integers
from privctl.noise.weight_noise import FLOAT_VIEWS, has_nan
from privctl.storage.header import INTEGER_DTYPES, TensorInfo
from privctl.storage.reader import Checkpoint, SafetensorsFile

_BLOCK = 1 << 20
_SAMPLE = 4096
#: Statistics of batch normalisation are averages over the data, which gradient clipping does not bound.
BATCH_STATISTICS = ("running_mean", "running_var")

#: The bytes of the number 1 in each format that can take noise.
_ONES = {
    "F16": b"\x00\x3c",
    "BF16": b"\x80\x3f",
    "F32": struct.pack("<f", 1),
    "F64": struct.pack("<d", 1),
}

#: The name of the assumption that half-precision weights need.
ROUNDING = "unrounded-weights"
#: Half-precision formats.
_HALF = frozenset({"F16", "BF16"})

_INTEGER = "integer type"
_EXCLUDED = "left out by --include or --exclude"
_BASE = "equal to the public base"
_INITIAL = "initial value of a statistic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The decision for every tensor of a checkpoint.

    ``streams`` maps each tensor that gets noise to its noise stream, which tied tensors share; ``untouched`` maps the
    others to the reason. ``dimension`` counts the weights that get noise, tied ones once.
    """

    streams: Mapping[str, int]
    untouched: Mapping[str, str]
    tied: Sequence[Sequence[str]]
    dimension: int
    assumptions: tuple[Assumption, ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The tensors that patterns left alone."""
        return tuple(name for name, reason in self.untouched.items() if reason == _EXCLUDED)


@dataclass(frozen=True, slots=True)
class _Located:
    file: SafetensorsFile
    tensor: TensorInfo

    def blocks(self) -> Iterator[bytearray]:
        """The tensor's bytes, block by block; the buffer is reused."""
        start = self.file.header.data_start + self.tensor.begin
        buffer = bytearray(min(_BLOCK, self.tensor.size))
        for position in range(0, self.tensor.size, _BLOCK):
            del buffer[self.tensor.size - position :]
            self.file.read_into(start + position, memoryview(buffer))
            yield buffer


def select(
    checkpoint: Checkpoint,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    base: Checkpoint | None = None,
) -> Selection:
    """Decide for every tensor of ``checkpoint`` whether it gets noise; patterns are shell globs on whole names.

    Tensors equal to those of the public ``base`` get none. Raises CommandError for a pattern that matches nothing, if
    nothing is left to add noise to, or if a tensor left out equals one that gets noise; InputError for a dtype that
    cannot take noise, including quantized weights, for NaN in a tensor that gets no noise, and for batch statistics.
    """
    located = {tensor.name: _Located(file, tensor) for file, tensor in checkpoint.tensors()}
    _check_patterns((*include, *exclude), located)
    public = {tensor.name: _Located(file, tensor) for file, tensor in base.tensors()} if base else {}
    untouched: dict[str, str] = {}
    chosen: dict[str, _Located] = {}
    integers = Integers.read(checkpoint)
    for name, item in located.items():
        integer = item.tensor.dtype in INTEGER_DTYPES
        fault = integers.fault(item.file, item.tensor) if integer else None
        if integer and fault is None:
            untouched[name] = _INTEGER
        elif not _is_selected(name, include, exclude):
            _check_not_nan(item)
            untouched[name] = _EXCLUDED
        elif name in public and _equal(item, public[name]):
            _check_not_nan(item)
            untouched[name] = _BASE
        elif _is_never_updated(item):
            untouched[name] = _INITIAL
        elif fault is not None:
            raise InputError(
                f"tensor {name!r} is {item.tensor.dtype} and {fault}; noise cannot be added to integers: dequantize "
                "the model first, or --exclude the tensor if nothing in it was learned from the data"
            )
        else:
            _check_noisable(item.tensor)
            chosen[name] = item
    if not chosen:
        raise CommandError(
            f"nothing in {checkpoint.root} is left to add noise to; loosen --include, --exclude or --base"
        )
    _check_no_copies({name: located[name] for name, why in untouched.items() if why == _EXCLUDED}, chosen)
    groups, lookalikes = _tied_groups(chosen)
    streams = {name: stream for stream, group in enumerate(groups) for name in group}
    return Selection(
        streams=streams,
        untouched=untouched,
        tied=[group for group in groups if len(group) > 1],
        dimension=sum(chosen[group[0]].tensor.elements for group in groups),
        assumptions=(*_assumptions(untouched), *_storage_assumptions(chosen, groups, lookalikes)),
    )


def untouched_counts(selection: Selection) -> Mapping[str, int]:
    """The number of tensors left unchanged, by reason."""
    return Counter(selection.untouched.values())


def _is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    if include and not any(fnmatchcase(name, pattern) for pattern in include):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in exclude)


def _check_patterns(patterns: Iterable[str], names: Iterable[str]) -> None:
    all_names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in all_names):
            raise CommandError(f"the pattern {pattern!r} matches no tensor; privctl inspect lists their names")


def _check_noisable(tensor: TensorInfo) -> None:
    if tensor.name.rsplit(".", 1)[-1] in BATCH_STATISTICS:
        raise InputError(
            f"tensor {tensor.name!r} holds batch statistics, which gradient clipping does not bound; "
            "train with --norm frozen and give the weights it began with as --base, or --exclude it and accept that no "
            "guarantee is left"
        )
    if tensor.dtype not in FLOAT_VIEWS:
        raise InputError(
            f"tensor {tensor.name!r} is {tensor.dtype}, which cannot take noise "
            f"(only {', '.join(FLOAT_VIEWS)}); convert the model or --exclude it"
        )


def _check_not_nan(item: _Located) -> None:
    """Raise InputError for NaN in a tensor that is released unchanged; infinity is allowed, as masks contain it."""
    dtype = item.tensor.dtype
    view = FLOAT_VIEWS.get(dtype)
    if view is not None and any(has_nan(np.frombuffer(block, view), dtype) for block in item.blocks()):
        raise InputError(
            f"tensor {item.tensor.name!r}, which would be released without noise, holds NaN; repair the model"
        )


def _is_never_updated(item: _Located) -> bool:
    """Whether it is a batch normalisation statistic with its initial value, a mean of 0 or a variance of 1."""
    last = item.tensor.name.rsplit(".", 1)[-1]
    if last not in BATCH_STATISTICS or item.tensor.dtype not in FLOAT_VIEWS or not _is_constant(item):
        return False
    width = item.tensor.size // max(item.tensor.elements, 1)
    one = _ONES[item.tensor.dtype]
    return bytes(item.file.read(item.tensor, 0, width)) == (one if last == "running_var" else bytes(len(one)))


def _check_no_copies(left_out: Mapping[str, _Located], chosen: Mapping[str, _Located]) -> None:
    """Raise CommandError if a tensor left out equals one that gets noise, which could then be subtracted."""
    candidates = _by_beginning(chosen) if left_out else {}
    contents: dict[tuple[str, tuple[int, ...], bytes], dict[bytes, str]] = {}
    for name, item in left_out.items():
        beginning = _beginning(item)
        if beginning not in candidates or _is_constant(item):
            continue
        if beginning not in contents:
            contents[beginning] = {_content(chosen[other]): other for other in reversed(candidates[beginning])}
        other = contents[beginning].get(_content(item))
        if other is not None:
            raise CommandError(
                f"tensor {name!r} is left out but equals {other!r}, whose noise it would give away; "
                "exclude both or neither"
            )


def _equal(left: _Located, right: _Located) -> bool:
    """Whether dtype, shape and bytes are equal; stops at the first difference."""
    if (left.tensor.dtype, left.tensor.shape) != (right.tensor.dtype, right.tensor.shape):
        return False
    return all(a == b for a, b in zip(left.blocks(), right.blocks(), strict=True))


def _tied_groups(chosen: Mapping[str, _Located]) -> tuple[list[list[str]], bool]:
    """Groups of tied tensors (same dtype, shape and bytes), and whether there were equal constant tensors.

    Trained weights do not agree to the last bit unless they are one parameter. Constant tensors (untrained biases,
    scales) may agree without being tied, so each gets its own noise. Tensors that begin with the same bytes are
    compared by digest, so that each is read at most once more, however many there are.
    """
    lookalikes = False
    groups: list[list[str]] = []
    for names in _by_beginning(chosen).values():
        by_content: dict[bytes, list[str]] = {}
        for name in names:
            content = _content(chosen[name]) if len(names) > 1 else b""
            group = by_content.get(content)
            if group is None:
                by_content[content] = group = [name]
                groups.append(group)
            elif _is_constant(chosen[name]):
                lookalikes = True
                groups.append([name])
            else:
                group.append(name)
    return groups, lookalikes


def _by_beginning(items: Mapping[str, _Located]) -> Mapping[tuple[str, tuple[int, ...], bytes], list[str]]:
    """Names by dtype, shape and first bytes."""
    names: dict[tuple[str, tuple[int, ...], bytes], list[str]] = defaultdict(list)
    for name, item in items.items():
        names[_beginning(item)].append(name)
    return names


def _beginning(item: _Located) -> tuple[str, tuple[int, ...], bytes]:
    return item.tensor.dtype, item.tensor.shape, bytes(item.file.read(item.tensor, 0, min(_SAMPLE, item.tensor.size)))


def _content(item: _Located) -> bytes:
    """A digest of the tensor's bytes."""
    digest = blake3()
    for block in item.blocks():
        digest.update(block)
    return digest.digest()


def _is_constant(item: _Located) -> bool:
    width = item.tensor.size // max(item.tensor.elements, 1)
    first: bytes | None = None
    for block in item.blocks():
        first = first or bytes(block[:width])
        if block != first * (len(block) // width):
            return False
    return True


def _storage_assumptions(
    chosen: Mapping[str, _Located], groups: Sequence[Sequence[str]], lookalikes: bool
) -> Iterator[Assumption]:
    """The assumptions needed because of how the weights are stored."""
    if any(len(group) > 1 for group in groups):
        yield Assumption(
            name="tied-tensors",
            statement="tensors with the same bytes are one parameter, whatever the data",
            state=AssumptionState.ASSERTED,
        )
    if lookalikes:
        yield Assumption(
            name="separate-tensors",
            statement="tensors that hold the same constant are parameters of their own",
            state=AssumptionState.ASSERTED,
        )
    half = sorted({item.tensor.dtype for item in chosen.values()} & _HALF)
    if half:
        yield Assumption(
            name=ROUNDING,
            statement=f"the weights were not rounded to {' or '.join(half)} by or after the training that the facts "
            "describe: rounding can move them much farther than the sensitivity",
            state=AssumptionState.ASSERTED,
        )


def _assumptions(untouched: Mapping[str, str]) -> Iterator[Assumption]:
    reasons = set(untouched.values())
    statements = {
        _INTEGER: (
            "integer-tensors",
            "tensors of integer type are index tables, masks and counters; none holds trained weights",
        ),
        _EXCLUDED: ("excluded-tensors", "tensors left out by --include or --exclude do not depend on the data"),
        _BASE: ("frozen-tensors", "tensors equal to the public base would be so whatever the data"),
        _INITIAL: (
            "initial-statistics",
            "batch normalisation's statistics that are 0 and 1 were never computed, whatever the data",
        ),
    }
    for reason, (name, statement) in statements.items():
        if reason in reasons:
            yield Assumption(name=name, statement=statement, state=AssumptionState.ASSERTED)
    released = (name for name, reason in untouched.items() if reason not in (_BASE, _INITIAL))
    if any(name.rsplit(".", 1)[-1] in BATCH_STATISTICS for name in released):
        yield Assumption(
            name="batch-statistics",
            statement="no statistic of the data is released without noise",
            state=AssumptionState.VIOLATED,
        )
