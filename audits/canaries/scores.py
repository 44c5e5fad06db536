"""What a model reveals about each canary: its loss, its rank among secrets, and whether the model completes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries.completion import NEAR_TIE, Completion
from audits.canaries.enumerate import losses, spaces
from audits.canaries.exposure import deviations_below_mean, exposures, ranks
from audits.canaries.manifest import Manifest
from audits.canaries.rows import CanaryRows, Class, SecretRow, secret_sums
from audits.scores.scorer import RowScores
from audits.scores.table import FIELDS
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Classes with fewer references are not ranked.
FEWEST_REFERENCES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedAgainst:
    """Canaries (by index) ranked among the same secrets, with ``losses`` of references or of all possible secrets."""

    members: NDArray[np.int64]
    losses: NDArray[np.float64]
    exact: bool
    bits: float

    @property
    def references(self) -> int | None:
        """The number of references that the canaries share; None if the ranks are exact."""
        return None if self.exact else len(self.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryScores:
    """One entry per canary; where ``scored`` is false, the other numbers are 0.

    ``nll`` is the loss of the secret in nats, ``exposure`` is in bits, ``among`` the number of secrets it was ranked
    among, ``score`` the number of standard deviations by which the loss lies below its peers' mean, ``completion`` a
    ``Completion``. ``lost`` counts references without a finite loss; ``unscored`` maps indices to reasons.
    """

    nll: NDArray[np.float64]
    exposure: NDArray[np.float64]
    among: NDArray[np.int64]
    score: NDArray[np.float64]
    completion: NDArray[np.uint8]
    scored: NDArray[np.bool_]
    peers: tuple[RankedAgainst, ...]
    lost: int
    unscored: Mapping[int, str]


def score_canaries(
    model: LanguageModel,
    manifest: Manifest,
    work: CanaryRows,
    exact: Sequence[bool],
    row_scores: RowScores,
    workers: Workers = ALONE,
) -> CanaryScores:
    """The scores of all canaries. Groups marked ``exact`` are enumerated here with the model, by all ``workers``."""
    count = len(manifest.canaries)
    nll, least = np.zeros(count), np.zeros(count)
    indices = [i for i, row in enumerate(work.rows) if row is not None]
    rows = [row for row in work.rows if row is not None]
    nll[indices], least[indices] = _losses(row_scores, rows), _least_margins(row_scores, rows)
    unscored = dict(work.unscored)
    for i in indices:
        if not (np.isfinite(nll[i]) and np.isfinite(least[i])):
            unscored[i] = "given NaN or infinite scores by the model"
    peers, lost = _peers(model, manifest, work, exact, row_scores, nll, unscored, workers)
    exposure, score = np.zeros(count), np.zeros(count)
    among = np.zeros(count, dtype=np.int64)
    scored = np.zeros(count, dtype=np.bool_)
    for peer_group in peers:
        members, own_losses = peer_group.members, nll[peer_group.members]
        among[members] = len(peer_group.losses) + (not peer_group.exact)
        rank = ranks(own_losses, peer_group.losses) - peer_group.exact  # an enumeration contains the canary itself
        exposure[members] = exposures(rank, among[members])
        score[members] = deviations_below_mean(own_losses, peer_group.losses)
        scored[members] = True
    nll[~scored] = 0.0
    return CanaryScores(
        nll=nll,
        exposure=exposure,
        among=among,
        score=score,
        completion=np.where(scored, _completions(least), 0).astype(np.uint8),
        scored=scored,
        peers=tuple(peers),
        lost=lost,
        unscored=dict(sorted(unscored.items())),
    )


def _losses(row_scores: RowScores, rows: Sequence[SecretRow]) -> NDArray[np.float64]:
    if not rows:
        return np.zeros(0)
    return -secret_sums(_scores_of(row_scores, rows)[FIELDS.index("lp")], rows)


def _least_margins(row_scores: RowScores, rows: Sequence[SecretRow]) -> NDArray[np.float64]:
    """The smallest margin over each secret's tokens: positive if greedy decoding gives the secret."""
    if not rows:
        return np.zeros(0)
    margin = _scores_of(row_scores, rows)[FIELDS.index("margin")].astype(np.float64)
    margins = np.split(margin, np.cumsum([len(row.ids) - 1 for row in rows])[:-1])
    return np.array([row_margin[row.start - 1 :].min() for row_margin, row in zip(margins, rows, strict=True)])


def _scores_of(row_scores: RowScores, rows: Sequence[SecretRow]) -> NDArray[np.float32]:
    counts = np.array([len(row.ids) - 1 for row in rows], dtype=np.int64)
    return row_scores.take([row.ids for row in rows], counts)


def _completions(least: NDArray[np.float64]) -> NDArray[Any]:
    decided = np.where(least >= NEAR_TIE, Completion.DISCLOSED, Completion.UNDECIDED)
    return np.where(least <= -NEAR_TIE, Completion.SAFE, decided)


def _peers(
    model: LanguageModel,
    manifest: Manifest,
    work: CanaryRows,
    exact: Sequence[bool],
    row_scores: RowScores,
    nll: NDArray[np.float64],
    unscored: dict[int, str],
    workers: Workers,
) -> tuple[list[RankedAgainst], int]:
    """The classes of canaries with the losses they are ranked among. Writes enumerated losses into ``nll``."""
    peers: list[RankedAgainst] = []
    lost = 0
    for group, enumerated in zip(work.groups, exact, strict=True):
        form = manifest.formats[group.format]
        classes: dict[Class, list[int]] = {}
        for i in group.members:
            row = work.rows[i]
            if row is not None and i not in unscored:
                classes.setdefault(row.kind, []).append(i)
        everything = (
            {space.kind: space for space in spaces(model, form, group.prefix)} if enumerated and classes else {}
        )
        for kind, members in classes.items():
            if enumerated:
                space = everything[kind]
                values = losses(model, space, workers=workers)
                # Use the canary's loss from the enumeration, so that rounding cannot make the two differ.
                nll[members] = [values[space.place(row)] for i in members if (row := work.rows[i]) is not None]
            else:
                values = _losses(row_scores, work.references[group.format, kind])
            finite = values[np.isfinite(values)]
            lost += len(values) - len(finite)
            if len(finite) < FEWEST_REFERENCES:
                reason = f"with only {len(finite)} comparable secrets, where {FEWEST_REFERENCES} are needed"
                unscored.update(dict.fromkeys(members, reason))
                continue
            peers.append(
                RankedAgainst(
                    members=np.array(members, dtype=np.int64), losses=finite, exact=enumerated, bits=form.bits
                )
            )
    return peers, lost
