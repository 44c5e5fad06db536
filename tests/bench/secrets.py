"""Plans of protection at scale: the weights by every method, the whole plan, and the accounting of all secrets.

Each way runs in a process of its own, so that its memory is its own. Times are processor time, which a busy machine
hardly changes. The instances are those of ``secrets_accounting``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.common import forget_peak, forked, publish, status_mib
from tests.bench.secrets_accounting import BATCH, CAP, PRIOR, SIZES, STEPS, Instance, instance
from tests.bench.secrets_accounting import rows as accounting_rows

#: Up to how many secrets a way is tried; beyond it takes many minutes.
SIMPLEX, INTERIOR = 10_000, 10_000

Way = Callable[[Instance], dict[str, Any]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--most-secrets", type=int, default=SIZES[-1][0], help="leave out larger instances")


def main(options: argparse.Namespace) -> None:
    """Every way that can be asked for it, on every size."""
    results: list[dict[str, Any]] = []
    for secrets, records in SIZES:
        if secrets > options.most_secrets:
            continue
        variants: dict[str, Way] = {
            "weights: HiGHS PDLP, gap 1e-3": partial(_weights, "first-order", 1e-3),
            "weights: HiGHS PDLP, gap 1e-4": partial(_weights, "first-order", 1e-4),
            "whole plan, curve": _plan,
            "whole plan, Fano": _fano_plan,
        }
        if secrets <= INTERIOR:
            variants["weights: HiGHS interior point"] = partial(_weights, "interior", 1e-4)
        if secrets <= SIMPLEX:
            variants["weights: HiGHS simplex"] = _simplex
        for name, variant in variants.items():
            found = forked(partial(_measured, variant, secrets, records))
            results.append({"secrets": secrets, "way": name, **found})
            print(*_cells(results[-1]), sep="  ", flush=True)
    accounting = forked(lambda: {"rows": accounting_rows(options.most_secrets)})
    headings = ["secrets", "way", "s", "MiB", "result"]
    cells = [_cells(row) for row in results] + [_accounted(row) for row in accounting.get("rows", [])]
    publish("secrets", headings, cells, {"plans": results, "accounting": accounting}, options.output)


def _cells(row: dict[str, Any]) -> list[str]:
    seconds = row["fails"] if "fails" in row else f"{row['seconds']:.2f}"
    return [f"{row['secrets']:,}", row["way"], seconds, f"{row.get('peak_mib', 0):.0f}", row.get("result", "")]


def _accounted(row: dict[str, Any]) -> list[str]:
    seconds = row.get("median_s", row.get("s_per_secret", 0) * row["secrets"])
    ratio = f"{row['to_ours']:.3g} times ours, from {row['sampled']} secrets" if "to_ours" in row else ""
    return [f"{row['secrets']:,}", f"{row['what']}: {row['party']}", f"{seconds:.4g}", "", ratio]


def _measured(variant: Way, secrets: int, records: int) -> dict[str, Any]:
    variant(instance(10, 300))  # imports
    problem = instance(secrets, records)
    before = status_mib("VmRSS")
    forget_peak()
    started = time.process_time()
    found = variant(problem)
    seconds = time.process_time() - started
    return {"seconds": seconds, "peak_mib": status_mib("VmHWM") - before, "memberships": len(problem.records), **found}


def _weights(solver: str, gap: float, problem: Instance) -> dict[str, Any]:
    from privctl.secrets.plan.weights import Solver, weights_for

    examples, limits = len(problem.probabilities), CAP * problem.budgets
    found = weights_for(problem.starts, problem.records, examples, limits, solver=Solver(solver), gap=gap)
    return {"result": f"weight {found.total:.8g}, gap {found.gap:.1e}", "total": found.total, "gap": found.gap}


def _simplex(problem: Instance) -> dict[str, Any]:
    import numpy as np
    from scipy import sparse
    from scipy.optimize import linprog

    examples = len(problem.probabilities)
    shape = (len(problem.budgets), examples)
    matrix = sparse.csr_array((np.ones(len(problem.records)), problem.records, problem.starts), shape)
    found = linprog(-np.ones(examples), A_ub=matrix, b_ub=CAP * problem.budgets, bounds=(0, 1), method="highs-ds")
    return {"result": f"weight {-found.fun:.8g}", "total": -found.fun}


def _rates(problem: Instance) -> tuple[Any, Any, Any]:
    """Weights at a gap of 1e-3, their solution, and the probabilities that follow."""
    import numpy as np

    from privctl.secrets.plan.weights import weights_for

    found = weights_for(problem.starts, problem.records, len(problem.probabilities), CAP * problem.budgets, gap=1e-3)
    size = min(BATCH, 0.5 * found.total / float(found.weights.max()))
    return np.minimum(1, size * found.weights / found.total), found, len(problem.probabilities)


def _plan(problem: Instance) -> dict[str, Any]:
    """Weights, probabilities and noise by the trade-off curve, as ``privctl secrets plan`` finds them."""
    import numpy as np

    from privctl.accounting.secrets.batched import informations
    from privctl.accounting.secrets.posterior_curves import SecretMemberships, least_noise_by_curve

    rates, found, examples = _rates(problem)
    priors = np.full(len(problem.budgets), PRIOR)
    book = SecretMemberships(
        starts=problem.starts, records=problem.records, probabilities=rates, priors=priors, steps=STEPS
    )
    noise = least_noise_by_curve(
        book,
        problem.posteriors,
        problem.budgets,
        lambda sigma: informations(problem.starts, problem.records, rates, sigma, STEPS),
    )
    return {
        "result": f"kept {100 * found.total / examples:.3g} %, noise multiplier {noise.noise_multiplier:.6g} (by Fano "
        f"{noise.fano_noise:.6g}), gap {found.gap:.1e}",
        "gap": found.gap,
        "noise_multiplier": noise.noise_multiplier,
        "fano_noise_multiplier": noise.fano_noise,
        "worst_ratio": float(noise.curve_bounds[noise.binding] / problem.posteriors[noise.binding]),
    }


def _fano_plan(problem: Instance) -> dict[str, Any]:
    """The same by Fano's inequality alone."""
    from privctl.accounting.secrets.batched import least_noise

    rates, found, examples = _rates(problem)
    noise = least_noise(problem.starts, problem.records, rates, problem.budgets, STEPS)
    return {
        "result": f"kept {100 * found.total / examples:.3g} %, noise multiplier {noise.noise_multiplier:.6g}, "
        f"gap {found.gap:.1e}",
        "gap": found.gap,
        "noise_multiplier": noise.noise_multiplier,
        "worst_ratio": noise.worst_ratio,
    }
