"""Powers of a step's tilted masses under the Fourier transform, with a bound on the rounding error of each mass.

If a record takes part so rarely that most of a step's mass is on one grid point, only the rest is transformed: with
mass m on that point and a transform z of the rest / m, the power is m^k (1 + z)^k, and (1 + z)^k - 1 keeps the relative
precision of z. In a plain power, z would be lost in the rounding of 1 + z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.grid import UNIT_ROUNDOFF
from privctl.accounting.pld.pairs import Array

#: Only the rest is transformed if the mass besides the largest is below this, for each step and for all together.
_REST, _RESTS = 0.25, 20.0


@dataclass(frozen=True, slots=True)
class StepSpectrum:
    """Tilted masses (n,) of one step, with sum 1, at grid points from ``first`` on, and its number of uses."""

    masses: Array
    first: int
    count: int

    @property
    def rest(self) -> float:
        """The total mass except for the largest entry."""
        largest = int(np.argmax(self.masses))
        return float(self.masses[:largest].sum() + self.masses[largest + 1 :].sum())


@dataclass(frozen=True, slots=True)
class ComposedMasses:
    """Masses (size,) of the sum of all parts, to be multiplied by exp(``log_factor``).

    Entry i is the grid point ``offset`` + i, cyclically. The error of each is at most ``margin``.
    """

    masses: Array
    offset: int
    log_factor: float
    margin: float


def power(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    """The distribution of the sum of independent draws, ``count`` from each part, on ``size`` points cyclically."""
    rests = [part.rest for part in parts]
    rare = max(rests) < _REST and sum(p.count * rest for p, rest in zip(parts, rests, strict=True)) < _RESTS
    return _power_of_rests(parts, size) if rare else _power_of_wholes(parts, size)


def _power_of_wholes(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    noise = 2 * UNIT_ROUNDOFF * math.log2(size)
    offset = 0
    log_size, angle, safe_size, wobble = np.zeros((4, size // 2 + 1))
    for part in parts:
        # Rotating the array so that its mean comes first keeps phases small, and so the rounding errors of the power.
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
        largest_index = int(np.argmax(part.masses))
        others = part.masses.copy()
        others[largest_index] = 0.0
        largest, rest = float(part.masses[largest_index]), part.rest
        ratio = np.fft.rfft(_rotate(others, largest_index, size)) / largest
        # log(1 + z), accurate for small z.
        log_size += part.count * 0.5 * np.log1p(ratio.real * (2 + ratio.real) + ratio.imag**2)
        angle += part.count * np.arctan2(ratio.imag, 1 + ratio.real)
        wobble += part.count * rest / (largest - rest) * (noise + 8 * UNIT_ROUNDOFF)
        offset += part.count * (part.first + largest_index)
        log_factor += part.count * math.log(largest)
    # exp(log_size + i angle) - 1, likewise.
    excess = np.expm1(log_size) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2 + 1j * np.exp(log_size) * np.sin(angle)
    masses = np.fft.irfft(excess, size)
    errors = np.exp(log_size) * wobble + np.abs(excess) * (noise + 8 * UNIT_ROUNDOFF)
    margin = 2 * float(np.mean(errors)) + 4 * UNIT_ROUNDOFF * float(np.abs(masses).max())
    # The rounding error of adding 1 is relative to 1; the caller's scale has a margin for it.
    masses[0] += 1.0
    return ComposedMasses(np.maximum(masses, 0.0), offset, log_factor, margin)


def _rotate(masses: Array, centre: int, size: int) -> Array:
    padded = np.zeros(size)
    padded[: len(masses)] = masses
    return np.roll(padded, -centre)
