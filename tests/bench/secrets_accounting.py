"""Accounting of many secrets: all at once, one after the other, and by the mean of dp-accounting's mixtures.

A part of the bench of secrets: ``rows`` gives what is to be shown. The instances are like those by which linear
programs for secrets are compared: each secret in 50 to 100 records, chosen by lognormal popularity, and
D_j = kl(p_j, 1e-3) with p_j uniform in [0.01, 0.5]. Records are weighted by a feasible point of that program.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from privctl.plan import peers
from tests.bench.account import mixture_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

OURS = "privctl, all at once"
#: Secrets by which slower parties are judged: one after the other, and dp-accounting's.
SAMPLED, SAMPLED_PEER = 500, 3
#: (secrets, records from which theirs are drawn)
SIZES = ((1_000, 10_000), (10_000, 100_000), (100_000, 1_700_000))
STEPS, BATCH, CAP, PRIOR = 1000, 256.0, 5.0, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """Secrets of records, as ``accounting.many_secrets`` takes them."""

    starts: NDArray[Any]
    records: NDArray[Any]
    probabilities: NDArray[Any]
    posteriors: NDArray[Any]
    budgets: NDArray[Any]


def instance(secrets: int, records: int, *, seed: int = 0) -> Instance:
    """The synthetic instance of this size; the same for the same ``seed``."""
    import numpy as np

    from privctl.accounting.secrets.fano import binary_kl

    random = np.random.default_rng(seed)
    sizes = random.integers(50, 101, secrets)
    popularity = np.cumsum(random.lognormal(0, 1, records))
    owner = np.repeat(np.arange(secrets), sizes)
    drawn = np.searchsorted(popularity, random.random(len(owner)) * popularity[-1])
    pairs = np.unique(owner * records + drawn)  # a record holds a secret once
    owner, drawn = pairs // records, pairs % records
    starts = np.searchsorted(owner, np.arange(secrets + 1))
    posteriors = random.uniform(0.01, 0.5, secrets)
    budgets = np.array([binary_kl(p, PRIOR) for p in posteriors])
    weights = np.ones(records)
    np.minimum.at(weights, drawn, np.repeat(CAP * budgets / np.diff(starts), np.diff(starts)))
    return Instance(
        starts=starts,
        records=drawn,
        probabilities=np.minimum(BATCH * weights / weights.sum(), 1),
        posteriors=posteriors,
        budgets=budgets,
    )


def rows(most: int = SIZES[-1][0], rounds: int = 3) -> list[dict[str, Any]]:
    """One row a size, question and party: times, what they come to a secret, and how far answers are from ours.

    Instances of more than ``most`` secrets are left out.
    """
    found = []
    for secrets, records in (size for size in SIZES if size[0] <= most):
        print(f"accounting of {secrets} secrets in {records} records", file=sys.stderr, flush=True)
        found += _calibration(instance(secrets, records), rounds)
    return found


def _calibration(case: Instance, rounds: int) -> list[dict[str, Any]]:
    """The least noise for all, then what each secret loses under it, by every party that can tell."""
    import numpy as np

    from privctl.accounting.secrets.batched import informations, least_noise

    count = len(case.budgets)
    size = {"secrets": count, "memberships": len(case.records)}
    memberships = (case.starts, case.records, case.probabilities)
    least_noise(*memberships, case.budgets, STEPS)  # imports, and warms what is cached
    times, plan = _timed(lambda: least_noise(*memberships, case.budgets, STEPS), rounds)
    tracemalloc.start()
    least_noise(*memberships, case.budgets, STEPS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found: list[dict[str, Any]] = [
        {
            **size,
            "what": "least noise",
            "party": OURS,
            "median_s": median(times),
            "seconds": times,
            "answer": plan.noise_multiplier,
            "worst_ratio": plan.worst_ratio,
            "allocated_peak_mib": peak / 2**20,
        }
    ]
    times, ours = _timed(lambda: informations(*memberships, plan.noise_multiplier, STEPS), rounds)
    per_secret = median(times) / count
    found.append({**size, "what": "information", "party": OURS, "median_s": median(times), "s_per_secret": per_secret})
    for name, ask, sampled in (
        ("privctl, one by one", _information_of_one, SAMPLED),
        ("dp-accounting", _peer, SAMPLED_PEER),
    ):
        if name in peers.PEERS and not peers.is_installed(name):
            continue
        places = np.linspace(0, count - 1, sampled).astype(int)
        laws = [case.probabilities[case.records[case.starts[j] : case.starts[j + 1]]] for j in places]
        ask(np.array([0.01]), 5.0)  # imports
        started = time.process_time()
        answers = STEPS * np.array([ask(law, plan.noise_multiplier) for law in laws])
        each = (time.process_time() - started) / sampled
        errors = answers / ours[places] - 1
        found.append(
            {
                **size,
                "what": "information",
                "party": name,
                "sampled": sampled,
                "s_per_secret": each,
                "to_ours": each / per_secret,
                "relative_to_ours": [float(errors.min()), float(errors.max())],
            }
        )
    return found


def _timed(work: Callable[[], Any], rounds: int) -> tuple[list[float], Any]:
    times = []
    for _ in range(rounds):
        started = time.process_time()
        found = work()
        times.append(time.process_time() - started)
    return times, found


def _information_of_one(probabilities: NDArray[Any], sigma: float) -> float:
    """The scalar integral for one secret."""
    from privctl.accounting import mixtures
    from privctl.accounting.poisson_binomial import poisson_binomial

    return mixtures.kl(poisson_binomial(probabilities), sigma)


def _peer(probabilities: NDArray[Any], sigma: float) -> float:
    """The mean of dp-accounting's privacy loss distribution, given the law of the number of records."""
    from privctl.accounting.poisson_binomial import poisson_binomial

    law = poisson_binomial(probabilities)
    return mixture_mean(sigma, law.shifts.tolist(), law.weights.tolist())
