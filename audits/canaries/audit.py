"""Canaries as a part of an audit: rows of every planted secret and of fresh ones, and what their losses give away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries import enumerate as enumeration
from audits.canaries import verdict
from audits.canaries.bounds import bounds
from audits.canaries.check import conditions, data_conditions
from audits.canaries.completions import CanaryScores, stand
from audits.canaries.evidence import completions, exposures_by_copies, extrapolation, leak_tests
from audits.canaries.manifest import Manifest, read_manifest
from audits.canaries.rows import CanaryRows, canary_rows, draw_references, groups_of, references_each
from audits.claims import EpsilonClaim
from audits.findings import Findings
from audits.scores.scorer import RowScores
from privctl.domain.checks import fraction
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.models.language import LanguageModel
from privctl.reports.codec import encode_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Most references for one group.
_MOST_REFERENCES = 100_000
#: What ``BOUNDS_SHARE`` leaves of the allowed failure probability.
_TESTS_SHARE = _INTERVALS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRequest:
    """Which canaries, and how to look at them.

    ``references`` are fresh secrets for each format and prefix; None is 63 to 4095, about 20,000 in all. ``exact``
    ranks among all secrets there are; None does so where it costs no more than references. ``delta`` None is the
    manifest's. ``commitment`` is the hash published before training. ``trained_on`` are digests of the training data
    that the model's own report names, None where there is no such report. ``planted`` are the planted data, checked
    where they are at hand. ``seed`` draws references; it is no secret.
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
    """Did the model memorize what was planted, and what does that say of epsilon?"""

    def __init__(self, model: LanguageModel, request: CanaryRequest) -> None:
        """Read the manifest and draw references. Raises InputError for a manifest or tokenizer that does not serve."""
        self._model = model
        self._request = request
        self._manifest = read_manifest(request.manifest)
        self._held = conditions(self._manifest, commitment=request.commitment, trained_on=request.trained_on)
        if request.planted is not None:
            self._held += data_conditions(self._manifest, request.planted)
        groups = groups_of(self._manifest)
        self._exact = _exact(model, self._manifest, [group.format for group in groups], request)
        rows, unscored = canary_rows(model, self._manifest)
        self._each = references_each(len(groups), request.references)
        sampled = [group for group, whole in zip(groups, self._exact, strict=True) if not whole]
        references = draw_references(model, self._manifest, sampled, rows, self._each, request.seed)
        self._work = CanaryRows(rows=tuple(rows), groups=groups, references=references, unscored=unscored)
        self.rows: Sequence[NDArray[Any]] = [
            *(row.ids for row in rows if row is not None),
            *(row.ids for some in references.values() for row in some),
        ]

    def judge(self, book: RowScores, alpha: float) -> Findings:
        """Exposure, leak tests, bounds and completions; together they are wrong with probability at most ``alpha``."""
        manifest, request = self._manifest, self._request
        standing = stand(self._model, manifest, self._work, self._exact, book)
        delta = manifest.delta if request.delta is None else request.delta
        extrapolated, beyond = extrapolation(manifest, standing, request.seed)
        evidence = (
            *leak_tests(manifest, standing, _TESTS_SHARE * alpha),
            *bounds(manifest, standing.score, standing.scored, self._held, delta, alpha),
            *completions(manifest, standing, _INTERVALS_SHARE * alpha),
            *exposures_by_copies(manifest, standing),
            *extrapolated,
        )
        return Findings(
            evidence=evidence,
            verdicts=(verdict.trace(evidence, self._held), *verdict.claims(evidence, request.claims)),
            omissions=_omissions(standing),
            warnings=(*self._caveats(standing), *_doubts(self._held)),
            parameters=self._parameters(delta),
            arrays={
                "canary.nll": standing.nll,
                "canary.exposure": standing.exposure,
                "canary.extrapolated": beyond,
                "canary.among": standing.among,
                "canary.score": standing.score,
                "canary.completion": standing.completion,
                "canary.scored": standing.scored,
                "canary.included": np.array([canary.included for canary in manifest.canaries], dtype=np.bool_),
                "canary.copies": np.array([canary.copies for canary in manifest.canaries], dtype=np.int64),
            },
        )

    def _caveats(self, standing: CanaryScores) -> list[str]:
        found = ["canaries are made up; that they were not memorized does not show that real records were not"]
        most = max(group.copies for group in self._manifest.guesses)
        if most > 1:
            found.append(
                f"an included canary has up to {most} copies: a bound for groups of {most} says less of one record"
            )
        if any(len(group.members) > 1 for group in self._work.groups):
            found.append(
                "of canaries after one prefix, a model can complete no more than one: so few disclosed says little; "
                "give them prefixes of their own (privctl canary plant --prefix-from)"
            )
        if not all(self._exact):
            found.append(
                f"exposure is measured against up to {self._each} fresh secrets each, so it ends at "
                f"{np.log2(self._each + 1):.3g} bits; extrapolated numbers are a model of what lies beyond"
            )
        if standing.lost:
            found.append(f"left out: {counted(standing.lost, 'fresh secret')} to which the model gives no finite loss")
        return found

    def _parameters(self, delta: float) -> dict[str, Any]:
        return {
            "canary_delta": delta,
            "canary_references": self._each,
            "canary_exact_groups": sum(self._exact),
            "canary_groups": len(self._exact),
            "canary_seed": self._request.seed,
            "canary_commitment": self._manifest.commitment,
            "canary_conditions": [encode_value(each) for each in self._held],
            "canary_tokens": "the whole text is tokenised; a token any of whose characters is the secret's counts",
        }


def _exact(model: LanguageModel, manifest: Manifest, used: Sequence[int], request: CanaryRequest) -> list[bool]:
    """Which groups, of formats ``used``, to enumerate. Raises CommandError for spaces too large that were asked for."""
    formats = [manifest.formats[f] for f in used]
    if request.exact:
        largest = max(formats, key=lambda form: form.space)
        if largest.space > enumeration.LARGEST:
            raise CommandError(
                f"--exact would enumerate 2^{largest.bits:.1f} secrets, and {enumeration.LARGEST} is the most; leave "
                "it out, so that canaries are compared with random ones"
            )
        return [True] * len(formats)
    whole = request.exact is None and request.references is None and enumeration.affordable(model, formats)
    return [whole] * len(formats)


def _omissions(standing: CanaryScores) -> tuple[Omission, ...]:
    reasons: dict[str, int] = {}
    for reason in standing.unscored.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return tuple(
        Omission(what=counted(count, "canary", "canaries"), reason=reason) for reason, count in reasons.items()
    )


def _doubts(held: Sequence[Assumption]) -> list[str]:
    """What nothing checked, and what does not hold."""
    asserted = [f"taken to be so: {each.statement}" for each in held if each.state is AssumptionState.ASSERTED]
    broken = [f"no bound follows: {each.statement}" for each in held if each.state is AssumptionState.VIOLATED]
    return [*broken, *asserted]
