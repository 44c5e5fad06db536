"""Tests of whether training made secrets easier to tell, done again with the ranks that an audit kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaincc

from privctl.domain.evidence import Evidence
from verify.audits.secrets.kept import KeptSecrets

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACE = "secret trace"
_DESIGNED, _CONTROLLED, _PAIRED = "drawn at random", "against those never drawn", "against the base model"
_HELD_OUT = "against held-out secrets"
#: How many permutations an audit draws, and the most values that it shuffles at a time, which decides what is drawn.
_DRAWS, _AT_ONCE = 9999, 1 << 16
#: A gap counts as reached from this much below it; sums that are added in another order differ by less than half of it.
_REACHED = 1e-12
_ROUNDING = 1e-9
#: Another version of numpy may draw other permutations; then a p-value may lie this many deviations away.
_DEVIATIONS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedAgain:
    """The numbers that were ``compared``, the ``excess``, and the limits between which the p-value must lie.

    ``least`` is the smallest p-value that these secrets could have given, 0 if that is not computed. ``effective`` is
    the number of secrets that tell as much with candidates of their own, None if that does not matter.
    """

    compared: tuple[int, int]
    excess: float
    p_values: tuple[float, float]
    least: float = 0.0
    effective: float | None = None

    def faults(self, item: Evidence) -> Iterator[str]:
        """Yields a sentence for each number of ``item`` that differs."""
        for name, count in zip(("secrets", "compared_with"), self.compared, strict=True):
            if item.samples.get(name) != count:
                yield f"it compares {item.samples.get(name)} as {name}, and {count} are kept"
        if item.estimate is None or not math.isclose(item.estimate, self.excess, rel_tol=1e-6, abs_tol=_ROUNDING):
            yield f"its estimate is {item.estimate}, and the ranks kept give {self.excess:.6g}"
        low, high = self.p_values
        p_value = item.details.get("p_value", math.nan)
        if not low * (1 - 1e-6) <= p_value <= high * (1 + 1e-6):
            yield f"its p-value is {p_value:.6g}, and the ranks kept give {low:.6g}"
        told = item.details.get("effective", math.nan)
        if self.effective is not None and not math.isclose(told, self.effective, rel_tol=1e-6):
            yield f"its effective number is {told:.6g}, and what was kept gives {self.effective:.6g}"
        level, stated = item.details.get("level", 0.0), item.details.get("least_p_value")
        if stated is None:  # older audits did not state it
            if self.least > level:
                yield "it does not say that no ranks of so many candidates could have been significant"
        elif not math.isclose(stated, self.least, rel_tol=1e-6, abs_tol=1e-300):
            yield f"its least p-value is {stated:.6g}, and the candidates kept give {self.least:.6g}"


def tested_again(item: Evidence, kept: KeptSecrets, seed: int, *, same: bool) -> TestedAgain | None:
    """The test ``item`` with the ranks ``kept``; None if they do not give it.

    ``seed`` is that of the permutations, and ``same`` says whether this numpy is the version that drew them.
    """
    parts = item.quantity.split(", ", 1)[-1].split(", by ", 1)
    if len(parts) < 2:
        return None
    name, score = parts
    values = kept.values_by(score)
    if values is None:
        return None
    if name == _DESIGNED:
        return _by_design(kept, score)
    if name == _PAIRED:
        return _paired(kept)
    if name == _CONTROLLED:
        chosen = ~kept["designed"] & ~kept["held_out"]
        strata, control = kept["kind"], kept["control"]
    elif name == _HELD_OUT:
        chosen, strata, control = kept["stratum"] >= 0, kept["stratum"], kept["held_out"]
    else:
        return None
    return _permuted(values[chosen], control[chosen], strata[chosen], seed, same=same)


def _by_design(kept: KeptSecrets, score: str) -> TestedAgain | None:
    """Values that were drawn like their candidates: ranks are uniform, or in a beam by chance."""
    chosen = kept["designed"] & kept.trained
    count, ranks = int(chosen.sum()), kept.ranked(score)
    if not count:
        return None
    if ranks is None:
        hits, chances = int(kept["in_beam"][chosen].sum()), kept["in_beam_by_chance"][chosen]
        tail = _at_least(hits, chances)
        return TestedAgain(
            compared=(count, 0),
            excess=hits / count - float(chances.mean()),
            p_values=(tail, tail),
            least=math.prod(chances.tolist()),
        )
    bits, among = ranks.bits[chosen], ranks.count[chosen]
    # The mean of log2(n / r) over ranks r from 1 to n is log2(n) - log2(n!) / n.
    by_chance = [math.log2(n) - math.lgamma(n + 1) / math.log(2) / n for n in among.tolist()]
    # Candidates drawn from n values correlate the logarithms of ranks by 1 / n (Brown 1975).
    pools = kept["pool"][chosen] if "pool" in kept else np.full(count, np.inf)
    sizes = {pool: int((pools == pool).sum()) for pool in set(pools.tolist())}
    spread = math.fsum(size * (1 + (size - 1) / pool) for pool, size in sizes.items()) / count
    p_value = float(gammaincc(count / spread, math.log(2) * float(bits.sum()) / spread))
    return TestedAgain(
        compared=(count, 0),
        excess=float(bits.mean()) - math.fsum(by_chance) / count,
        p_values=(p_value, p_value),
        least=float(gammaincc(count / spread, math.fsum(math.log(n) for n in among.tolist()) / spread)),
        effective=count / spread if "pool" in kept else None,
    )


def _at_least(hits: int, chances: NDArray[np.float64]) -> float:
    """P(at least ``hits`` successes) for independent trials of these ``chances``, by their generating function."""
    law = np.zeros(len(chances) + 1)
    law[0] = 1.0
    for trials, chance in enumerate(chances.tolist(), start=1):
        law[1 : trials + 1] = law[1 : trials + 1] * (1 - chance) + law[:trials] * chance
        law[0] *= 1 - chance
    return min(1.0, math.fsum(law[hits:].tolist()))


def _paired(kept: KeptSecrets) -> TestedAgain | None:
    """McNemar's exact test of the secrets that rank first with one of two models."""
    chosen, after, before = ~kept["designed"] & kept.trained, kept.ranked(""), kept.ranked("_before")
    if after is None or before is None or not chosen.any():
        return None
    gained = int((after.first & ~before.first & chosen).sum())
    lost = int((before.first & ~after.first & chosen).sum())
    count, either = int(chosen.sum()), gained + lost
    tail = math.fsum(math.comb(either, k) / 2**either for k in range(gained, either + 1))
    p_value = min(1.0, tail)
    return TestedAgain(compared=(count, count), excess=(gained - lost) / count, p_values=(p_value, p_value))


def _permuted(
    values: NDArray[np.float64], control: NDArray[np.bool_], strata: NDArray[np.int64], seed: int, *, same: bool
) -> TestedAgain | None:
    """The gap of the means of trained and control secrets, strata weighted by n m / (n + m), under permutations."""
    mixed = {
        stratum: strata == stratum
        for stratum in np.unique(strata).tolist()
        if 0 < int(control[strata == stratum].sum()) < int((strata == stratum).sum())
    }
    if not mixed:
        return None
    drawn = np.random.default_rng(seed)
    weights = {stratum: _harmonic(control[inside]) for stratum, inside in mixed.items()}
    observed, gaps = 0.0, np.zeros(_DRAWS)
    for each, inside in mixed.items():
        stratum_values, of_control = values[inside], control[inside]
        count, size = len(stratum_values), int(of_control.sum())
        sums = np.concatenate([_sums(drawn, stratum_values, size), [stratum_values[of_control].sum()]])
        gap = ((stratum_values.sum() - sums) / (count - size) - sums / size) * weights[each] / sum(weights.values())
        observed, gaps = observed + float(gap[-1]), gaps + gap[:-1]
    low, high = (float(1 + (gaps >= observed - near).sum()) / (1 + _DRAWS) for near in (_REACHED / 2, _ROUNDING))
    if not same:
        spread = _DEVIATIONS * math.sqrt(2 * high * (1 - low) / _DRAWS) + _DEVIATIONS / _DRAWS
        low, high = max(0.0, low - spread), high + spread
    sides = [int(side[inside].sum()) for side in (~control, control) for inside in [np.any([*mixed.values()], axis=0)]]
    return TestedAgain(compared=(sides[0], sides[1]), excess=observed, p_values=(low, high))


def _harmonic(control: NDArray[np.bool_]) -> float:
    return float(control.sum() * (~control).sum() / len(control))


def _sums(drawn: np.random.Generator, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The sums of the first ``size`` of permuted ``values``, [``_DRAWS``], drawn in the portions of an audit."""
    rows = max(1, _AT_ONCE // len(values))
    portions = [min(rows, _DRAWS - start) for start in range(0, _DRAWS, rows)]
    return np.concatenate(
        [drawn.permuted(np.tile(values, (portion, 1)), axis=1)[:, :size].sum(axis=1) for portion in portions]
    )


def plan_again(kept: KeptSecrets) -> Mapping[str, float] | None:
    """What the test of a plan's bounds counts; None without secrets that were drawn at random and have a bound."""
    chosen, ranks = kept["designed"] & ~np.isnan(kept["bound"]), kept.ranked("")
    if ranks is None or not chosen.any():
        return None
    told, allowed = int(ranks.first[chosen].sum()), math.fsum(kept["bound"][chosen].tolist())
    return {"told": told, "allowed_on_average": allowed, "secrets": int(chosen.sum())}
