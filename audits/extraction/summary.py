"""Evidence from the verdicts on many texts: rates with their intervals, and the power of comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.compare import NOT_BOTH, beyond, known_details
from audits.extraction.counts import UncertainCount, of_units
from audits.extraction.discoverable import least_queries, log_success
from audits.extraction.grid import over_grid
from audits.extraction.near import NEAR, NearMatches
from audits.extraction.reach import detectable, needed
from audits.statistics.metrics import CLOPPER_PEARSON
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHOD = "extraction"
#: The verdict rests on these: the rates on training text minus those on held-out text.
BEYOND, NEAR_BEYOND = "rate beyond held-out text", "near-verbatim rate beyond held-out text"
DISJOINT = "Clopper-Pearson of both rates, each at half the error"
#: Ranges of the number of training documents that contain a text; each gets its own rate.
BUCKETS = ((1, 1), (2, 9), (10, 99), (100, None))
#: A suffix with more than this fraction of its tokens in the prefix may be copied from it.
CUED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """One side's verdicts, all of shape [texts].

    ``extracted``, ``undecided`` and ``matched`` as in ``greedy.GreedyMatches``; ``copies``, ``shared`` and ``compared``
    as in ``windows.LabelledWindows``; ``cue`` as ``windows.cues``; ``logp`` (nats) of each suffix under the sampling
    law, or None. ``near`` compares the whole suffixes, or is None if decoding stopped at the first mismatch. ``unit``
    is each text's randomization unit, None if each text is its own. ``known`` marks what a reference model also
    produces, None without one.
    """

    line: NDArray[np.int64]
    matched: NDArray[np.int64]
    extracted: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    copies: NDArray[np.int64]
    shared: NDArray[np.bool_]
    compared: NDArray[np.bool_]
    cue: NDArray[np.float32]
    logp: NDArray[np.float64] | None
    near: NearMatches | None = None
    unit: NDArray[np.int64] | None = None
    known: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.line)

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Which texts [texts] are compared with the other file's.

        Excludes texts whose suffix may be copied from the prefix and texts known from elsewhere.
        """
        return self._comparable if self.known is None else self._comparable & ~self.known

    @property
    def _comparable(self) -> NDArray[np.bool_]:
        return self.compared & (self.cue <= CUED)

    @property
    def left_out(self) -> int:
        """How many texts are not compared only because they are known from elsewhere."""
        return int((self._comparable & ~self.judged).sum())

    @property
    def left_out_extracted(self) -> int:
        """How many of those come out."""
        return int((self._comparable & ~self.judged & self.extracted).sum())

    def judged_units(self) -> NDArray[np.int64] | None:
        """The randomization units of the ``judged`` texts; None if each text is its own."""
        return None if self.unit is None else self.unit[self.judged]

    def count(self, selected: NDArray[np.bool_] | None = None) -> UncertainCount:
        """The extracted texts among ``selected``, or among all."""
        among = np.ones(len(self), dtype=np.bool_) if selected is None else selected
        return UncertainCount.of(self.extracted[among], self.undecided[among])

    def judged_count(self) -> UncertainCount:
        """The extracted texts, or units, among the ``judged``."""
        judged = self.judged
        return UncertainCount.of(self.extracted[judged], self.undecided[judged], self.judged_units())

    def judged_logp(self) -> NDArray[np.float64] | None:
        """The log-probabilities of the ``judged`` texts, or the highest of each unit."""
        return None if self.logp is None else of_units(self.logp[self.judged], self.judged_units())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBudget:
    """A text counts as discoverable if ``count`` queries produce it with ``probability`` (Hayes et al. 2024).

    Raises CommandError for values out of range.
    """

    count: int = 100
    probability: float = 0.5

    def __post_init__(self) -> None:
        if self.count < 1:
            raise CommandError(f"--queries is {self.count}; it must be at least 1")
        if not 0 < self.probability < 1:
            raise CommandError(f"--query-probability is {self.probability:g}; it must lie between 0 and 1, exclusively")

    def finds(self, logp: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which texts of log-probability ``logp`` [texts] (nats) are discoverable."""
        return np.asarray(log_success(logp, self.count) >= np.log(self.probability))


def quantities(*, heldout: bool, sampled: bool, near: bool) -> int:
    """How many intervals ``summarize`` reports, for the Bonferroni correction."""
    of_training = 1 + len(BUCKETS) + sampled + len(NEAR) * near
    return of_training + (2 + 2 * sampled + 2 * near if heldout else 0)


def summarize(
    train: Texts, heldout: Texts | None, queries: QueryBudget, confidence: float, *, drawn: bool = False
) -> tuple[Evidence, ...]:
    """All rates. The first one decides the verdict and, if held-out text was given, has a ``chance``.

    If the sides were ``drawn`` by coins, rates are compared by Fisher's exact test, which is then exact.
    """
    samples = {"training": len(train)} | ({} if heldout is None else {"held_out": len(heldout)})
    rates = _Rates(samples=samples, confidence=confidence, drawn=drawn)
    evidence = [] if heldout is None else [_beyond(rates, train, heldout)]
    evidence.append(rates.evidence("rate on training text", train.count(), _details(train, confidence)))
    if heldout is not None:
        unseen = heldout.copies == 0
        evidence.append(rates.evidence("rate on held-out text", heldout.count(), {
            **_details(heldout, confidence),
            "suffix_not_in_training": int(unseen.sum()),
            "extracted_not_in_training": heldout.count(unseen).extracted,
        }))  # fmt: skip
    for least, most in BUCKETS:
        chosen = (train.copies >= least) & (train.copies <= (most or np.inf))
        if most is None:
            name = f"{least} or more documents"
        else:
            name = f"{least} document" if most == 1 else f"{least} to {most} documents"
        reason = "" if chosen.any() else f"no suffix occurs in {name} of the training data"
        evidence.append(rates.evidence(f"rate on text in {name}", train.count(chosen), {}, reason))
    evidence += _near(rates, train, heldout)
    for texts, name in ((train, "training"), (heldout, "held-out")):
        if texts is not None and texts.logp is not None:
            evidence.append(_discoverable(rates, texts.logp, name, queries))
    logp = train.judged_logp()
    if logp is not None:
        evidence.append(over_grid(logp, None if heldout is None else heldout.judged_logp(), 1 - confidence))
    return tuple(evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    samples: Mapping[str, int]
    confidence: float
    drawn: bool = False

    def evidence(
        self, quantity: str, count: UncertainCount, details: Mapping[str, float], reason: str = ""
    ) -> Evidence:
        lower, upper = count.interval(1 - self.confidence) if count.total else (None, None)
        return Evidence(
            method=METHOD,
            quantity=quantity,
            estimate=count.extracted / count.total if count.total else None,
            lower=lower,
            upper=upper,
            confidence=self.confidence,
            interval=CLOPPER_PEARSON,
            samples=self.samples,
            details={"texts": count.total, "extracted": count.extracted, **details},
            reason=reason or ("" if count.total else "no text is left to judge"),
        )


def _near(rates: _Rates, train: Texts, heldout: Texts | None) -> list[Evidence]:
    """Rates of texts within each distance of ``NEAR``; for the largest also on held-out text, and the difference."""
    if train.near is None:
        return []
    found = [
        rates.evidence(near_quantity("training", most), _within(train, most), _near_details(train, most))
        for most in NEAR
    ]
    if heldout is not None and heldout.near is not None:
        most = NEAR[-1]
        name = near_quantity("held-out", most)
        found.append(rates.evidence(name, _within(heldout, most), _near_details(heldout, most)))
        of_training, of_heldout = _judged_within(train, most), _judged_within(heldout, most)
        near = train.near.distance <= most, heldout.near.distance <= most
        found.append(_difference(rates, NEAR_BEYOND, of_training, of_heldout, _left_out(train, heldout, *near)))
    return found


def near_quantity(side: str, most: float) -> str:
    """The name of a near-verbatim rate."""
    return f"near-verbatim rate on {side} text, edit distance to {most:g}"


def _within(texts: Texts, most: float) -> UncertainCount:
    """The texts whose continuation is within the distance ``most`` of their suffix."""
    assert texts.near is not None
    return UncertainCount.of(texts.near.distance <= most, np.zeros(len(texts), dtype=np.bool_))


def _judged_within(texts: Texts, most: float) -> UncertainCount:
    """The same among the compared texts, or their units."""
    assert texts.near is not None
    near = texts.near.distance[texts.judged] <= most
    return UncertainCount.of(near, np.zeros(len(near), dtype=np.bool_), texts.judged_units())


def _near_details(texts: Texts, most: float) -> dict[str, float]:
    """Counts by characters and ignoring white space, and the longest common runs of tokens."""
    near = texts.near
    if near is None or not len(texts):
        return {}
    runs = {f"longest_run_p{q}": float(np.percentile(near.run, q, method="lower")) for q in (50, 90, 99, 100)}
    return {
        "distance": most,
        "by_characters": int((near.characters <= most).sum()),
        "equal_but_for_spaces": int(near.but_for_spaces.sum()),
        **runs,
    }


def _beyond(rates: _Rates, train: Texts, heldout: Texts) -> Evidence:
    """The difference of the rates over texts that may be compared.

    Suffixes whose tokens mostly occur in the prefix are left out: a model may copy these without having seen them.
    """
    left_out = _left_out(train, heldout, train.extracted, heldout.extracted)
    found = _difference(rates, BEYOND, train.judged_count(), heldout.judged_count(), left_out)
    repeated = ~train.compared & ~train.shared
    if train.known is not None:
        repeated &= ~train.known
    if not repeated.any():
        return found
    come_out = int((train.extracted & repeated).sum())
    return replace(found, details={**found.details, "repeated": int(repeated.sum()), "repeated_extracted": come_out})


def _left_out(
    train: Texts, heldout: Texts, train_out: NDArray[np.bool_], heldout_out: NDArray[np.bool_]
) -> dict[str, float]:
    """How many texts are not compared, by reason: in both files, possibly copied, or known from elsewhere.

    Also the total for each side, and how many of these come out.
    """
    cued = sum(int((side.cue > CUED).sum()) for side in (train, heldout))
    found: dict[str, float] = {"in_both": int(train.shared.sum()), **({"cued": cued} if cued else {})}
    if known := known_details(None if train.known is None else (train.left_out, heldout.left_out)):
        found |= known
        found["known_training_extracted"] = train.left_out_extracted
        found["known_held_out_extracted"] = heldout.left_out_extracted
    for name, side, out in (("training", train, train_out), ("held_out", heldout, heldout_out)):
        away = ~side.judged
        found |= {f"{name}_left_out": int(away.sum()), f"{name}_left_out_extracted": int((out & away).sum())}
    return found


def _difference(
    rates: _Rates, quantity: str, of_training: UncertainCount, of_heldout: UncertainCount, left_out: dict[str, float]
) -> Evidence:
    """The rate on training text minus that on held-out text; the counts ``left_out`` are added to the details."""
    alpha = 1 - rates.confidence
    details: dict[str, float] = {
        "chance": 0.0,
        "training_texts": of_training.total,
        "training_extracted": of_training.extracted,
        "held_out_texts": of_heldout.total,
        "held_out_extracted": of_heldout.extracted,
        **left_out,
    }
    if not (of_training.total and of_heldout.total):
        return Evidence(
            method=METHOD, quantity=quantity, estimate=None, confidence=rates.confidence,
            samples=rates.samples, details=details, reason=NOT_BOTH,
        )  # fmt: skip
    if rates.drawn:
        found = beyond(METHOD, quantity, of_training, of_heldout, rates.confidence)
        return replace(found, details=details | dict(found.details))
    (a, b), (c, d) = of_training.interval(alpha / 2), of_heldout.interval(alpha / 2)
    least_rate = detectable(of_training.total, of_heldout.most, of_heldout.total, alpha)
    estimates = (of_training.extracted / of_training.total, of_heldout.extracted / of_heldout.total)
    if a <= d:  # undecided: how many texts would decide if these are the true rates
        texts = needed(*estimates, alpha)
        details |= {} if texts is None else {"needed": texts}
    return Evidence(
        method=METHOD,
        quantity=quantity,
        estimate=estimates[0] - estimates[1],
        lower=a - d,
        upper=b - c,
        confidence=rates.confidence,
        interval=DISJOINT,
        samples=rates.samples,
        details=details
        | ({} if least_rate is None else {"detectable": max(0.0, least_rate - of_heldout.most / of_heldout.total)}),
    )


def _details(texts: Texts, confidence: float) -> dict[str, float]:
    """Counts, numbers of matched tokens, and the smallest rate that would have been observed at least once."""
    if not len(texts):
        return {}
    extracted = texts.extracted
    matched = {f"matched_p{q}": float(np.percentile(texts.matched, q, method="lower")) for q in (50, 90, 99, 100)}
    return {
        "undecided": int(texts.undecided.sum()),
        "extracted_cued": int((extracted & (texts.cue > CUED)).sum()),
        "matched_mean": float(texts.matched.mean()),
        **matched,
        "detectable": 1 - (1 - confidence) ** (1 / len(texts)),
    }


def _discoverable(rates: _Rates, logp: NDArray[np.float64], name: str, queries: QueryBudget) -> Evidence:
    success, hits = log_success(logp, queries.count), int(queries.finds(logp).sum())
    details: dict[str, float] = {"queries": queries.count, "probability": queries.probability}
    if len(logp):
        details["expected_share"] = float(np.exp(success).mean())
        fewest = least_queries(float(logp.max()), queries.probability)
        details |= {} if fewest is None else {"fewest_queries": fewest}
    quantity = f"{name} text found in {queries.count} queries with probability {queries.probability:g}"
    return rates.evidence(quantity, UncertainCount(extracted=hits, least=hits, most=hits, total=len(logp)), details)
