"""What an audit of gradient canaries could show at best, computed before the training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privctl.train.preparation.job import TrainingJob


def outlook(job: TrainingJob) -> Iterator[str]:
    """One sentence on the largest epsilon that can be certified, if ``job`` mixes in canary gradients; else nothing."""
    request, recipe = job.request, job.recipe
    count = request.method.canaries(request)
    if count is None or job.delta is None:
        return
    from audits.canaries.gradients import outlook_of
    from audits.claims import CurveClaim, with_half_noise
    from privctl.accounting.ledger import epsilon_bound
    from privctl.accounting.profile import profile
    from privctl.train.preparation.ledgers import ledger_of

    side = request.method.side_releases(request, len(job.task), recipe.steps, recipe.sample_rate)
    measured = None if side is None else side.event(recipe.noise_multiplier)
    ledger, whole = (ledger_of(recipe, recipe.steps, measured=event) for event in (None, measured))
    try:
        half = profile(with_half_noise(ledger))
        curve = CurveClaim(mechanism=ledger, points=profile(ledger), source=request.output.name, half=half)
    except (ArithmeticError, ValueError):  # noise beyond what the accountant can handle
        curve = None
    yield outlook_of(count, job.delta, epsilon_bound(whole, job.delta), curve)
