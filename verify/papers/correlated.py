"""Correlated noise: banded matrices with amplification, buffers (BLT), and sums along trees.

Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; Dvijotham et al. 2024; Kairouz et al. 2021.
"""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import gaussian_claim, judge_gaussian, theorem_claim
from verify.papers.sampling import judge_floor, judge_sampled
from verify.prove.enclosures import gaussian
from verify.prove.enclosures.enclosure import decimal
from verify.prove.library import training
from verify.prove.prover import Prover

_DELTA, _TREE_DELTA = Fraction(1, 10**5), Fraction(1, 10**6)
#: The noise multiplier, sampling rate and steps of a training, and its number of bands.
_NOISE, _RATE, _STEPS, _BANDS = Fraction(1), Fraction(1, 100), 400, 8
#: A matrix with one buffer, c_0 = 1 and c_t = 1/2 (9/10)^(t-1); the number of passes, steps per pass, and the noise.
_WEIGHT, _DECAY, _PASSES, _PASS, _BLT_NOISE = Fraction(1, 2), Fraction(9, 10), 4, 8, Fraction(20)
_TREE_NOISE, _TREE_STEPS = Fraction("8.83"), 1600


def column(position: int, steps: int) -> list[Fraction]:
    """A column of the buffered matrix: the weight in each row of a contribution in step ``position`` of ``steps``."""
    later = [_WEIGHT * _DECAY**t for t in range(steps - position - 1)]
    return [Fraction(0)] * position + [Fraction(1)] + later


def shift_of_passes() -> Fraction:
    """The squared norm of the sum of all columns of a record that comes first in each pass."""
    columns = [column(i * _PASS, _PASSES * _PASS) for i in range(_PASSES)]
    return sum((sum(row, Fraction(0)) ** 2 for row in zip(*columns, strict=True)), Fraction(0))


def tree_shift(steps: int, passes: int, *, restarts: bool) -> int:
    """The largest squared shift of a record's nodes in trees over ``passes`` of ``steps`` steps, both powers of two.

    It is the maximum over positions in a pass of the sum, over complete nodes, of the squared number of uses below
    them. A tree ``restarts`` with each pass, or spans all passes.
    """
    whole = steps if restarts else steps * passes
    trees = steps * passes // whole

    def of_position(position: int) -> int:
        uses = [position + i * steps for i in range(passes)] if not restarts else [position]
        total, width = 0, 1
        while width <= whole:
            counts = [sum(start <= use < start + width for use in uses) for start in range(0, whole - width + 1, width)]
            total += sum(count**2 for count in counts)
            width *= 2
        return trees * total

    return max(of_position(position) for position in range(steps))


def _amplified(prover: Prover) -> Judgement:
    words = f"{_STEPS // _BANDS} turns of noise multiplier {decimal(_NOISE)} at rate {decimal(_BANDS * _RATE)}"
    noise = (_NOISE, _BANDS * _RATE, _STEPS // _BANDS)
    return judge_sampled(prover, "banded-amplified", words, noise, _DELTA, Fraction("4.81"))


def _plain_rate(prover: Prover) -> Judgement:
    words = f"{_STEPS // _BANDS} turns at rate {decimal(_BANDS * _RATE)}, in which the record is alone with its part"
    noise = (_NOISE, _BANDS * _RATE, _STEPS // _BANDS)
    return judge_floor(prover, "banded-plain-rate", words, noise, _DELTA, Fraction("1.58"))


def _uses_as_if_apart(prover: Prover) -> Judgement:
    alone = sum((entry**2 for entry in column(0, _PASSES * _PASS)), Fraction(0))
    claimed = gaussian.epsilon(_DELTA, _PASSES * alone / _BLT_NOISE**2, digits=9).high
    words = f"{_PASSES} passes of {_PASS} steps, of which the columns overlap"
    return judge_gaussian(prover, "buffers-apart", words, claimed, _DELTA, shift_of_passes() / _BLT_NOISE**2)


def _one_tree(prover: Prover) -> Judgement:
    noise = Fraction(10)
    claimed = gaussian.epsilon(_TREE_DELTA, tree_shift(16, 4, restarts=True) / noise**2, digits=9).high
    nodes = tree_shift(16, 4, restarts=False)
    words = f"4 passes of 16 steps in one tree, whose nodes move by a squared length of {nodes}"
    return judge_gaussian(prover, "tree-passes", words, claimed, _TREE_DELTA, nodes / noise**2)


PAPER = Paper(
    title="Correlated noise",
    claims=(
        PublishedClaim(
            key="mf-apart",
            statement="Uses of a record as many steps apart as there are bands cost as much as that many Gaussians.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.uses_apart(), because="columns so far apart have no row in common"),
        ),
        PublishedClaim(
            key="mf-early",
            statement="Uses that are one step closer cost the same.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.uses_that_meet(), because="they meet in a row and add up", correct=training.uses_apart()
            ),
        ),
        PublishedClaim(
            key="mf-amplified",
            statement="400 steps at rate 0.01 and noise 1 in 8 bands, with parts in turn, are (4.81, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_amplified,
        ),
        PublishedClaim(
            key="mf-plain-rate",
            statement="They cost as much as such steps with independent noise, epsilon 1.58.",
            expected=Outcome.REFUTED,
            judge=_plain_rate,
        ),
        PublishedClaim(
            key="mf-equal-uses",
            statement="If no two columns have a negative inner product, equal contributions are the worst case.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.equal_uses_are_worst(), because="no inner product of contributions exceeds 1"),
        ),
        PublishedClaim(
            key="mf-any-sign",
            statement="Equal contributions are the worst case for every matrix.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.equal_uses_are_worst(inner=False),
                because="opposite ones move two columns of a negative inner product further",
                correct=training.equal_uses_are_worst(),
            ),
        ),
        PublishedClaim(
            key="blt-as-if-apart",
            statement="With buffers, k uses of a record cost as much as k single uses (4 passes of 8 steps, noise 20).",
            expected=Outcome.REFUTED,
            judge=_uses_as_if_apart,
        ),
        PublishedClaim(
            key="tree-levels",
            statement="DP-FTRL: one pass of 1600 steps with noise 8.83 on each node is (2.04, 1e-6)-DP.",
            expected=Outcome.PROVED,
            judge=gaussian_claim(
                "tree-levels",
                f"a step is below a node of each of {_TREE_STEPS.bit_length()} levels",
                Fraction("2.04"),
                _TREE_DELTA,
                _TREE_STEPS.bit_length() / _TREE_NOISE**2,
            ),
        ),
        PublishedClaim(
            key="tree-passes",
            statement="Passes over one tree without restarts cost as much as passes over trees with them (noise 10).",
            expected=Outcome.REFUTED,
            judge=_one_tree,
        ),
    ),
    unchecked=(
        Omission(
            what="Correlated noise: that it makes better models",
            reason="the error of sums is computed, accuracy is measured; see docs/mechanisms.md#correlated-noise",
        ),
    ),
)
