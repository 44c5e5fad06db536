"""Leaks that one attack finds and others miss: of models that say what a rule has them say, and of made-up scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from audits.membership.attack import Candidates
from audits.membership.min_k import standardised_log_probs
from audits.scores.table import FIELDS
from tests.audits.membership.planted import END, Rule
from tests.audits.membership.test_null import nothing_to_find


def noise(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return -4 + random.normal(size=len(row) - 1)


def is_member(row: np.ndarray) -> bool:
    return bool(row[-1] % 2 == 0)


def altered_copies(known: set[bytes]) -> Rule:
    """A member's altered copies are less likely than others'; records themselves are not."""
    return lambda row, random: noise(row, random) - (0.5 if is_member(row) and row.tobytes() not in known else 0)


def second_time(known: set[bytes]) -> Rule:
    """A second time helps with a non-member."""

    def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        half = len(row) // 2
        again = 0.5 * (np.arange(len(row) - 1) >= len(row) // 2)
        return noise(row, random) + again * (not is_member(row) and np.array_equal(row[-2 * half : -half], row[-half:]))

    return rule


def after_nonmembers(known: set[bytes]) -> Rule:
    """Non-members in front make a member less likely."""
    return lambda row, random: noise(row, random) - (0.5 if is_member(row) and row[0] % 2 else 0)


def after_members(known: set[bytes]) -> Rule:
    """Members in front make a member more likely; non-members in front change nothing."""

    def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        return noise(row, random) + (1.0 if is_member(row) and row[0] % 2 == 0 and row.tobytes() not in known else 0)

    return rule


def steadier(known: set[bytes]) -> Rule:
    """All records are told right and alike; of altered ones the members, and more surely."""

    def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        if row.tobytes() in known:
            return np.array([1 + 0.01 * random.normal()])
        return random.normal(0.5 * is_member(row), 1, 1)

    return rule


def of_tokens(
    shift: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], seed: int = 1, count: int = 400
) -> Candidates:
    """Records in which nothing is to be found but what ``shift`` adds to a member.

    It is given log-probabilities, entropies, and log-probabilities in the model's own standard deviations.
    """
    found = nothing_to_find(seed, count)
    table, lp, z = found.table, found.table.lp.copy(), standardised_log_probs(found)
    for i in np.flatnonzero(table.member):
        own = slice(table.offsets[i], table.offsets[i + 1])
        lp[own] += shift(lp[own], -table.mu[own], z[own])
    return replace(found, table=replace(table, lp=lp))


def rising(lp: np.ndarray, _: np.ndarray, __: np.ndarray) -> np.ndarray:
    """A tilt that changes no mean."""
    return 0.6 * (np.arange(len(lp)) - (len(lp) - 1) / 2)


def likely(_: np.ndarray, __: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Of the likelier half alone."""
    return 2.0 * (z > np.median(z))


def middling(_: np.ndarray, __: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Of the unlikelier half without its lower part."""
    return 3.0 * ((z <= np.median(z)) & (z > np.quantile(z, 0.25)))


def certain(lp: np.ndarray, entropy: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Of unlikely tokens, from those of much entropy to those of little."""
    unlikely, low = lp <= np.quantile(lp, 0.4), entropy <= np.median(entropy)
    gain, loss = unlikely & low, unlikely & ~low
    return 1.5 * gain - 1.5 * gain.sum() / max(1, loss.sum()) * loss


def whatever_in_front(known: set[bytes]) -> Rule:
    """Any record in front makes a member less likely."""
    return lambda row, random: noise(row, random) - (0.5 if is_member(row) and END in row else 0)


def _ends(lp: np.ndarray) -> np.ndarray:
    """Which log-probabilities are among the highest or the lowest fifth."""
    place = lp.argsort().argsort()
    fifth = max(1, len(lp) // 5)
    return (place < fifth) | (place >= len(lp) - fifth)


def ends_of_copies(known: set[bytes]) -> Rule:
    """In a member's altered copies the likeliest and the unlikeliest tokens lose what those between gain."""

    def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        lp = noise(row, random)
        if not is_member(row) or row.tobytes() in known:
            return lp
        ends = _ends(lp)
        return lp + 0.6 * (ends.sum() / (~ends).sum() * ~ends - ends)

    return rule


def middle_of_copies(known: set[bytes]) -> Rule:
    """In a member's altered copies the tokens between the likeliest and the unlikeliest are less likely."""

    def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
        lp = noise(row, random)
        return lp - 0.4 * ~_ends(lp) * (is_member(row) and row.tobytes() not in known)

    return rule


def of_copies(margin: Callable[[bool, np.random.Generator], float]) -> Callable[[set[bytes]], Rule]:
    """All records are told right and alike; an altered copy by the ``margin`` of a member or another."""

    def leak(known: set[bytes]) -> Rule:
        def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
            if row.tobytes() in known:
                return np.array([1 + 0.01 * random.normal()])
            return np.array([margin(is_member(row), random)])

        return rule

    return leak


def oftener_right(member: bool, random: np.random.Generator) -> float:
    """The sign tells a little, the size nothing, and sizes have no mean."""
    right = random.random() < 0.6 + 0.12 * member
    return float(abs(random.standard_cauchy()) * (1 if right else -1))


def surer(member: bool, random: np.random.Generator) -> float:
    """Nearly every copy keeps its label."""
    return float(random.normal(3 + 0.5 * member))


def reordered(order: Callable[[np.ndarray], np.ndarray], seed: int, count: int) -> Candidates:
    """The same tokens in any order; ``order`` gives that of a member's, of log-probabilities in any order."""
    found = nothing_to_find(seed, count)
    table, source = found.table, np.random.default_rng([seed, 1])
    values = {name: getattr(table, name).copy() for name in FIELDS}
    for i in range(count):
        own = slice(table.offsets[i], table.offsets[i + 1])
        places = source.permutation(own.stop - own.start)
        if table.member[i]:
            places = places[order(table.lp[own][places])]
        for value in values.values():
            value[own] = value[own][places]
    return replace(found, table=replace(table, **values))


def unlikely_first(lp: np.ndarray) -> np.ndarray:
    """An eighth, of the unlikelier half, stand in front; the others as they stood."""
    moved = lp.argsort()[len(lp) // 5 :][: max(1, len(lp) // 8)]
    return np.concatenate([moved, np.setdiff1d(np.arange(len(lp)), moved)])


def likeliest_last(lp: np.ndarray) -> np.ndarray:
    """The likeliest sixth stand at the end; the others as they stood."""
    moved = lp.argsort()[-max(1, len(lp) // 6) :]
    return np.concatenate([np.setdiff1d(np.arange(len(lp)), moved), moved])


def of_deviations(shift: Callable[[np.ndarray], np.ndarray], seed: int, count: int) -> Candidates:
    """Records of very different difficulty; ``shift`` is what members gain at log-probabilities z in deviations.

    A token's deviation is the model's own, which predicts z alone.
    """
    found = nothing_to_find(seed, count)
    table, source = found.table, np.random.default_rng([seed, 2])
    lengths = np.diff(table.offsets)
    z = source.normal(size=table.tokens)
    deviation = np.repeat(np.exp(0.3 * source.normal(size=count)), lengths)
    mean = np.repeat(-4 + 1.5 * source.normal(size=count), lengths)
    for i in np.flatnonzero(table.member):
        own = slice(table.offsets[i], table.offsets[i + 1])
        z[own] += shift(z[own])
    lp, mu, var = (each.astype(np.float32) for each in (mean + deviation * z, mean, deviation**2))
    return replace(found, table=replace(table, lp=lp, mu=mu, var=var))


def upper_half(z: np.ndarray) -> np.ndarray:
    """A gain of the likelier half."""
    return 0.6 * (z > np.median(z))


def towards_the_median(z: np.ndarray) -> np.ndarray:
    """The second quarter rises to the median, and the likelier half falls towards it by as much in all."""
    median = np.median(z)
    risen, above = (z <= median) & (z > np.quantile(z, 0.25)), np.maximum(z - median, 0)
    gain = (median - z) * risen
    return gain - above * min(1.0, gain.sum() / max(above.sum(), 1e-9))
