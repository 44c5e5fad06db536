"""The reference engine in tensor operations, for any device with 32-bit integers and double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from privctl.randomness.device.engine import ENOUGH, FOLLOWING, LANES, TILE, Place
from privctl.randomness.gridded import spacing

#: "expand 32-byte k" (RFC 8439, 2.3), as words.
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)

#: Tiles computed at a time: what fits a CPU's cache, and what takes about 250 MB on an accelerator.
_TILES = {"cpu": 256}
_TILES_ELSEWHERE = 4096

#: Returns the further words (FOLLOWING, 4, k) of pairs, given their block indices (k,) and numbers in the block (k,).
Follow = Callable[[Tensor, Tensor], Tensor]


class TensorEngine:
    """See ``NoiseEngine``."""

    name = "tensor operations"

    def words(self, key: Tensor, place: Place, first: int, count: int, lane: int = 0) -> Tensor:
        """See ``NoiseEngine``."""
        nonce = _nonce(place.tensor, lane)
        return _keystream(key, place.step, nonce, _numbers(first, count, key.device)).T.contiguous()

    def deviates(self, key: Tensor, place: Place, tiles: int) -> Tensor:
        """See ``NoiseEngine``."""
        return torch.cat([_tiles(key, place, start, stop) for start, stop in _stretches(0, tiles, key.device)])

    def release(self, flat: Tensor, key: Tensor, place: Place, offset: int, stddev: float) -> None:
        """See ``NoiseEngine``."""
        grid, end = spacing(stddev), offset + len(flat)
        for start, stop in _stretches(offset // TILE, -(-end // TILE), key.device):
            low, high = max(start * TILE, offset), min(stop * TILE, end)
            drawn = _tiles(key, place, start, stop)[low - start * TILE : high - start * TILE]
            piece = flat[low - offset : high - offset]
            piece.copy_(on_grid(piece.double(), stddev * drawn, grid))

    def release_joined(self, flat: Tensor, key: Tensor, step: int, tiles: Tensor, stddev: float) -> None:
        """See ``NoiseEngine``."""
        within, lanes = (torch.arange(size, device=key.device) for size in (TILE, LANES))
        noise = torch.full(
            (len(flat) + 1,), math.nan, dtype=torch.float64, device=key.device
        )  # the last entry takes what belongs to no element
        for first, end in _stretches(0, len(tiles), key.device):
            tensors, numbers, starts, lows, ends = tiles[first:end, :, None].unbind(1)
            blocks = (numbers * LANES + lanes).view(-1)
            drawn = _tile_deviates(key, step, tensors.int().expand(-1, LANES).reshape(-1), blocks)
            places = starts + within
            places = torch.where((places >= lows) & (places < ends), places, len(flat))
            noise.scatter_(0, places.view(-1), drawn)
        flat.copy_(on_grid(flat.double(), stddev * noise[:-1], spacing(stddev)))


def _stretches(first: int, end: int, device: torch.device) -> Iterator[tuple[int, int]]:
    step = _TILES.get(device.type, _TILES_ELSEWHERE)
    return ((start, min(start + step, end)) for start in range(first, end, step))


def _numbers(first: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=device)


def _tiles(key: Tensor, place: Place, start: int, stop: int) -> Tensor:
    """The deviates of tiles ``start`` to ``stop``, in the order of the elements."""
    return _tile_deviates(key, place.step, place.tensor, _numbers(start * LANES, (stop - start) * LANES, key.device))


def _tile_deviates(key: Tensor, step: int, tensor: int | Tensor, numbers: Tensor) -> Tensor:
    """The deviates of whole tiles, given their block ``numbers`` (n,); ``tensor`` is one for all, or (n,)."""
    words = _keystream(key, step, _nonce(tensor, 0), numbers).view(4, 4, -1)  # pair, word, block

    def follow(blocks: Tensor, pairs: Tensor) -> Tensor:
        lanes = torch.arange(1, FOLLOWING + 1, dtype=torch.int32, device=key.device).repeat_interleave(len(blocks))
        tensors = tensor[blocks].repeat(FOLLOWING) if isinstance(tensor, Tensor) else tensor
        drawn = _keystream(key, step, _nonce(tensors, lanes), numbers[blocks].repeat(FOLLOWING))
        drawn = drawn.view(4, 4, FOLLOWING, -1)
        return drawn[pairs, :, :, torch.arange(len(blocks), device=key.device)].permute(2, 1, 0)

    values = deviates(words, follow)  # pair, wave, block
    return values.view(8, -1, LANES).transpose(0, 1).reshape(-1)


def deviates(words: Tensor, follow: Follow) -> Tensor:
    """The deviates (p, 2, n) float64 of ``words`` (p, 4, n) int32: two words for U, two for the angle."""
    upper, share = _share(words, follow)
    log = torch.where(upper, torch.log1p(-share), torch.log(share))
    radius = (-2 * log).sqrt_()
    angle = (words[:, 3].double() * 2.0**32 + _unsigned(words[:, 2])) * (math.pi * 2.0**-63)
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)


def _share(words: Tensor, follow: Follow) -> tuple[Tensor, Tensor]:
    """Whether U is nearer to 1 than to 0, and its distance (p, n) from the nearer of the two.

    To find how many pairs need further bits, the host would have to wait. Instead a fixed number of pairs nearest to
    the edges get them, which misses one that needs them with a probability below 2^-268 per call.
    """
    cells = (words[:, 1] & 0x7FFFFFFF).double() * 2.0**32 + _unsigned(words[:, 0])
    share = ((cells + 0.5) * 2.0**-64).reshape(-1)
    count = len(share)
    nearest = torch.topk(share, min(count, 128 + (count >> 10)), largest=False, sorted=False).indices
    blocks, pairs = nearest % words.shape[2], nearest // words.shape[2]
    fraction, unit = cells.reshape(-1)[nearest] * 2.0**-64, 2.0**-64
    short = fraction < unit * 2.0**ENOUGH
    half = torch.full_like(fraction, unit / 2)
    for more in _unsigned(follow(blocks, pairs)):
        bits = (more[1] * 2.0**32 + more[0]) * (unit * 2.0**-64) + (more[3] * 2.0**32 + more[2]) * (unit * 2.0**-128)
        unit *= 2.0**-128
        fraction = torch.where(short, fraction + bits, fraction)
        half = torch.where(short, unit / 2, half)
        short &= fraction < unit * 2.0**ENOUGH
    share[nearest] = fraction + half
    return words[:, 1] < 0, share.view_as(cells)


def _unsigned(words: Tensor) -> Tensor:
    """Int32 words as unsigned numbers, in float64."""
    return words.double() + (words < 0) * 2.0**32


def on_grid(values: Tensor, noise: Tensor, step: float) -> Tensor:
    """The multiples of ``step`` nearest to ``values`` + ``noise``; see ``gridded.on_grid``."""
    steps = values / step
    whole = steps.round()
    infinite = steps.isinf()
    rest = torch.where(infinite, 0.0, steps - whole)
    rounded = (whole + (rest + noise / step).round()) * step
    return torch.where(infinite & values.isfinite(), values, rounded) + 0.0


def _nonce(tensor: int | Tensor, lane: int | Tensor) -> int | Tensor:
    """Word 15 of the state; see ``engine``."""
    return (lane << 24) + tensor


def _keystream(key: Tensor, step: int, nonce: int | Tensor, numbers: Tensor) -> Tensor:
    """The words (16, n) int32 of blocks ``numbers`` (n,) int64 (RFC 8439, 2.3); ``nonce`` is one for all, or (n,)."""
    start = torch.empty(16, len(numbers), dtype=torch.int32, device=key.device)
    for row, constant in enumerate(CONSTANTS):
        start[row] = constant
    start[4:12] = key[:, None]
    start[12], start[13] = _low_word(numbers), _low_word(numbers >> 32)
    start[14], start[15] = step, nonce
    state = start.clone()
    a, b, c, d = (state[row : row + 4] for row in range(0, 16, 4))
    spare = torch.empty_like(a)
    for _ in range(10):
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # the diagonals become columns
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return start.add_(torch.cat([a, b, c, d]))


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor, spare: Tensor) -> None:
    """Four quarter rounds side by side, in place."""
    for left, right in ((16, 12), (8, 7)):
        _rotate(d.bitwise_xor_(a.add_(b)), left, spare)
        _rotate(b.bitwise_xor_(c.add_(d)), right, spare)


def _rotate(words: Tensor, bits: int, spare: Tensor) -> None:
    torch.bitwise_right_shift(words, 32 - bits, out=spare)
    spare.bitwise_and_((1 << bits) - 1)  # the arithmetic shift repeats the sign bit
    words.bitwise_left_shift_(bits).bitwise_or_(spare)


def _low_word(numbers: Tensor) -> Tensor:
    """The lower 32 bits of int64 numbers, as int32."""
    return (((numbers & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).int()


def key_words(key: bytes, device: torch.device) -> Tensor:
    """A 32-byte key as the tensor (8,) int32 that engines take."""
    words = [int.from_bytes(key[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
    return torch.tensor(words, dtype=torch.int32, device=device)
