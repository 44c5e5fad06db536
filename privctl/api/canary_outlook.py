"""What the canary gradients of a training can show at best, told before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privctl.train.preparation.job import TrainingJob


def outlook(job: TrainingJob) -> Iterator[str]:
    """One sentence where ``job`` mixes in canary gradients; none else."""
    from privctl.train.methods.dp_sgd.settings import DpSgdSettings

    settings = job.request.settings
    if not isinstance(settings, DpSgdSettings) or settings.gradient_canaries is None or job.delta is None:
        return
    from audits.canaries.gradients import outlook_of
    from audits.claims import CurveClaim, with_half_noise
    from privctl.accounting.ledger import epsilon_bound
    from privctl.accounting.profile import profile
    from privctl.train.preparation.ledgers import ledger_of

    ledger = ledger_of(job.recipe, job.recipe.steps)
    try:
        half = profile(with_half_noise(ledger))
        curve = CurveClaim(mechanism=ledger, points=profile(ledger), source=job.request.output.name, half=half)
    except (ArithmeticError, ValueError):  # noise that no real run has
        curve = None
    yield outlook_of(settings.gradient_canaries, job.delta, epsilon_bound(ledger, job.delta), curve)
