"""Plans of protection for small data sets, made without the planner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privctl.accounting.secrets.fano import binary_kl, information, noise_multiplier_for, posterior
from privctl.data.texts import identified_texts
from privctl.domain.events import SecretMixture
from privctl.secrets.protection import Form, PlanFacts, Protection, staged_protection
from privctl.storage.digest import file_digest


def planned(
    probabilities: Sequence[float],
    secrets: Sequence[Sequence[int]],
    *,
    data: Path | None = None,
    steps: int = 10,
    prior: float = 0.01,
    posterior: float = 0.2,
    noise: float | None = None,
    form: Form = Form.REFERENCE,
    **changes: Any,
) -> Protection:
    """A plan with the least noise for all ``secrets``, given by their records, at one prior and posterior.

    ``changes`` are made to its arrays afterwards.
    """
    rates = np.array(probabilities, np.float64)
    pairwise = form is Form.PAIRWISE
    drawn = [tuple(r for r in rates[list(records)].tolist() if r) for records in secrets]
    if noise is None:
        found = (noise_multiplier_for(p, steps, prior, posterior, pairwise=pairwise) for p in drawn if p)
        noise = max(found, default=1.0)
    nats = np.array([_nats(p, noise, steps, pairwise) for p in drawn])
    facts = PlanFacts(
        data="blake3:00" if data is None else file_digest(data),
        data_name="train.jsonl" if data is None else data.name,
        texts=None if data is None else identified_texts(data)[1],
        examples=len(rates),
        secrets="blake3:11",
        steps=steps,
        batch_size=float(rates.sum()),
        noise_multiplier=noise,
        form=form,
        cap=5.0,
    )
    plan = Protection(
        facts=facts,
        ids=tuple(f"word-{i}" for i in range(len(secrets))),
        kinds=("word",) * len(secrets),
        weights=rates / rates.max(),
        probabilities=rates,
        starts=np.cumsum([0, *map(len, secrets)], dtype=np.int64),
        records=np.array([r for records in secrets for r in records], np.int64),
        priors=np.full(len(secrets), prior),
        posteriors=np.full(len(secrets), posterior),
        budgets=np.full(len(secrets), binary_kl(posterior, prior)),
        information=nats,
        posterior_bounds=np.array([_posterior(n, prior) for n in nats]),
        curve_bounds=np.full(len(secrets), math.nan),
    )
    return replace(plan, **changes)


def written(path: Path, plan: Protection) -> Path:
    """``plan`` at ``path``, pointing to a report beside it."""
    with staged_protection(path, plan, path.with_name(path.name + ".report.json")) as pending:
        pending.commit()
    return path


def _nats(drawn: tuple[float, ...], noise: float, steps: int, pairwise: bool) -> float:
    if not drawn:
        return 0.0
    return information(SecretMixture(probabilities=drawn, noise_multiplier=noise, steps=steps), pairwise=pairwise)


def _posterior(nats: float, prior: float) -> float:
    return posterior(nats, prior)
