"""A book of secret digits in a tiny language, a plan that leaves some out, and models that learnt the rest."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audits.findings import Findings
from audits.scores.scorer import RowScores, compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, load_subject
from audits.secrets.audit import BaseModel, SecretRequest, SecretsAudit
from privctl.domain.evidence import Evidence
from privctl.parallel import ALONE, Workers
from privctl.secrets.protection import Form, PlanFacts, Protection, staged_protection
from privctl.storage.digest import file_digest
from tests.audits.canaries.small import WORDS
from tests.audits.tiny import write_jsonl


def prefixes(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [" ".join(source.sample(WORDS, 5)) + " pin" for _ in range(count)]


def pins(count: int, seed: int, front: str = "") -> list[str]:
    source = random.Random(seed)
    return [front + "".join(source.choices("0123456789", k=4)) for _ in range(count)]


def book(path: Path, rows: Sequence[tuple[str, Sequence[int]]], kind: str = "pin", **more: Any) -> Path:
    """Secrets by value and records."""
    lines = [
        {"id": f"{kind}-{i}", "kind": kind, "value": v, "records": list(r), **more} for i, (v, r) in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def protect(
    path: Path, data: Path, rows: Sequence[Sequence[int]], probabilities: Sequence[float], *, information: float,
    prior: float = 0.01, posterior: float = 0.02, kind: str = "pin",
) -> Path:  # fmt: skip
    """A plan that claims to leave ``information`` nats of each secret."""
    count = len(rows)
    chances = np.array(probabilities, dtype=np.float64)
    protection = Protection(
        facts=PlanFacts(
            data=file_digest(data), data_name=data.name, examples=len(chances), secrets="blake3:11", steps=10,
            batch_size=4.0, noise_multiplier=1.0, form=Form.REFERENCE, cap=5.0,
        ),
        ids=tuple(f"{kind}-{i}" for i in range(count)),
        kinds=(kind,) * count,
        weights=chances,
        probabilities=chances,
        starts=np.cumsum([0, *map(len, rows)]),
        records=np.array([r for some in rows for r in some], dtype=np.int64),
        priors=np.full(count, prior),
        posteriors=np.full(count, 0.5),
        budgets=np.full(count, 5.0),
        information=np.full(count, information),
        posterior_bounds=np.full(count, posterior),
        curve_bounds=np.full(count, np.nan),
    )  # fmt: skip
    with staged_protection(path, protection, path.with_suffix(".report.json")) as pending:
        pending.commit()
    return path


def judged(
    folder: Path,
    request: SecretRequest,
    base: Path | None = None,
    *,
    alpha: float = 0.05,
    task: str | None = None,
    workers: Workers = ALONE,
) -> Findings:
    """What the part finds of the model at ``folder``, all else done as an audit does it."""
    subject = load_subject(folder, device="cpu", task=task)
    before = None if base is None else _base(load_subject(base, device="cpu", task=task))
    part = SecretsAudit(subject, request, before, workers=workers)
    found: Findings = part.judge(_scored(subject, part.rows), alpha)
    return found


def _base(subject: AuditedModel) -> BaseModel:
    return BaseModel(subject=subject, score=lambda rows: _scored(subject, rows))


def _scored(subject: AuditedModel, rows: Sequence[Any]) -> RowScores:
    return compute_scores(plan_scoring(subject.scorer, rows))


def of(found: Findings, quantity: str) -> Evidence:
    (each,) = [item for item in found.evidence if item.quantity == quantity]
    return each


def records(folder: Path, name: str, texts: Sequence[str]) -> Path:
    return write_jsonl(folder / name, texts)
