"""Every format's levels, expectation and variance, and what becomes of numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from privctl.domain.errors import CommandError
from privctl.train.quantized import FORMATS, luq_fp4
from privctl.train.quantized.floating import Float8, Float8Kind, Luq, _round_floating
from privctl.train.quantized.rounding import Quantizer, RoundingBuffers, round_rows
from privctl.train.quantized.uniform import SignedIntegers, UniformLevels
from privctl.train.settings.choices import FormatName
from tests.few import few

DRAWS = 400_000
#: A z of this size comes by chance once in 10^9 tests.
LARGEST_Z = 6.0
LUQ = Luq()
E4M3, E5M2 = Float8(kind=Float8Kind.E4M3), Float8(kind=Float8Kind.E5M2)
STOCHASTIC: dict[str, Quantizer] = {
    "luq-fp4": LUQ,
    "luq of 5": Luq(levels=5),
    "e4m3": Float8(kind=Float8Kind.E4M3, stochastic=True),
    "e5m2": Float8(kind=Float8Kind.E5M2, stochastic=True),
    "int4": SignedIntegers(),
    "uniform4": UniformLevels(),
}
ALL: dict[str, Quantizer] = {**STOCHASTIC, "e4m3 nearest": E4M3, "e5m2 nearest": E5M2}


def words(*shape: int, seed: int = 0) -> Tensor:
    drawn = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, shape, dtype=np.int64)
    return torch.from_numpy(drawn.astype(np.int32))


def drawn(quantizer: Quantizer, values: Tensor, seed: int = 0) -> Tensor:
    return round_rows(quantizer, values, words(*values.shape, seed=seed))


def levels_of(quantizer: Quantizer, largest: float) -> list[float]:
    """What values between minus and plus ``largest`` are rounded to."""
    values = torch.linspace(-largest, largest, 100_001)[None]
    return sorted(set(drawn(quantizer, values)[0].tolist()))


def test_luq_has_the_fifteen_levels_of_three_exponent_bits() -> None:
    sizes = [0, 1, 2, 4, 8, 16, 32, 64]
    expected = sorted({sign * size / 64 * 3.0 for size in sizes for sign in (-1, 1)})
    assert levels_of(LUQ, 3.0) == expected
    assert len(expected) == 15


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_luq_has_as_many_levels_as_asked_for(count: int) -> None:
    found = levels_of(Luq(levels=count), 1.0)
    assert [x for x in found if x > 0] == [2.0**-k for k in reversed(range(count))]
    assert len(found) == 2 * count + 1
    assert luq_fp4(count).gradients == Luq(levels=count)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_numbers_of_levels_that_cannot_be_are_refused(count: int) -> None:
    with pytest.raises(CommandError, match="levels of logarithmic quantization"):
        luq_fp4(count)


def test_the_even_grids() -> None:
    torch.testing.assert_close(
        torch.tensor(levels_of(SignedIntegers(), 3.5)), torch.arange(-7, 8) * 0.5, rtol=1e-6, atol=0
    )
    found = sorted(set(drawn(UniformLevels(), torch.linspace(-1, 2, 100_001)[None])[0].tolist()))
    torch.testing.assert_close(torch.tensor(found), -1 + torch.arange(16) * 0.2, rtol=1e-5, atol=1e-6)
    # Behind a ReLU all 16 codes are used where signed integers have 8.
    positive = torch.linspace(0, 7.5, 10_001)[None]
    assert len(set(drawn(UniformLevels(), positive)[0].tolist())) == 16
    assert len(set(drawn(SignedIntegers(), positive)[0].tolist())) == 8


@pytest.mark.parametrize("kind", Float8Kind)
def test_the_levels_of_fp8_are_the_numbers_of_its_codes(kind: Float8Kind) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(kind.dtype).float()
    expected = sorted(set(codes[codes.isfinite()].tolist()))
    for stochastic in (False, True):
        quantizer = Float8(kind=kind, stochastic=stochastic)
        on_grid = torch.tensor(expected)[None]
        assert torch.equal(drawn(quantizer, on_grid), on_grid)
        # Every number between is rounded to one of its neighbours.
        between = ((on_grid[:, 1:] + on_grid[:, :-1]) / 2).clamp(-kind.largest, kind.largest)
        between = torch.cat([between, on_grid], 1)  # so that the scale stays 1
        assert set(drawn(quantizer, between)[0].tolist()) <= set(expected)


@pytest.mark.parametrize("name", ALL)
def test_rounding_again_changes_nothing(name: str) -> None:
    values = torch.cat([torch.randn(40, 300), torch.rand(40, 300), 1e-20 * torch.randn(40, 300)])
    once = drawn(ALL[name], values)
    again = drawn(ALL[name], once, seed=1)
    tolerance = 1e-6 if name in ("int4", "uniform4") else 0.0  # where M / 7 * 7 need not be M
    assert float((again - once).abs().max()) <= tolerance * float(once.abs().max())


def many(quantizer: Quantizer, values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means and variances of each of ``values`` (k,), the largest of which sets the scale, over many draws."""
    found = drawn(quantizer, values.expand(DRAWS, -1).contiguous(), seed).double()
    return found.mean(0), found.var(0)


def neighbours(quantizer: Quantizer, value: Tensor, values: Tensor) -> tuple[float, float]:
    """The levels that one of ``values`` is rounded to."""
    found = drawn(quantizer, values.expand(20_000, -1).contiguous(), seed=9)[:, values == value].unique()
    return float(found.min()), float(found.max())


VALUES = torch.tensor([1.0, -1.0, 0.3, -0.3, 0.77, 0.011, -0.004, 0.0001, 0.0, 0.5, -0.123, 0.9999])


def biases(quantizer: Quantizer) -> Tensor:
    """By how many standard errors each mean is off its value."""
    means, variances = many(quantizer, VALUES)
    # What is rarely rounded away may not have been in any draw: one draw more would have moved the mean by this much.
    error = (variances / DRAWS).sqrt() + 1.0 / DRAWS
    return (means - VALUES.double()).abs() / error


@pytest.mark.parametrize("name", few(STOCHASTIC, 0, 2, 4))
def test_stochastic_rounding_is_unbiased(name: str) -> None:
    assert float(biases(STOCHASTIC[name]).max()) < LARGEST_Z


class Slanted:
    """Planted fault: the words never reach their upper 64th, so that little is rounded up."""

    def __init__(self, inner: Quantizer) -> None:
        self.inner, self.stochastic, self.scales = inner, True, inner.scales

    def round_into(self, out: Tensor, values: Tensor, scales: object, words: Tensor, scratch: object) -> None:
        lower = ((words.long() & 0x7FFFFF) * 63 // 64).int()
        self.inner.round_into(out, values, scales, lower, scratch)


@pytest.mark.parametrize("name", [name for name in STOCHASTIC if name.startswith("luq")])
def test_a_biased_variant_is_noticed(name: str) -> None:
    assert float(biases(Slanted(STOCHASTIC[name])).max()) > 2 * LARGEST_Z


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "int4", "uniform4"])
def test_nearest_rounding_would_be_noticed(name: str) -> None:
    """Planted fault: every word is the middle one."""
    quantizer = STOCHASTIC[name]
    values = VALUES.expand(DRAWS, -1).contiguous()
    found = round_rows(quantizer, values, torch.full(values.shape, 1 << 18, dtype=torch.int32)).double().mean(0)
    assert float(((found - VALUES.double()).abs() / (1.0 / DRAWS)).max()) > 2 * LARGEST_Z


def test_the_variance_of_luq_is_the_one_of_its_definition() -> None:
    """(0.5 - 0.3)(0.3 - 0.25) = 0.01 and, where it is rounded to zero, 0.01 (1/64 - 0.01) = 5.625e-5, with M = 1."""
    _, variances = many(LUQ, torch.tensor([1.0, 0.3, -0.3, 0.01]))
    assert float(variances[0]) == 0
    torch.testing.assert_close(
        variances[1:], torch.tensor([0.01, 0.01, 5.625e-5], dtype=torch.float64), rtol=0.02, atol=0
    )
    assert abs(float(variances[1]) - 0.0125) > 0.002  # what a level more, at 0.375, or one less would not give


@pytest.mark.parametrize("name", few(STOCHASTIC, 0, 2))
def test_variance_is_the_product_of_the_distances_to_both_neighbours(name: str) -> None:
    quantizer = STOCHASTIC[name]
    _, variances = many(quantizer, VALUES)
    for i in (2, 4, 5, 10):
        low, high = neighbours(quantizer, VALUES[i], VALUES)
        expected = (high - float(VALUES[i])) * (float(VALUES[i]) - low)
        fourth = max(expected * max(high - low, 0) ** 2, 1e-30)  # of a two-point law, at most
        assert abs(float(variances[i]) - expected) < LARGEST_Z * math.sqrt(fourth / DRAWS) + 1e-6 * expected


def test_scaling_a_row_scales_what_it_becomes() -> None:
    """The grid follows the largest value, so that the variance goes with its square (DPQuant, proposition 1)."""
    values = torch.randn(30, 400)
    for quantizer in ALL.values():
        torch.testing.assert_close(drawn(quantizer, 4 * values), 4 * drawn(quantizer, values), rtol=0, atol=0)


def hard_numbers(kind: Float8Kind) -> Tensor:
    """200,000: of all sizes, subnormal ones and ties among them."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(torch.rand(150_000, generator=generator) * 50 - 30)
    wild = sizes * torch.randn(150_000, generator=generator)
    codes = torch.arange(256, dtype=torch.uint8).view(kind.dtype).float()
    codes = codes[codes.isfinite()].sort().values
    ties = (codes[1:] + codes[:-1]) / 2
    beside = torch.cat([ties * (1 + 2.0**-20), ties * (1 - 2.0**-20), ties, codes])
    small = (torch.rand(200_000 - 150_000 - len(beside), generator=generator) - 0.5) * 2.0**-5
    return torch.cat([wild, beside, small])


def unscaled(kind: Float8Kind, values: Tensor) -> Tensor:
    """``values`` rounded to nearest as they are, without a row's scale; what is too large becomes the largest."""
    clamped = values.clamp(-kind.largest, kind.largest)
    scratch = RoundingBuffers(clamped, torch.empty_like(clamped), torch.empty_like(clamped))
    _round_floating(scratch, None, least=kind.least, mantissa=kind.mantissa)
    return clamped


@pytest.mark.parametrize("kind", Float8Kind)
def test_fp8_is_torchs_own_cast_bit_for_bit(kind: Float8Kind) -> None:
    values = torch.cat([hard_numbers(kind), torch.tensor([0.0, -0.0, math.inf, -math.inf, 1e38, -1e38])])
    assert len(values) == 200_006
    found = unscaled(kind, values[None])[0]
    expected = values.clamp(-kind.largest, kind.largest).to(kind.dtype).float()
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert found[-4:].tolist() == [kind.largest, -kind.largest, kind.largest, -kind.largest]
    assert float(unscaled(kind, torch.tensor([[math.nan]]))[0, 0]) != 0
    assert unscaled(kind, torch.tensor([[math.nan]])).isnan().all()
    # Planted fault: the other kind's grid.
    other = next(each for each in Float8Kind if each is not kind)
    assert not torch.equal(unscaled(other, values[None])[0], expected)


@pytest.mark.parametrize("kind", Float8Kind)
def test_scaled_fp8_is_a_cast_between_two_exact_scalings(kind: Float8Kind) -> None:
    values = torch.exp2(torch.randn(300, 1) * 10) * torch.randn(300, 80)
    found = round_rows(Float8(kind=kind), values)
    for row, result in zip(values, found, strict=True):
        scale = 2.0 ** math.ceil(math.log2(float(row.abs().max()) / kind.largest))
        assert torch.equal(result, (row / scale).to(kind.dtype).float() * scale)


def test_a_row_whose_largest_is_the_formats_largest_keeps_its_scale() -> None:
    values = torch.tensor([[448.0, 1.125], [448.0 * 4, 4.5], [448.0 * 4.001, 4.5]])
    (scales,) = E4M3.scales(values)
    assert scales.flatten().tolist() == [1.0, 4.0, 8.0]
    assert torch.equal(round_rows(E4M3, values)[:2], values[:2])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(name: str, value: float) -> None:
    values = torch.randn(3, 50)
    expected = drawn(ALL[name], values)
    values[1, 7] = value
    found = drawn(ALL[name], values)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("name", ALL)
def test_zeros_stay_zeros_and_the_smallest_numbers_finite(name: str) -> None:
    quantizer = ALL[name]
    assert torch.equal(drawn(quantizer, torch.zeros(3, 50)), torch.zeros(3, 50))
    mixed = torch.randn(3, 50)
    mixed[1] = 0
    assert not drawn(quantizer, mixed)[1].any()
    for size in (1e-45, 1e-40, 1e-37, 1e37, 1e38):
        assert float(drawn(quantizer, torch.full((2, 50), size)).max()) <= 2 * size + 2.0**-126
    assert drawn(quantizer, torch.randn(0, 50)).shape == (0, 50)
    assert drawn(quantizer, torch.randn(3, 0)).shape == (3, 0)
    assert torch.equal(drawn(quantizer, torch.full((1, 9), 2.5)), torch.full((1, 9), 2.5))


@pytest.mark.parametrize("name", ALL)
def test_other_precisions_are_kept(name: str) -> None:
    quantizer = ALL[name]
    values = torch.randn(20, 100, dtype=torch.float64)
    single = drawn(quantizer, values.float())
    double = drawn(quantizer, values)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-5, atol=1e-6)
    half = values.bfloat16()
    found = drawn(quantizer, half)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, drawn(quantizer, half.float()).bfloat16())
    if name not in ("int4", "uniform4"):  # whose spacing takes more than bfloat16's eight bits
        assert torch.equal(found.float(), drawn(quantizer, half.float()))


@pytest.mark.parametrize("name", [name for name, each in STOCHASTIC.items() if not isinstance(each, Float8)])
def test_stochastic_rounding_without_words_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="words"):
        round_rows(STOCHASTIC[name], torch.randn(2, 3))


def test_the_table_is_closed_and_names_each_format_once() -> None:
    assert set(FORMATS) == set(FormatName)
    assert all(form.name is name for name, form in FORMATS.items())
    fp8 = FORMATS[FormatName.FP8]
    assert (fp8.inputs, fp8.weights, fp8.gradients) == (E4M3, E4M3, E5M2)
    mutations: list[Callable[[], None]] = [lambda: FORMATS.__setitem__("x", fp8)]  # type: ignore[attr-defined]
    with pytest.raises((TypeError, AttributeError)):
        mutations[0]()
