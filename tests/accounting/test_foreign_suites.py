"""dp_accounting's own tests of its accountants, with privctl's in their place.

Those that do not pass are listed with the reason; none contradicts a bound. docs/theory.md states their number.
"""

from __future__ import annotations

import importlib.metadata
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dp_accounting.pld import pld_privacy_accountant, pld_privacy_accountant_test
from dp_accounting.rdp import rdp_privacy_accountant, rdp_privacy_accountant_test

from privctl.domain.events import Event, SampledGaussian
from tests.accounting.foreign_accountants import LossAccountant, RenyiAccountant

VERSION = "0.6.0"
OTHER_WORDS = "a refusal in other words"
_BELOW = "privctl's divergence is smaller, by orders above the largest of theirs"

OF_LOSSES = {
    **{f"test_composition_errors_for_neighboring_relation{i}": OTHER_WORDS for i in range(5)},
    "test_mixture_of_gaussians_basic": "expects the delta of their grid to 1e-12; privctl's is 5e-10 above it",
    "test_truncated_subsampled_gaussian_basic": "expects a looser bound than privctl's",
}
OF_DIVERGENCES = {
    **dict.fromkeys(
        (
            "test_compute_rdp_tree_restart_raise_negative_noise",
            "test_compute_rdp_tree_restart_raise_negative_steps",
            "test_raises_on_invalid_noise_multiplier",
            "test_raises_on_invalid_sampling_rate_q_large",
            "test_raises_on_invalid_sampling_rate_q_neg",
        ),
        OTHER_WORDS,
    ),
    "test_compute_rdp_poisson_sampled_gaussian": "theirs is 3 % above the integral at order 1.5",
    "test_log_a_frac_early_termination": "looks at a warning that privctl does not give",
    "test_repeat_and_select_gaussian_poisson_large_large": _BELOW,
    "test_repeat_and_select_gaussian_poisson_large_med": _BELOW,
    "test_repeat_and_select_pure_poisson_mean10": _BELOW,
    "test_supports": "privctl has no Renyi divergences of samples without replacement",
}
SUITES: dict[str, tuple[ModuleType, ModuleType, str, type[Any], dict[str, str]]] = {
    "losses": (
        pld_privacy_accountant_test, pld_privacy_accountant, "PLDAccountant", LossAccountant, OF_LOSSES
    ),
    "divergences": (
        rdp_privacy_accountant_test, rdp_privacy_accountant, "RdpAccountant", RenyiAccountant, OF_DIVERGENCES
    ),
}  # fmt: skip
#: All tests of each, and those of them that make an accountant; the others call functions of dp_accounting alone.
COUNTS = {"losses": (68, 68), "divergences": (142, 90)}

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("dp-accounting") != VERSION, reason=f"lists the tests of dp_accounting {VERSION}"
)


def cases(tests: ModuleType) -> Iterator[unittest.TestCase]:
    for group in unittest.defaultTestLoader.loadTestsFromModule(tests):
        assert isinstance(group, unittest.TestSuite)
        for case in group:
            assert isinstance(case, unittest.TestCase)
            yield case


def run_with(name: str, accountant: type[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int, int]:
    """Which tests do not pass with ``accountant``, how many there are, and how many of them make one."""
    tests, module, attribute, _, _ = SUITES[name]
    calls: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        calls.append(accountant(*arguments, **options))
        return calls[-1]

    monkeypatch.setattr(module, attribute, make)
    failed, count, using = set(), 0, 0
    for case in cases(tests):
        calls.clear()
        result = unittest.TestResult()
        case.run(result)
        count += result.testsRun
        using += bool(calls)
        if not result.wasSuccessful():
            failed.add(case._testMethodName)
    return failed, count, using


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_all_but_the_listed_ones_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, accountant, listed = SUITES[name]
    failed, count, using = run_with(name, accountant, monkeypatch)
    assert failed == set(listed)
    assert (count, using) == COUNTS[name]


def of_less_noise(event: Event) -> Event:
    """A planted fault."""
    if not isinstance(event, SampledGaussian):
        return event
    return SampledGaussian(noise_multiplier=1.01 * event.noise_multiplier, sample_rate=event.sample_rate)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_an_accountant_that_takes_noise_for_a_little_more_does_not_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, honest, listed = SUITES[name]

    class Wrong(honest):  # type: ignore[misc, valid-type]
        def read(self, event: Any, count: int) -> list[Event]:
            return [of_less_noise(each) for each in super().read(event, count)]

    failed, _, _ = run_with(name, Wrong, monkeypatch)
    assert {each for each in failed if "gaussian" in each} - set(listed)


def test_the_documentation_states_how_many_pass() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8").split())
    for name, (*_, listed) in SUITES.items():
        count, using = COUNTS[name]
        assert f"{count - len(listed)} of {count}" in text, name
        assert using == count or f"{using} of them make an accountant" in text, name
