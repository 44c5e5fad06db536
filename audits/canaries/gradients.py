"""The audit of a private training by canary gradients that the training itself added (``--gradient-canaries``).

Two things were observed of each canary while the model was trained: the released gradients of every step, and how far
the final weights moved. The first is what the accountant assumes an attacker sees; the second is what a released model
shows. Both are functions of what was released, so the one-run bounds hold for either.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries import verdict
from audits.canaries.audit import CanaryRequest
from audits.canaries.bounds import bounds_of, curve_parameters
from audits.canaries.conditions import number_included, share_of_failures, violated_conditions
from audits.canaries.design import power_ceiling, register
from audits.canaries.stated_noise import are_independent, noise_bound, noise_in_words, noise_parameters
from audits.canaries.verdict import power_at_half_noise
from audits.claims import CurveClaim
from audits.findings import ALPHA, Findings
from audits.scores.scorer import RowScores
from audits.statistics.several_guesses import GuessCount
from privctl.domain.errors import InputError
from privctl.domain.events import TruncatedGaussian
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.reports.codec import decode_value, encode_value
from privctl.storage.digest import file_digest
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KIND = "privctl-gradient-canaries"
_MORE = "train with more --gradient-canaries (privctl canary plant"
_VERSION = 1
#: The suffix, after the model's name, of the file that a training leaves beside the model.
_SUFFIX = ".gradient-canaries.json"
#: The minimum number of canaries for a bound, and the maximum number of a training.
_FEWEST, _MOST = 2, 100_000
#: Smaller probabilities are not stated as numbers.
_LEAST_CHANCE = 0.01
EVERY_STEP, END = _OBSERVED = "every step", "final weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEvidence:
    """A training's observations of its canaries: coins (0 or 1) and two scores each, higher for included ones.

    Raises ValueError for inconsistent values.
    """

    version: int
    created: str
    model: str
    delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    included: tuple[int, ...]
    every_step: tuple[float, ...]
    end: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.version != _VERSION:
            raise ValueError(f"version is {self.version}; this privctl reads version {_VERSION}")
        if not _FEWEST <= len(self.included) <= _MOST or set(self.included) - {0, 1}:
            raise ValueError(f"included must hold between {_FEWEST} and {_MOST} coins, each 0 or 1")
        for name, scores in (("every_step", self.every_step), ("end", self.end)):
            if len(scores) != len(self.included) or not all(map(math.isfinite, scores)):
                raise ValueError(f"{name} must hold a finite number for each of the {len(self.included)} canaries")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta is {self.delta:g}; it must be at least 0 and below 1")


def is_gradient_evidence(path: Path) -> bool:
    """Whether ``path`` holds observations of canary gradients rather than a manifest of planted canaries."""
    try:
        data = parse_json(read_text(path), str(path))
    except InputError:
        return False  # reading it as a manifest gives a better error
    return isinstance(data, dict) and data.get("kind") == _KIND


def unused_beside(model: Path, digest: str | None) -> str:
    """What to do with the file of canary gradients beside ``model``; empty unless its digest is ``digest``."""
    place = model.absolute().with_name(model.absolute().name + _SUFFIX)
    if not digest or not place.is_file() or file_digest(place) != digest:
        return ""
    return (
        f"{place.name} beside {model} holds what its training observed of canary gradients; judge it with "
        f"privctl audit canaries {shlex.quote(str(model))} --canaries {shlex.quote(str(model.with_name(place.name)))}"
    )


def read_gradient_evidence(path: Path) -> GradientEvidence:
    """The observations at ``path``. Raises InputError for anything else."""
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict) or data.pop("kind", None) != _KIND:
        raise InputError(f"{path} holds no observations of canary gradients; give what --gradient-canaries wrote")
    return decode_value(GradientEvidence, data, str(path), "canaries")


def outlook_of(count: int, delta: float, epsilon: float, curve: CurveClaim | None) -> str:
    """The most that ``count`` canaries can show of a training that states ``epsilon`` and ``curve``, in a sentence."""
    sets, alpha = register([1] * count), ALPHA / len(_OBSERVED)
    highest = power_ceiling(sets, delta, alpha)
    sentence = f"{count} canary gradients certify an epsilon of {highest:.4g} at most at delta {delta:g}, "
    sentence += "above" if highest > epsilon else "which cannot contradict"
    sentence += f" the {epsilon:.4g} that this training states"
    if curve is not None:
        guesses = [GuessCount(canaries=count, guesses=guess_set.guesses, correct=0) for guess_set in sets]
        chance = power_at_half_noise(guesses, curve, alpha, independent=are_independent(curve))
        about = f"about {chance:.2g}" if chance >= _LEAST_CHANCE else f"less than {_LEAST_CHANCE:g}"
        sentence += f"; they would detect half of its noise with a probability of {about}"
    return sentence


class GradientCanaryAudit:
    """What the released gradients and weights of a training reveal about the coins of its canaries."""

    def __init__(self, request: CanaryRequest, digest: str | None, *, measured: bool = False) -> None:
        """``digest`` is that of the file named by the model's own report: empty if none is, None without a report.

        ``measured`` says that the report's mechanism has measurements beside the steps, which the curve leaves out.
        Raises InputError for a file of another kind.
        """
        self._request, self._measured = request, measured
        self._evidence = read_gradient_evidence(request.manifest)
        self._conditions = conditions(self._evidence, file_digest(request.manifest), digest)
        self.rows: Sequence[NDArray[Any]] = []

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Bounds from either observation, and verdicts, jointly wrong with probability at most ``alpha``."""
        canary_evidence, request = self._evidence, self._request
        included = np.array(canary_evidence.included, dtype=np.bool_)
        scores = {EVERY_STEP: np.array(canary_evidence.every_step), END: np.array(canary_evidence.end)}
        sets, delta = register([1] * len(included)), canary_evidence.delta if request.delta is None else request.delta
        reason = "; ".join(condition.statement for condition in violated_conditions(self._conditions))
        everything = np.ones(len(included), dtype=np.bool_)
        share = alpha / len(scores) * share_of_failures(int(included.sum()), len(included))
        evidence = tuple(
            item
            for name, values in scores.items()
            for item in bounds_of(sets, values, everything, included, delta, share, reason=reason, name=name)
        )
        noise = noise_bound(evidence, request.curve, delta, own_coordinates=True)
        return Findings(
            evidence=(*evidence, *noise),
            verdicts=(
                *verdict.claims(evidence, request.claims, more=_MORE),
                *verdict.curves(evidence, request.curve, noise, own_coordinates=True),
            ),
            warnings=(
                "canary gradients test the training program: they were drawn by it, so a program that cheats on "
                "purpose is not caught",
                "their gradients are the strongest that one record, or one user, can send; those of the data show less",
                *_unseen(request.curve, measured=self._measured),
                *noise_in_words(noise),
                *(condition.statement for condition in self._conditions if condition.state is AssumptionState.ASSERTED),
            ),
            parameters={
                "canary_delta": delta,
                "canary_conditions": [encode_value(condition) for condition in self._conditions],
                **curve_parameters(request.curve),
                **noise_parameters(noise),
            },
            arrays={
                "gradient.included": included,
                "gradient.every_step": scores[EVERY_STEP],
                "gradient.end": scores[END],
            },
        )


def _unseen(curve: CurveClaim | None, *, measured: bool) -> Iterator[str]:
    """What canaries do not test of the stated mechanism."""
    if curve is not None and any(isinstance(event, TruncatedGaussian) for event in curve.mechanism.events):
        yield "no record is cut from a batch for a canary: canaries show the noise, not which records are kept"
    if curve is not None and measured:
        yield "no canary takes part in measurements of layers: the mechanism is tested without them, by its steps alone"


def conditions(evidence: GradientEvidence, digest: str, named: str | None) -> tuple[Assumption, ...]:
    """The conditions of the bounds: the file is the training's own, and its coins were fair and independent."""
    state, statement = AssumptionState.ASSERTED, "the observations are those of this model's training"
    if named is not None:
        fits = named == digest
        state = AssumptionState.CHECKED if fits else AssumptionState.VIOLATED
        statement = (
            "the model's training report names this file of canary gradients, by digest"
            if fits
            else "the model's training report names another file of canary gradients"
            if named
            else "the model's own report is of no training with canary gradients"
        )
    return (
        Assumption(
            name="independent coins",
            statement="the training included each canary gradient by a fair coin of its own",
            state=AssumptionState.ASSERTED,
        ),
        number_included(sum(evidence.included), len(evidence.included)),
        Assumption(name="trained on the planted data", statement=statement, state=state),
    )
