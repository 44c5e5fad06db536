from __future__ import annotations

import logging
import math
import subprocess
import sys
import warnings

import pytest

from privctl.accounting import ledger
from privctl.domain.events import Ledger, SampledGaussian
from privctl.plan import peers
from tests.few import few

#: Noise multiplier, sampling rate, steps, delta.
ROWS = [(1.0, 0.01, 1000, 1e-5), (0.8, 0.02, 500, 1e-5), (2.0, 0.05, 2000, 1e-6)]


def enclosure(noise: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    ours = Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps),))
    return ledger.epsilon_floor(ours, delta), ledger.epsilon_bound(ours, delta)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_opacus_agrees(row: tuple[float, float, int, float]) -> None:
    pytest.importorskip("opacus")
    floor, bound = enclosure(*row)
    found = peers.opacus_prv_epsilon(*row)
    assert floor <= found
    assert found == pytest.approx(bound, abs=0.02)


@pytest.mark.parametrize("row", few(ROWS, 2, whole=True))
def test_dp_accounting_agrees(row: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    floor, bound = enclosure(*row)
    found = peers.dp_accounting_pld_epsilon(*row)
    assert floor <= found
    assert found == pytest.approx(bound, rel=1e-3)


@pytest.mark.slow
def test_opacus_with_a_wrong_rate_disagrees() -> None:
    pytest.importorskip("opacus")
    noise, rate, steps, delta = ROWS[0]
    floor, bound = enclosure(*ROWS[0])
    assert peers.opacus_prv_epsilon(noise, 0.9 * rate, steps, delta) < floor
    assert peers.opacus_prv_epsilon(noise, 1.1 * rate, steps, delta) > bound + 0.02


def test_dp_accounting_with_a_wrong_rate_disagrees() -> None:
    pytest.importorskip("dp_accounting")
    noise, rate, steps, delta = ROWS[0]
    floor, bound = enclosure(*ROWS[0])
    assert peers.dp_accounting_pld_epsilon(noise, 0.98 * rate, steps, delta) < floor
    assert peers.dp_accounting_pld_epsilon(noise, 1.02 * rate, steps, delta) > bound * 1.001


@pytest.mark.slow
def test_opacus_calibrates_to_just_below_the_target() -> None:
    pytest.importorskip("opacus")
    noise = peers.opacus_prv_noise_multiplier(1.0, 1e-5, 0.01, 1000)
    assert 0.999 <= peers.opacus_prv_epsilon(noise, 0.01, 1000, 1e-5) <= 1.0
    assert noise == pytest.approx(1.4246, abs=2e-3)


@pytest.mark.slow
def test_dp_accounting_calibrates_to_the_target() -> None:
    pytest.importorskip("dp_accounting")
    noise = peers.dp_accounting_pld_noise_multiplier(2.0, 1e-5, 0.05, 1000, tolerance=1e-4)
    assert peers.dp_accounting_pld_epsilon(noise, 0.05, 1000, 1e-5) <= 2.0
    assert noise == pytest.approx(3.277663, abs=2e-4)


def test_what_is_not_installed_is_found_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.OtherAccountant(distribution="absent-package", module="absent_package.x")
    monkeypatch.setitem(peers.PEERS, "opacus", absent)
    assert not peers.is_installed("opacus")
    with pytest.raises(ValueError, match="absent-package is not installed; pip install absent-package"):
        peers.opacus_prv_epsilon(*ROWS[0])


def test_a_name_outside_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="peer is 'os'; known are opacus, dp-accounting"):
        peers.is_installed("os")


def test_asking_whether_they_are_there_imports_nothing() -> None:
    code = (
        "import sys; from privctl.plan import peers\n"
        "[peers.is_installed(name) for name in peers.PEERS]\n"
        "assert not {'numpy', 'torch', 'opacus', 'dp_accounting'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("row", [(math.nan, 0.01, 10, 1e-5), (1.0, 7.0, 10, 1e-5), (1.0, 0.01, -3, 1e-5)])
def test_a_failure_is_one_sentence(row: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(ValueError, match=r"^dp-accounting gives no answer here \([^\n]+\)$"):
        peers.dp_accounting_pld_epsilon(*row)


@pytest.mark.slow
def test_a_failure_of_opacus_is_one_sentence() -> None:
    pytest.importorskip("opacus")
    with pytest.raises(ValueError, match=r"^opacus gives no answer here \([^\n]+\)$"):
        peers.opacus_prv_noise_multiplier(1e-3, 1e-5, 0.01, 1000)


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_it_is_quiet_inside_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "opacus", peers.OtherAccountant(distribution="math", module="math"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [kept := Kept()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with peers._errors_of("opacus"):
            warnings.warn("inside", stacklevel=1)
            logging.getLogger("opacus").error("inside")
        warnings.warn("outside", stacklevel=1)
        logging.getLogger("opacus").error("outside")
    assert [str(warning.message) for warning in caught] == ["outside"]
    assert kept.messages == ["outside"]
