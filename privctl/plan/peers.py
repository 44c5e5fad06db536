"""Accountants of other projects, if installed: for comparison, never for a guarantee.

Each takes seconds to import, so the imports are inside the functions. The modules' names come from a fixed table.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAccountant:
    """A package with an accountant: its distribution and its module."""

    distribution: str
    module: str


PEERS = {
    "opacus": OtherAccountant(
        distribution="opacus",
        module="opacus.accountants",
    ),
    "dp-accounting": OtherAccountant(
        distribution="dp-accounting",
        module="dp_accounting",
    ),
}

#: Tolerance of Opacus' search below the target, in epsilon.
_OPACUS_TOLERANCE = 0.001


def is_installed(name: str) -> bool:
    """Whether the peer can be imported, without importing it. Raises ValueError for names not in PEERS."""
    return find_spec(_peer(name).module.partition(".")[0]) is not None


def opacus_prv_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The upper bound on epsilon at ``delta`` by Opacus' PRV accountant: its estimate plus an error bound of 0.01.

    ``noise_multiplier`` is noise standard deviation / clip norm; batches are Poisson, adjacency is add-or-remove.
    Raises ValueError if Opacus is not installed or fails.
    """
    with _errors_of("opacus") as accountants:
        accountant = accountants.create_accountant(mechanism="prv")
        accountant.history = [(noise_multiplier, sample_rate, steps)]
        return _number(accountant.get_epsilon(delta=delta))


def opacus_prv_noise_multiplier(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The noise multiplier that Opacus' own search finds for (epsilon, delta) by its PRV accountant.

    It stops within 0.001 of the target in that accountant's epsilon. Raises as ``opacus_prv_epsilon``.
    """
    with _errors_of("opacus"):
        multiplier = import_module("opacus.accountants.utils").get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=sample_rate,
            steps=steps,
            accountant="prv",
            epsilon_tolerance=_OPACUS_TOLERANCE,
        )
        return _number(multiplier)


def dp_accounting_pld_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon at ``delta`` by dp-accounting's PLDAccountant, on its default grid of 1e-4; inf if it finds none.

    Arguments as for ``opacus_prv_epsilon``. Raises ValueError if dp-accounting is not installed or fails.
    """
    with _errors_of("dp-accounting") as accounting:
        accountant = accounting.pld.PLDAccountant()
        accountant.compose(_sampled_gaussian(accounting, noise_multiplier, sample_rate, steps))
        return _number(accountant.get_epsilon(delta))


def dp_accounting_pld_noise_multiplier(
    epsilon: float, delta: float, sample_rate: float, steps: int, *, tolerance: float = 1e-6
) -> float:
    """The noise multiplier that dp-accounting's own search finds for (epsilon, delta) by its PLDAccountant.

    It is within ``tolerance`` of that accountant's minimum. Raises as ``dp_accounting_pld_epsilon``.
    """
    with _errors_of("dp-accounting") as accounting:
        multiplier = accounting.calibrate_dp_mechanism(
            accounting.pld.PLDAccountant,
            lambda noise: _sampled_gaussian(accounting, noise, sample_rate, steps),
            epsilon,
            delta,
            tol=tolerance,
        )
        return _number(multiplier)


def _sampled_gaussian(accounting: Any, noise_multiplier: float, sample_rate: float, steps: int) -> Any:
    """The dp-accounting event of ``steps`` steps with Gaussian noise on Poisson batches."""
    once = accounting.PoissonSampledDpEvent(sample_rate, accounting.GaussianDpEvent(noise_multiplier))
    return accounting.SelfComposedDpEvent(once, steps)


def _peer(name: str) -> OtherAccountant:
    if name not in PEERS:
        raise ValueError(f"peer is {name!r}; known are {', '.join(PEERS)}")
    return PEERS[name]


def _number(value: Any) -> float:
    number = float(value)
    if math.isnan(number):
        raise ArithmeticError("the answer is not a number")
    return number


@contextmanager
def _errors_of(name: str) -> Iterator[Any]:
    """The peer's module, with its warnings and log messages muted; turns whatever it raises into a ValueError."""
    peer = _peer(name)
    if not is_installed(name):
        raise ValueError(f"{peer.distribution} is not installed; pip install {peer.distribution}")
    muted = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield import_module(peer.module)
    except Exception as error:  # foreign code: there is no list of what it may raise
        reason = " ".join(str(error).split())[:200] or "no reason given"
        raise ValueError(f"{peer.distribution} gives no answer here ({type(error).__name__}: {reason})") from error
    finally:
        logging.disable(muted)
