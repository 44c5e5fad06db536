"""Weights moved along public directions by released numbers: replays the moves, and tests the numbers for noise.

Written independently of the trainer. For each update, a file keeps its step, its learning rate and the noisy numbers
that it released, one per direction. Together with the first weights and the public seed, these give the released
weights bit by bit, so nothing else affected them. The numbers are compared with the noise in three ways: they must lie
on the grid for its size, no vector of them may be larger than clipping and noise allow, and together they must not be
smaller than noise alone. Since the noise is independent of what it is added to, the square of each sum, given
everything before, is stochastically least if the signal is 0. So the sum of all squares is stochastically at least a
chi-squared variable.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.storage.arrays import read_arrays
from privctl.storage.reader import SafetensorsFile
from verify.files.places import located
from verify.laws.common import chi_square_quantiles
from verify.methods.dp_zo import ZerothOrderTraining
from verify.weights.settings import TrainingFacts, UncheckableError, UnstatedError
from verify.weights.start import Digest, Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Probability that an honest run is refuted, over all tests.
LEVEL = 1e-6
#: The most moves, of one weight along one direction each, that are replayed.
_MOST = 20_000_000_000
#: Binary digits of the largest weight of a tensor; and entries whose signs are generated at a time, a multiple of 128.
_DIGITS, _CHUNK = 22, 1 << 17
_ROLE, _DOMAIN = "numbers", b"privctl direction 1\0"
_STEP, _RATE, _NUMBERS = "numbers.step", "numbers.rate", "numbers.released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """For each update its step among those begun, its learning rate, and its ``released`` [updates, directions]."""

    steps: NDArray[np.int64]
    rates: NDArray[np.float64]
    released: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of a replay: sentences on what is ``wrong``, or else on what was checked."""

    wrong: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


def numbers_of(path: Path, report: PrivacyReport, stated: ZerothOrderTraining, digest: Digest) -> Numbers:
    """The numbers in the file that the report at ``path`` names.

    Raises UncheckableError if they are unavailable: UnstatedError if it names none, which only a search may.
    """
    named = [artifact for artifact in report.outputs if artifact.role == _ROLE]
    if len(named) != 1 and stated.search is None:
        raise UnstatedError("the report names no file of the numbers that moved the weights")
    if len(named) != 1:
        raise UncheckableError("a search keeps no numbers that moved the weights, so their noise was not looked for")
    place = located(path, named[0].path)
    if not os.path.isfile(place) or digest(place) != named[0].digest:
        raise UncheckableError("the numbers that moved the weights are not at hand, so their noise was not looked for")
    try:
        with SafetensorsFile(place) as file:
            arrays = read_arrays(file, {_STEP: "I64", _RATE: "F64"}, "released numbers")
            info = next((tensor for tensor in file.tensors if tensor.name == _NUMBERS), None)
            if info is None or info.dtype != "F64" or len(info.shape) != 2:
                raise UncheckableError("the file of numbers holds none")
            released = np.frombuffer(bytes(file.read(info)), "<f8").reshape(info.shape)
    except InputError as fault:
        raise UncheckableError(str(fault)) from None
    return Numbers(steps=arrays[_STEP], rates=arrays[_RATE], released=released)


def number_faults(numbers: Numbers, facts: TrainingFacts, stated: ZerothOrderTraining) -> Iterator[str]:
    """Yields one sentence for each way in which no run with these settings can have released the ``numbers``."""
    rows = (len(numbers.steps), len(numbers.rates), *numbers.released.shape)
    if rows != (facts.updates, facts.updates, facts.updates, stated.directions):
        yield f"the numbers kept are of {rows[0]} updates by {rows[3]} directions, and the report says otherwise"
        return
    last = stated.steps_begun or 0
    if (np.diff(numbers.steps) <= 0).any() or not 0 <= numbers.steps[0] <= numbers.steps[-1] < last:
        yield f"the numbers kept are not of different steps, in their order, of the {last} begun"
    if not np.allclose(numbers.rates, facts.rates, rtol=1e-9, atol=0):
        yield "the learning rates kept beside the numbers are not those of the report's schedule"
    if not np.isfinite(numbers.released).all():
        yield "not all numbers kept are finite"
        return
    yield from _wrong_noise(numbers.released, facts)


def _wrong_noise(released: NDArray[np.float64], facts: TrainingFacts) -> Iterator[str]:
    clip, stddev = facts.clip_norm or 0.0, facts.noise_multiplier * (facts.clip_norm or 0.0)
    grid = math.ldexp(1.0, math.frexp(stddev)[1] - 6)
    if astray := int(np.count_nonzero(np.remainder(released, grid))):
        yield (
            f"{astray} of {released.size} released numbers are no multiples of {grid:.6g}, onto which sums with noise "
            f"of {stddev:.6g} are rounded"
        )
    total = float((released**2).sum()) / stddev**2
    if total < chi_square_quantiles(LEVEL / 2, released.size)[0]:
        yield (
            f"the noise reported is not in the released numbers: their mean square is {total / released.size:.4g} of "
            "that of the noise alone, which sums with it cannot fall below by chance"
        )
    updates, directions = released.shape
    share = LEVEL / 4 / updates
    from scipy.stats import binom  # imported here because the import takes longer than most verifications

    examples = float(binom.isf(share, facts.examples, facts.sample_rate)) + 1
    most = (
        clip * examples + stddev * math.sqrt(chi_square_quantiles(share, directions)[1]) + grid * math.sqrt(directions)
    )
    largest = float(np.sqrt((released**2).sum(axis=1)).max())
    if largest > most:
        yield (
            f"a step released numbers of the norm {largest:.4g}, and examples clipped to {clip:g} with the noise "
            f"reported give {most:.4g} at most"
        )


def noise_sentence(numbers: Numbers, facts: TrainingFacts) -> str:
    """A sentence on how small the noise must be to be detected by the size of the numbers."""
    stddev = facts.noise_multiplier * (facts.clip_norm or 0.0)
    count = numbers.released.size
    ratio = float((numbers.released**2).mean()) / stddev**2
    sentence = (
        f"{counted(count, 'released number')} lie on the grid of the noise reported, and their mean square is "
        f"{ratio:.4g} of the noise's, whose size is the noise multiplier times the clip norm: others with the same "
        "product are not noticed here"
    )
    # With the same sums and a fraction s of the noise's variance, the mean square would be ratio - 1 + s.
    floor = chi_square_quantiles(LEVEL / 2, count)[0] / count
    if floor - (ratio - 1) <= 0:
        return f"{sentence}; by its size alone no lack of noise could be seen beside the sums of the batches"
    return (
        f"{sentence}; noise of less than {math.sqrt(max(0.0, floor - (ratio - 1))):.3g} of this size would be noticed"
    )


def replay(
    start: Start,
    output: Path,
    numbers: Numbers,
    facts: TrainingFacts,
    stated: ZerothOrderTraining,
) -> ReplayResult:
    """Replay the moves from ``start`` and compare with the file ``output``, for as many tensors as are affordable.

    If not all are, it is drawn which ones. Raises UncheckableError if nothing can be compared.
    """
    globs = stated.trained or ()
    names = sorted(n for n in start.parameters if not globs or any(fnmatch.fnmatchcase(n, glob) for glob in globs))
    with SafetensorsFile(output) as file:
        infos = {info.name: info for info in file.tensors}
        for name in names:
            if name not in infos or infos[name].dtype != "F32" or start.tensors[name].dtype != np.float32:
                raise UncheckableError(f"the tensor {name!r} was not kept as float32, in which moves repeat exactly")
        shapes = {name: start.tensors[name].size for name in names}
        room, made, wrong = _MOST // max(1, numbers.released.size), 0, []
        places = _sign_offsets(shapes)
        for index in np.random.default_rng().permutation(len(names)).tolist():
            name = names[index]
            if made + shapes[name] > room:
                continue
            made += shapes[name]
            moved = _moved(start.tensors[name], places[name], numbers, facts, stated)
            if not np.array_equal(moved.view(np.int32), np.frombuffer(file.read(infos[name]), "<i4")):
                wrong.append(name)
    if wrong:
        sentence = f"tensor {wrong[0]!r} is not what the first weights become by the released numbers"
        return ReplayResult(wrong=(sentence + (f", nor are {len(wrong) - 1} more" if len(wrong) > 1 else ""),))
    if not made:
        raise UncheckableError("every tensor takes more moves to make again than are made here")
    whole = sum(shapes.values())
    part = f"all {whole}" if made == whole else f"{made} of {whole}"
    return ReplayResult(
        sentences=(
            f"{part} trained weights are to the last bit what the first ones become by {numbers.released.size} "
            "released numbers along public directions, so nothing else reached them",
        )
    )


def _sign_offsets(sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The byte of a direction's keystream at which each tensor's signs begin, in the order of names."""
    places, begin = {}, 0
    for name in sorted(sizes):
        places[name] = begin
        begin += -(-sizes[name] // 8)
    return places


def _moved(
    first: NDArray[Any], offset: int, numbers: Numbers, facts: TrainingFacts, stated: ZerothOrderTraining
) -> NDArray[np.float32]:
    """A tensor (n,) after all updates; every operation is an IEEE 754 float32 operation, rounded once."""
    weights = np.array(first, dtype=np.float32).reshape(-1)
    key = hashlib.sha256(_DOMAIN + bytes.fromhex(stated.public_seed)).digest()
    share = facts.batch_size
    for step, rate, row in zip(numbers.steps.tolist(), numbers.rates.tolist(), numbers.released, strict=True):
        largest = float(np.abs(weights).max(initial=0.0))
        spacing = np.float32(math.ldexp(1.0, math.frexp(max(largest, stated.perturbation))[1] - _DIGITS))
        weights = np.rint(weights / spacing) * spacing + np.float32(0)
        if decay := rate * facts.weight_decay:
            weights *= np.float32(1 - decay)
        amounts = row * (rate / share / stated.directions)
        for direction, amount in enumerate(amounts.tolist()):
            _add_signs(weights, key, offset, step << 72 | direction << 40, np.float32(-amount))
    return weights


def _add_signs(weights: NDArray[np.float32], key: bytes, offset: int, counter: int, amount: np.float32) -> None:
    """Add ``amount`` times the signs to ``weights``; signs are AES-256-CTR keystream bits from byte ``offset`` on."""
    block, inside = divmod(offset, 16)
    stream = Cipher(algorithms.AES(key), modes.CTR((counter + block).to_bytes(16, "big"))).encryptor()
    stream.update(bytes(inside))
    for begin in range(0, len(weights), _CHUNK):
        part = weights[begin : begin + _CHUNK]
        bits = np.unpackbits(np.frombuffer(stream.update(bytes(-(-len(part) // 8))), np.uint8), bitorder="little")
        part += np.where(bits[: len(part)] == 1, amount, -amount)
