"""Guarantees of secrets that a plan protects: which secret is nearest to its bound, and what it gives away.

The report's ledger is that of one record; the records of each secret stand in the plan, which must be at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from privctl.codec import parse_json
from privctl.domain.errors import InputFault
from privctl.domain.events import Ledger, SampledGaussian, SecretMixture
from privctl.domain.report import Artifact, PrivacyReport
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from verify.recompute import secret
from verify.recompute.protection import KEY, MOST, arrays_of


def with_nearest_secret(report: PrivacyReport, files: Sequence[tuple[Artifact, Path]]) -> PrivacyReport:
    """``report`` with the ledger of the secret that comes nearest to its bound, by the plan among ``files``.

    The report itself where no plan that it names is at hand, or one whose form or size is not computed again.
    """
    mechanism = report.mechanism
    if not isinstance(mechanism, Ledger) or not all(isinstance(event, SampledGaussian) for event in mechanism.events):
        return report
    noises = {event.noise_multiplier for event in mechanism.events if isinstance(event, SampledGaussian)}
    steps = sum(event.steps for event in mechanism.events)
    plans = {(a.digest, place) for a, place in files if place.suffix == ".safetensors" and a.role != "model"}
    at_hand = NamedFiles()
    for digest, place in sorted(plans):
        if at_hand.digest(place) != digest:
            continue
        chances = _nearest(place, max(noises), steps) if len(noises) == 1 else ()
        if chances:
            event = SecretMixture(probabilities=chances, noise_multiplier=max(noises), steps=steps)
            return replace(report, mechanism=Ledger(events=(event,)))
    return report


def _nearest(place: Path, noise: float, steps: int) -> tuple[float, ...]:
    """The probabilities of the records of the secret with the largest share of its budget; none where unknown."""
    try:
        with SafetensorsFile(place) as file:
            if KEY not in file.metadata:
                return ()
            facts = parse_json(file.metadata[KEY], str(place))
            arrays = arrays_of(file)
    except InputFault:
        return ()  # said where the plan itself is checked
    starts, records, budgets = arrays["starts"], arrays["records"], arrays["budgets"]
    if not isinstance(facts, dict) or facts.get("form") != "reference" or not 0 < len(budgets) <= MOST:
        return ()
    held = [arrays["probabilities"][records[starts[j] : starts[j + 1]]] for j in range(len(budgets))]
    shares = [
        secret.of_records(chances.tolist(), noise, steps).lower / max(budget, 1e-300)
        for chances, budget in zip(held, budgets, strict=True)
    ]
    found = held[int(np.argmax(shares))]
    return tuple(found[found > 0].tolist())
