"""The canary part of an audit: the losses of planted secrets compared with those of fresh ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries import enumerate as enumeration
from audits.canaries import verdict
from audits.canaries.bounds import EITHER, bounds, curve_parameters, not_made
from audits.canaries.conditions import conditions, data_conditions
from audits.canaries.evidence import COMPLETION, completions, exposures_by_copies, extrapolation, leak_tests
from audits.canaries.manifest import Manifest, read_manifest
from audits.canaries.rows import CanaryRows, canary_rows, draw_references, groups_of, references_per_group
from audits.canaries.scores import CanaryScores, score_canaries
from audits.canaries.stated_noise import noise_bound, noise_in_words, noise_parameters
from audits.claims import CurveClaim, EpsilonClaim
from audits.findings import Findings
from audits.scores.scorer import RowScores
from privctl.domain.checks import fraction
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers
from privctl.reports.codec import encode_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The maximum number of references per group.
_MOST_REFERENCES = 100_000
#: Shares of the allowed failure probability, besides ``BOUNDS_SHARE``.
_TESTS_SHARE = _INTERVALS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRequest:
    """Which canaries to audit, and how.

    ``references`` is the number of fresh secrets for each format and prefix; None means 63 to 4095, about 20,000 in
    all. ``exact`` ranks among all possible secrets; None does so if it costs no more than references. ``delta`` None
    means the manifest's. ``commitment`` is the hash published before training. ``trained_on`` are the digests of the
    training data named by the model's own report, None without such a report. ``planted`` is the planted data, checked
    if given. ``seed`` draws references and need not be secret. ``curve`` is the trade-off curve of the mechanism stated
    by the model's report. Raises CommandError for values out of range.
    """

    manifest: Path
    references: int | None = None
    exact: bool | None = None
    delta: float | None = None
    commitment: str | None = None
    trained_on: tuple[str, ...] | None = None
    planted: Path | None = None
    seed: int = 0
    claims: tuple[EpsilonClaim, ...] = ()
    curve: CurveClaim | None = None

    def __post_init__(self) -> None:
        if self.references is not None and not 10 <= self.references <= _MOST_REFERENCES:
            raise CommandError(
                f"--references is {self.references}; a canary is compared with 10 to {_MOST_REFERENCES} fresh secrets"
            )
        if self.delta is not None:
            try:
                fraction("--delta", self.delta, zero=True)
            except ValueError as error:
                raise CommandError(str(error)) from None


class CanaryAudit:
    """Whether the model memorized the planted canaries, and what that implies for epsilon."""

    def __init__(self, model: LanguageModel, request: CanaryRequest, workers: Workers = ALONE) -> None:
        """Read the manifest and draw references. Raises InputError for an unusable manifest or tokenizer."""
        self._model, self._workers = model, workers
        self._request = request
        self._manifest = read_manifest(request.manifest)
        self._conditions = conditions(self._manifest, commitment=request.commitment, trained_on=request.trained_on)
        if request.planted is not None:
            self._conditions += data_conditions(self._manifest, request.planted)
        groups = groups_of(self._manifest)
        self._is_exact = _groups_to_enumerate(model, self._manifest, [group.format for group in groups], request)
        rows, unscored = canary_rows(model, self._manifest)
        self._references_per_group = references_per_group(len(groups), request.references)
        sampled = [group for group, exact in zip(groups, self._is_exact, strict=True) if not exact]
        references = draw_references(model, self._manifest, sampled, rows, self._references_per_group, request.seed)
        self._work = CanaryRows(rows=tuple(rows), groups=groups, references=references, unscored=unscored)
        self.rows: Sequence[NDArray[Any]] = [
            *(row.ids for row in rows if row is not None),
            *(row.ids for rows_of_class in references.values() for row in rows_of_class),
        ]

    def judge(self, row_scores: RowScores, alpha: float) -> Findings:
        """Exposures, leak tests, bounds and completions, jointly wrong with probability at most ``alpha``."""
        manifest, request = self._manifest, self._request
        scores = score_canaries(self._model, manifest, self._work, self._is_exact, row_scores, self._workers)
        delta = manifest.delta if request.delta is None else request.delta
        extrapolated, beyond = extrapolation(manifest, scores)
        evidence = (
            *leak_tests(manifest, scores, _TESTS_SHARE * alpha),
            *bounds(manifest, scores.score, scores.scored, self._conditions, delta, alpha),
            *completions(manifest, scores, _INTERVALS_SHARE * alpha),
            *exposures_by_copies(manifest, scores),
            *extrapolated,
        )
        noise = noise_bound(evidence, request.curve, delta, own_coordinates=False)
        return Findings(
            evidence=(*evidence, *noise),
            verdicts=(
                verdict.trace(evidence, self._conditions),
                *verdict.claims(evidence, request.claims),
                *verdict.curves(evidence, request.curve, noise),
            ),
            omissions=_omissions(scores),
            warnings=(
                *self._caveats(scores),
                *_tie_warnings(evidence),
                *_condition_warnings(self._conditions),
                *noise_in_words(noise),
            ),
            parameters={**self._parameters(delta), **noise_parameters(noise)},
            arrays={
                "canary.nll": scores.nll,
                "canary.exposure": scores.exposure,
                "canary.extrapolated": beyond,
                "canary.among": scores.among,
                "canary.score": scores.score,
                "canary.completion": scores.completion,
                **_peers_of(scores),
                "canary.scored": scores.scored,
                "canary.included": np.array([canary.included for canary in manifest.canaries], dtype=np.bool_),
                "canary.copies": np.array([canary.copies for canary in manifest.canaries], dtype=np.int64),
            },
        )

    def _caveats(self, scores: CanaryScores) -> list[str]:
        caveats = ["canaries are made up; that they were not memorized does not show that real records were not"]
        most = max(group.copies for group in self._manifest.guesses)
        if most > 1:
            caveats.append(
                f"an included canary has up to {most} copies: a bound for groups of {most} says less of one record"
            )
        if any(len(group.members) > 1 for group in self._work.groups):
            caveats.append(
                "of canaries after one prefix, a model can complete no more than one: so few disclosed says little; "
                "give them prefixes of their own (privctl canary plant --prefix-from)"
            )
        if not all(self._is_exact):
            caveats.append(
                f"exposure is measured against up to {self._references_per_group} fresh secrets each, so it ends at "
                f"{np.log2(self._references_per_group + 1):.3g} bits; extrapolated numbers are a model of "
                "what lies beyond"
            )
        if scores.lost:
            caveats.append(f"left out: {counted(scores.lost, 'fresh secret')} to which the model gives no finite loss")
        return caveats

    def _parameters(self, delta: float) -> dict[str, Any]:
        return {
            "canary_delta": delta,
            "canary_references": self._references_per_group,
            "canary_exact_groups": sum(self._is_exact),
            "canary_groups": len(self._is_exact),
            "canary_seed": self._request.seed,
            "canary_commitment": self._manifest.commitment,
            "canary_conditions": [encode_value(condition) for condition in self._conditions],
            **curve_parameters(self._request.curve),
            "canary_tokens": "the whole text is tokenised; a token any of whose characters is the secret's counts",
        }


def _groups_to_enumerate(
    model: LanguageModel, manifest: Manifest, used: Sequence[int], request: CanaryRequest
) -> list[bool]:
    """Which groups, of formats ``used``, to enumerate. Raises CommandError if a space is too large for ``--exact``."""
    formats = [manifest.formats[f] for f in used]
    if request.exact:
        largest = max(formats, key=lambda form: form.space)
        if largest.space > enumeration.LARGEST:
            raise CommandError(
                f"--exact would enumerate 2^{largest.bits:.1f} secrets, and {enumeration.LARGEST} is the most; leave "
                "it out, so that canaries are compared with random ones"
            )
        return [True] * len(formats)
    affordable = request.exact is None and request.references is None and enumeration.is_affordable(model, formats)
    return [affordable] * len(formats)


def _peers_of(scores: CanaryScores) -> dict[str, NDArray[Any]]:
    """The set of canaries, by number, with which each shares its references, and how many those are; 0 if all secrets.

    -1 for a canary without a score.
    """
    group, references = (np.full(len(scores.scored), fill, dtype=np.int64) for fill in (-1, 0))
    for number, peers in enumerate(scores.peers):
        group[peers.members] = number
        references[peers.members] = peers.references or 0
    return {"canary.group": group, "canary.references": references}


def _omissions(scores: CanaryScores) -> tuple[Omission, ...]:
    reasons: dict[str, int] = {}
    for reason in scores.unscored.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return tuple(
        Omission(what=counted(count, "canary", "canaries"), reason=reason) for reason, count in reasons.items()
    )


def _tie_warnings(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Warnings about ties: completions within rounding of another token, and guesses between equal scores."""
    ties = sum(int(item.details["undecided"]) for item in evidence if item.method == COMPLETION)
    if ties:
        yield (
            f"{counted(ties, 'completion hangs', 'completions hang')} on logits that are equal within rounding; they "
            "count as disclosed for the upper end of a rate and as safe for its lower end"
        )
    for item in evidence:
        if item.method == EITHER and (missing := not_made(item)):
            yield (
                f"{counted(missing, 'guess was', 'guesses were')} not made for the bound on {item.quantity}, because "
                "scores were tied or missing; they count as wrong"
            )


def _condition_warnings(conditions: Sequence[Assumption]) -> list[str]:
    """Warnings for the conditions that were not checked and those that do not hold."""
    asserted = [
        f"taken to be so: {condition.statement}"
        for condition in conditions
        if condition.state is AssumptionState.ASSERTED
    ]
    broken = [
        f"no bound follows: {condition.statement}"
        for condition in conditions
        if condition.state is AssumptionState.VIOLATED
    ]
    return [*broken, *asserted]
