"""Control numbers show the noise of measurements: too little of it, or none, stops a run, and verify refutes it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from privctl.domain.errors import PrivctlError
from privctl.randomness import NoiseSource
from privctl.train.methods.dpquant.control_numbers import CONTROLS, ControlNumbers
from privctl.train.methods.dpquant.sensitivity import LayerSensitivity
from tests.train.methods.dpquant.support import NAMES, Blobs, network, sensitivity
from verify.methods.dpquant import EXPECTED, QuantizedTraining

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.usefixtures("one_thread")


class Weaker(NoiseSource):
    """Noise that is ``share`` of what is asked for, in every entry of a release."""

    def __init__(self, share: float) -> None:
        super().__init__(3)
        self.share = share

    def release(self, stream: int, block: int, values: NDArray[Any], stddev: float) -> None:
        if self.share:
            super().release(stream, block, values, self.share * stddev)


def sensitivity_with_noise(share: float, multiplier: float = 1.5) -> LayerSensitivity:
    return sensitivity(network(), Blobs(6), noise=Weaker(share), noise_multiplier=multiplier)


@pytest.mark.parametrize("share", [0.0, 0.5, 2.0, math.nan])
def test_other_noise_stops_the_first_measurement(share: float) -> None:
    with pytest.raises(PrivctlError, match="the noise of measurements is not what is accounted for"):
        sensitivity_with_noise(share).release(0)


def test_a_smaller_fault_shows_after_more_measurements() -> None:
    faulty = sensitivity_with_noise(0.9)
    faulty.release(0)
    with pytest.raises(PrivctlError, match="control numbers have 0.9"):
        for number in range(1, 40):
            faulty.release(number)


@pytest.mark.parametrize("multiplier", [1e-300, 0.3, 1e200])
def test_noise_as_stated_passes_and_the_layers_are_released_as_before(multiplier: float) -> None:
    honest = sensitivity_with_noise(1.0, multiplier)
    released = [honest.release(number) for number in range(20)]
    assert {values.shape for values in released} == {(len(NAMES),)}
    assert honest.controls.count == 20 * CONTROLS
    assert honest.controls.ratio == pytest.approx(1, abs=5 / math.sqrt(2 * 20 * CONTROLS))


def test_control_numbers_hold_nothing_of_the_records() -> None:
    """Without noise they are 0, whatever is measured: the records' sums go into the entries of the layers alone."""
    taken: list[NDArray[np.float64]] = []

    class Kept(NoiseSource):
        def release(self, stream: int, block: int, values: NDArray[Any], stddev: float) -> None:
            taken.append(values.copy())
            super().release(stream, block, values, stddev)

    sensitivity(network(), Blobs(6), noise=Kept(3), noise_multiplier=1.5).release(0)
    (sums,) = taken
    assert len(sums) == len(NAMES) + CONTROLS
    assert (sums[: len(NAMES)] != 0).all()
    assert (sums[len(NAMES) :] == 0).all()


def test_an_interrupted_run_goes_on_counting() -> None:
    before = ControlNumbers()
    before.add(np.array([1.0, -2.0, 0.5]), 1.0)
    after = ControlNumbers()
    after.restore(before.tensors())
    assert (after.count, after.squares) == (3, 5.25)
    after.restore({})  # the state of an older version
    assert after.count == 3


def stated(**changes: Any) -> QuantizedTraining:
    parameters = QuantizedTraining(
        method="dpquant", task="causal-lm", examples=100, batch_size=10, sample_rate=0.1, noise_multiplier=1.0,
        steps_begun=20, delta=1e-5, measurements_begun=4, measurements_planned=4, measure_noise=1.0, measure_rate=0.1,
        measure_control_numbers=1024, measure_control_ratio=1.0, initial_weights="random", collected_from_data=(),
    )  # fmt: skip
    return replace(parameters, **changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"measure_control_ratio": 0.5}, "have 0.5 times the standard deviation"),
        ({"measure_control_ratio": 0.0}, "have 0 times the standard deviation"),
        ({"measure_control_ratio": 2.0}, "have 2 times the standard deviation"),
        ({"measure_control_ratio": None}, "no run states such two"),
        ({"measure_control_numbers": None}, "no run states such two"),
        ({"measure_control_numbers": -4}, "no run states such two"),
        ({"measurements_begun": None}, "it states that none began"),
    ],
)
def test_verify_refutes_control_numbers_of_other_noise(changes: dict[str, Any], word: str) -> None:
    assert not [each for each in EXPECTED.disagreements(None, stated()) if "control" in each]
    assert [each for each in EXPECTED.disagreements(None, stated(**changes)) if word in each]
