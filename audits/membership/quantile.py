"""Quantile regression: is a record likelier than nearly all similar records that were not trained on? (Bertran 2023).

It needs no shadow models: from features of the text or image, trees boosted on the pinball loss predict two quantiles
of the score that the record would have if the model had not been trained on it. They learn only from non-members, and
never from the record that is judged. The audited model's own last layer is not a feature: a label's score is a function
of it, so the predicted median would be the score itself, also for members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.features import BUCKETS, image_features, label_features, numbers, sound_features
from audits.membership.lira import confidence
from audits.scores.tasks import AUDIO_CLASSIFICATION, IMAGE_CLASSIFICATION
from audits.statistics.cross_fit import folds
from privctl.data.columns import HeadKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The minimum number of non-members to learn from.
LEAST = 50
_MIDDLE, _HIGH = 0.5, 0.9
#: The number of random projections of n-grams; with more, the trees would overfit a small file.
_DIRECTIONS = 48
_FOLDS = 5
#: The number and depth of trees; more would overfit a small file.
_TREES, _DEPTH = 30, 3
#: The smallest distance between the two quantiles, in standard deviations of the training scores.
_NEAREST = 0.05


def score(candidates: Candidates, settings: Settings) -> NDArray[Any]:
    """``_target`` minus its predicted median, divided by the median's distance to the 90 % quantile, [records]."""
    member = candidates.table.member
    return _score(candidates, settings, _folds(member, settings.seed), ~member)


def unlabelled(candidates: Candidates, settings: Settings) -> NDArray[Any]:
    """The same score learned from members and non-members, in folds by digest, so that it does not depend on labels."""
    fold = folds([record.digest for record in candidates.records], _FOLDS)
    return _score(candidates, settings, fold, np.ones(len(fold), dtype=np.bool_))


def _score(
    candidates: Candidates, settings: Settings, fold: NDArray[np.int64], learned_from: NDArray[np.bool_]
) -> NDArray[Any]:
    target = _target(candidates)
    # Both scores of an audit use the same features, and those of images and sounds take a while.
    features = candidates.once(("quantile", settings.seed), lambda: _features(candidates, settings.seed))
    scores = np.empty(len(target))
    for number in range(int(fold.max()) + 1):
        held_out = fold == number
        training = ~held_out & learned_from
        middle = fit_quantile(features[training], target[training], _MIDDLE)(features[held_out])
        high = fit_quantile(features[training], target[training], _HIGH)(features[held_out])
        nearest = _NEAREST * (target[training].std() or 1.0)
        scores[held_out] = (target[held_out] - middle) / np.maximum(high - middle, nearest)
    return scores


def _target(candidates: Candidates) -> NDArray[np.float64]:
    """The mean log-probability; for labels log(p / (1 - p)), which separates confident ones (Bertran 2023)."""
    chosen = candidates.head in (HeadKind.ONE, HeadKind.SEVERAL)
    return confidence(candidates.mean_lp) if chosen else candidates.mean_lp


def _folds(member: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Random folds [records] with members and non-members spread evenly."""
    random = np.random.default_rng(seed)
    fold = np.empty(len(member), dtype=np.int64)
    for side in (member, ~member):
        fold[side] = random.permutation(int(side.sum())) % _FOLDS
    return fold


def fit_quantile(
    features: NDArray[Any], target: NDArray[Any], quantile: float
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A predictor of the ``quantile`` for features [n, d], learned from ``features`` [n, d] and ``target`` [n]."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(
        loss="quantile", quantile=quantile, max_iter=_TREES, max_depth=_DEPTH, early_stopping=False, random_state=0
    )
    predict: Callable[[NDArray[Any]], NDArray[Any]] = trees.fit(features, target).predict
    return predict


def _features(candidates: Candidates, seed: int) -> NDArray[np.float64]:
    """Statistics of an image or sound, or numbers, token count and n-grams of a text; labels and reference."""
    columns = [label_features(candidates.records, candidates.head)]
    if candidates.task == IMAGE_CLASSIFICATION:
        columns.append(image_features(candidates.records))
    elif candidates.task == AUDIO_CLASSIFICATION:
        columns.append(sound_features(candidates.records))
    else:
        texts = candidates.texts
        grams = candidates.ngrams(texts)
        directions = np.random.default_rng(seed).normal(size=(BUCKETS, _DIRECTIONS)).astype(np.float32)
        along = np.concatenate([np.asarray(block @ directions) for block in grams.blocks()])
        columns += [numbers(texts), np.log(np.diff(candidates.table.offsets))[:, None], along]
    if candidates.reference is not None:
        columns.append(candidates.reference[:, None])
    return np.concatenate(columns, axis=1)


def _missing(candidates: Candidates) -> str:
    have = candidates.table.samples["nonmembers"]
    return "" if have >= LEAST else f"it learns from the non-members, at least {LEAST} of them; here are {have}"


ATTACK = ScoreAttack(name="quantile", score=score, missing=_missing, unlabelled=unlabelled)
