"""Quantile regression: is a record likelier than nearly all unseen records of its kind would be? (Bertran 2023).

It needs no shadow models: from what a text looks like, two quantiles of the score are predicted that it would have if
the model had not been trained on it. Only non-members are learnt from, and never the record that is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from audits.membership.attack import Candidates, ScoreAttack, Settings, of_texts
from audits.membership.features import ngrams, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Non-members without which there is nothing to learn from.
LEAST = 50
_MIDDLE, _HIGH = 0.5, 0.9
#: Random directions that n-grams are projected to; too many would be learnt by heart from a small file.
_DIRECTIONS = 48
_RIDGE = 1e-2
_FOLDS = 5


def score(candidates: Candidates, settings: Settings) -> NDArray[Any]:
    """The mean log-probability less its predicted median, by the distance to the predicted 90 % quantile, [records]."""
    table = candidates.table
    target = candidates.mean_lp
    features = _features(candidates, settings.seed)
    fold = _folds(table.member, settings.seed)
    found = np.empty(table.records)
    for each in range(_FOLDS):
        held = fold == each
        learnt = ~held & ~table.member
        center, scale = target[learnt].mean(), target[learnt].std() or 1.0
        scaled = (target - center) / scale
        middle = features @ fit_quantile(features[learnt], scaled[learnt], _MIDDLE)
        high = features @ fit_quantile(features[learnt], scaled[learnt], _HIGH)
        found[held] = ((scaled - middle) / np.maximum(high - middle, 0.05))[held]
    return found


def _folds(member: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """The fold of each record, at random, with members and non-members spread evenly: [records]."""
    random = np.random.default_rng(seed)
    fold = np.empty(len(member), dtype=np.int64)
    for side in (member, ~member):
        fold[side] = random.permutation(int(side.sum())) % _FOLDS
    return fold


def fit_quantile(features: NDArray[Any], target: NDArray[Any], quantile: float) -> NDArray[np.float64]:
    """Coefficients of a linear ``quantile`` of ``target`` [n], by the pinball loss smoothed over 0.05, with a ridge.

    ``target`` is about standardised; the first column of ``features`` [n, d] is constant and not shrunk.
    """
    width, shrunk = 0.05, np.full(features.shape[1], _RIDGE)
    shrunk[0] = 0.0

    def objective(weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        rest = (target - features @ weights) / width
        loss = width * (np.logaddexp(0, rest) - (1 - quantile) * rest)
        slope = features.T @ ((1 - quantile) - expit(rest))
        return float(loss.mean() + shrunk @ weights**2 / 2), slope / len(target) + shrunk * weights

    start = np.zeros(features.shape[1])
    start[0] = np.quantile(target, quantile)
    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def _features(candidates: Candidates, seed: int) -> NDArray[np.float64]:
    """A constant, the text's own numbers, its length in tokens, projected n-grams, and the reference if any."""
    table = candidates.table
    texts = candidates.texts
    grams = ngrams(texts)
    directions = np.random.default_rng(seed).normal(size=(grams.shape[1], _DIRECTIONS)).astype(np.float32)
    columns = [numbers(texts), np.log(np.diff(table.offsets))[:, None], np.asarray(grams @ directions)]
    if candidates.reference is not None:
        columns.append(candidates.reference[:, None])
    told = np.concatenate(columns, axis=1)
    spread = told.std(axis=0)
    told = (told - told.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.concatenate([np.ones((len(told), 1)), told], axis=1)


def _missing(candidates: Candidates) -> str:
    have = candidates.table.samples["nonmembers"]
    if without := of_texts(candidates):
        return without
    return "" if have >= LEAST else f"it learns from the non-members, at least {LEAST} of them; here are {have}"


ATTACK = ScoreAttack(name="quantile", score=score, missing=_missing)
