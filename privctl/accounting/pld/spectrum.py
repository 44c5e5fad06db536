"""Powers of a step's tilted masses under the Fourier transform, with a bound on the rounding error of each mass.

If a record takes part so rarely that most of a step's mass is on one grid point, only the rest is transformed: with
mass m on that point and a transform z of the rest / m, the power is m^k (1 + z)^k, and (1 + z)^k - 1 keeps the relative
precision of z. In a plain power, z would be lost in the rounding of 1 + z.

The error is relative to the largest mass. Where large losses are so rare that a tilt cannot make them likely, delta may
be smaller than that, so transforms can use the machine's longest floats too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from privctl.accounting.pld.pairs import Array

#: Only the rest is transformed if the mass besides the largest is below this, for each step and for all together.
_REST, _RESTS = 0.25, 20.0
#: What long floats are trusted to: 256 times their unit roundoff on x86. With less, bounds would be tighter than
#: ``verify``, whose errors are bounded by other means, can prove: at delta 1e-15, by 0.7 %.
_LONG_ROUNDOFF = 2.0**-56
#: The logarithm of a coefficient of a power that is treated as 0, which changes no mass by more than that.
_VANISHED = -700.0


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


def power(parts: list[StepSpectrum], size: int, *, long: bool = False) -> ComposedMasses:
    """The distribution of the sum of independent draws, ``count`` from each part, on ``size`` points cyclically.

    ``long`` transforms in the longest floats, which takes several times as long (64 bits of mantissa on x86, elsewhere
    perhaps 53, where nothing is gained).
    """
    if long:
        parts = [replace(part, masses=part.masses.astype(np.longdouble)) for part in parts]
    rests = [part.rest for part in parts]
    rare = max(rests) < _REST and sum(p.count * rest for p, rest in zip(parts, rests, strict=True)) < _RESTS
    composed = _power_of_rests(parts, size) if rare else _power_of_wholes(parts, size)
    return replace(composed, masses=composed.masses.astype(np.float64))


def _power_of_wholes(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    roundoff, zeros = _roundoff_and_zeros(parts, size)
    noise = 2 * roundoff * math.log2(size)
    offset, spectra = 0, []
    kept = np.ones(len(zeros), np.bool_)
    for part in parts:
        # Rotating the array so that its mean comes first keeps phases small, and so the rounding errors of the power.
        centre = round(float(np.sum(part.masses * np.arange(len(part.masses)))))
        spectrum = np.fft.rfft(_rotate(part.masses, centre, size))
        offset += part.count * (part.first + centre)
        modulus = np.abs(spectrum)
        kept &= modulus + noise > math.exp(_VANISHED / part.count)
        spectra.append((part.count, spectrum, modulus))
    # After many steps a few coefficients are left. The others are 0: each is below exp(_VANISHED), error included.
    log_size, angle, safe_size, wobble = (zeros[kept] for _ in range(4))
    for count, spectrum, whole_modulus in spectra:
        modulus = whole_modulus[kept]
        with np.errstate(divide="ignore"):
            log_size += count * np.log(modulus)
        safe_size += count * np.log(modulus + noise)
        wobble += count * (noise / (modulus + noise) + 4 * roundoff)
        angle += count * np.angle(spectrum[kept])
    powers = zeros.astype(spectra[0][1].dtype)
    powers[kept] = np.exp(log_size) * (np.cos(angle) + 1j * np.sin(angle))
    masses = np.fft.irfft(powers, size)
    lost = float(np.sum(np.exp(safe_size) * (wobble + noise))) / len(zeros)
    margin = 2 * lost + 4 * roundoff * float(masses.max()) + 2 * math.exp(_VANISHED)
    return ComposedMasses(np.maximum(masses, 0.0), offset, 0.0, margin)


def _power_of_rests(parts: list[StepSpectrum], size: int) -> ComposedMasses:
    roundoff, zeros = _roundoff_and_zeros(parts, size)
    noise = 2 * roundoff * math.log2(size)
    offset, log_factor, wobble = 0, 0.0, 0.0
    log_size, angle = zeros.copy(), zeros.copy()
    for part in parts:
        largest_index = int(np.argmax(part.masses))
        others = part.masses.copy()
        others[largest_index] = 0.0
        largest, rest = float(part.masses[largest_index]), part.rest
        ratio = np.fft.rfft(_rotate(others, largest_index, size)) / largest
        # log(1 + z), accurate for small z.
        log_size += part.count * 0.5 * np.log1p(ratio.real * (2 + ratio.real) + ratio.imag**2)
        angle += part.count * np.arctan2(ratio.imag, 1 + ratio.real)
        wobble += part.count * rest / (largest - rest) * (noise + 8 * roundoff)
        offset += part.count * (part.first + largest_index)
        log_factor += part.count * math.log(largest)
    # exp(log_size + i angle) - 1, likewise.
    excess = np.expm1(log_size) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2 + 1j * np.exp(log_size) * np.sin(angle)
    masses = np.fft.irfft(excess, size)
    errors = np.exp(log_size) * wobble + np.abs(excess) * (noise + 8 * roundoff)
    margin = 2 * float(np.mean(errors)) + 4 * roundoff * float(np.abs(masses).max())
    # The rounding error of adding 1 is relative to 1; the caller's scale has a margin for it.
    masses[0] += 1.0
    return ComposedMasses(np.maximum(masses, 0.0), offset, log_factor, margin)


def _roundoff_and_zeros(parts: list[StepSpectrum], size: int) -> tuple[float, Array]:
    """The unit roundoff of the floats of ``parts``, and zeros of this kind for each coefficient of a transform."""
    kind = parts[0].masses.dtype
    return max(_LONG_ROUNDOFF, float(np.finfo(kind).eps) / 2), np.zeros(size // 2 + 1, kind)


def _rotate(masses: Array, centre: int, size: int) -> Array:
    padded = np.zeros(size, masses.dtype)
    padded[: len(masses)] = masses
    return np.roll(padded, -centre)
