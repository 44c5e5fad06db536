"""The Gaussian mechanism: delta compared with a bound."""

from __future__ import annotations

from fractions import Fraction

from verify.prove.enclosures.gaussian import GaussianEvent
from verify.prove.library.numbers import NumericComparison


def delta_bound(name: str, event: GaussianEvent, delta: Fraction, words: str) -> NumericComparison:
    """Compares delta = p - growth q with the bound ``delta``, given enclosures of p, q and growth.

    If q is too small to be written down, the enclosure of its product with growth is used instead.
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
