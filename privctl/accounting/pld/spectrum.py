"""Powers of a step's tilted masses under the Fourier transform, with a bound on what rounding did to each mass.

Where a record takes part so rarely that most of a step's mass sits on one grid point, only the rest is transformed:
with mass m there and a transform z of the rest / m, the power is m^k (1 + z)^k, and (1 + z)^k - 1 keeps the relative
precision of z. A plain power would drown in the rounding of the 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.grid import UNIT_ROUNDOFF
from privctl.accounting.pld.pairs import Array

#: At most this much mass of a step, and of all together, lies beside the largest where only the rest is transformed.
_REST, _RESTS = 0.25, 20.0


@dataclass(frozen=True, slots=True)
class StepSpectrum:
    """Tilted masses (n,) of one step, of sum 1, used ``count`` times; they stand on the grid from ``first`` on."""

    masses: Array
    first: int
    count: int

    @property
    def rest(self) -> float:
        """The mass beside the largest one."""
        at = int(np.argmax(self.masses))
        return float(self.masses[:at].sum() + self.masses[at + 1 :].sum())


@dataclass(frozen=True, slots=True)
class ComposedMasses:
    """Masses (size,) of the sum of all parts, times exp(``log_factor``); entry i stands for ``offset`` + i, cyclic.

    Each is within ``margin`` of the truth.
    """

    masses: Array
    offset: int
    log_factor: float
    margin: float


def power(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    """The law of the sum of independent draws, each part ``count`` times, on ``size`` points taken cyclically."""
    rests = [part.rest for part in parts]
    rare = max(rests) < _REST and sum(p.count * rest for p, rest in zip(parts, rests, strict=True)) < _RESTS
    return _power_of_rests(parts, size) if rare else _power_of_wholes(parts, size)


def _power_of_wholes(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    noise = 2 * UNIT_ROUNDOFF * math.log2(size)
    offset = 0
    log_size, angle, safe_size, wobble = np.zeros((4, size // 2 + 1))
    for part in parts:
        # Turning the array so that its mean comes first keeps phases small, and the power's rounding with them.
        centre = round(float(np.sum(part.masses * np.arange(len(part.masses)))))
        spectrum = np.fft.rfft(_rotate(part.masses, centre, size))
        modulus = np.abs(spectrum)
        with np.errstate(divide="ignore"):
            log_size += part.count * np.log(modulus)
        safe_size += part.count * np.log(modulus + noise)
        wobble += part.count * (noise / (modulus + noise) + 4 * UNIT_ROUNDOFF)
        angle += part.count * np.angle(spectrum)
        offset += part.count * (part.first + centre)
    masses = np.fft.irfft(np.exp(log_size) * (np.cos(angle) + 1j * np.sin(angle)), size)
    margin = 2 * float(np.mean(np.exp(safe_size) * (wobble + noise))) + 4 * UNIT_ROUNDOFF * float(masses.max())
    return ComposedMasses(np.maximum(masses, 0.0), offset, 0.0, margin)


def _power_of_rests(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    noise = 2 * UNIT_ROUNDOFF * math.log2(size)
    offset, log_factor, wobble = 0, 0.0, 0.0
    log_size, angle = np.zeros((2, size // 2 + 1))
    for part in parts:
        at = int(np.argmax(part.masses))
        others = part.masses.copy()
        others[at] = 0.0
        largest, rest = float(part.masses[at]), part.rest
        ratio = np.fft.rfft(_rotate(others, at, size)) / largest
        # log(1 + z), without losing z beside the 1.
        log_size += part.count * 0.5 * np.log1p(ratio.real * (2 + ratio.real) + ratio.imag**2)
        angle += part.count * np.arctan2(ratio.imag, 1 + ratio.real)
        wobble += part.count * rest / (largest - rest) * (noise + 8 * UNIT_ROUNDOFF)
        offset += part.count * (part.first + at)
        log_factor += part.count * math.log(largest)
    # exp(log_size + i angle) - 1, likewise.
    more = np.expm1(log_size) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2 + 1j * np.exp(log_size) * np.sin(angle)
    masses = np.fft.irfft(more, size)
    lost = np.exp(log_size) * wobble + np.abs(more) * (noise + 8 * UNIT_ROUNDOFF)
    margin = 2 * float(np.mean(lost)) + 4 * UNIT_ROUNDOFF * float(np.abs(masses).max())
    # What adding the 1 rounds away is relative to the 1; the caller's scale has room for it.
    masses[0] += 1.0
    return ComposedMasses(np.maximum(masses, 0.0), offset, log_factor, margin)


def _rotate(masses: Array, centre: int, size: int) -> Array:
    padded = np.zeros(size)
    padded[: len(masses)] = masses
    return np.roll(padded, -centre)
