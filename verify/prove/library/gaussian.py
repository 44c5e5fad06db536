"""The Gaussian mechanism: its delta against a bound.

Not proved here but cited: no event tells two hypotheses apart better than a half-line of their likelihood ratio (Neyman
and Pearson 1933), k Gaussians compose to one (Dong, Roth and Su 2019), whoever processes an output learns no more.
"""

from __future__ import annotations

from fractions import Fraction

from verify.prove.enclosures.gaussian import GaussianEvent
from verify.prove.library.numbers import NumericComparison


def delta_bound(name: str, event: GaussianEvent, delta: Fraction, words: str) -> NumericComparison:
    """Delta = p - growth q against ``delta``, with p, q and growth known by enclosures.

    Where q is too small to be written down, its product with growth is enclosed instead.
    """
    tiny = event.q.low <= 0
    factors = {"weighted": event.weighted} if tiny else {"q": event.q, "growth": event.growth}
    return NumericComparison(
        name=name,
        statement=f"{words}: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) is at most {delta}.",
        boxes={"p": event.p, **factors},
        term="(- p weighted)" if tiny else "(- p (* growth q))",
        bound=delta,
    )
