"""What an event is called in headings and pictures."""

import pytest

from privctl.domain.events import SampledGaussian


@pytest.mark.parametrize(("steps", "words"), [(1, "1 step, "), (2, "2 steps, "), (40_000, "40,000 steps, ")])
def test_steps_are_counted_in_english(steps: int, words: str) -> None:
    assert SampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=steps).caption.startswith(words)
