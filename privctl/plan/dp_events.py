"""Conversion of dp_accounting's DpEvent trees to events, and of events to other neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from privctl.domain.errors import InputError
from privctl.domain.events import (
    Batches,
    BestOfLaplaceRuns,
    BestOfRuns,
    DiscreteGaussianNoise,
    DiscreteLaplaceNoise,
    EpsilonDeltaDp,
    Event,
    ExponentialChoice,
    LaplaceNoise,
    ManyWayResponse,
    MixtureOfGaussians,
    RedrawnGaussian,
    ReplacedGaussian,
    SampledGaussian,
    TreeGaussian,
    TruncatedGaussian,
    UnprotectedRelease,
    ZeroConcentratedDp,
)
from privctl.domain.guarantee import Adjacency
from privctl.storage.json_text import shown

#: The maximum depth of trees, and of the search for stated neighbours.
DEEPEST = 30
_SIZES = ("sample_size", "source_dataset_size")
_Tree = Mapping[str, Any]
_Made = TypeVar("_Made")
#: A step without any noise.
_NO_PRIVACY = (UnprotectedRelease(),)


def checked(make: Callable[[], _Made], where: str) -> _Made:
    """The result of ``make``; turns its ValueError or OverflowError into an InputError that names ``where``."""
    try:
        return make()
    except ValueError as error:
        raise InputError(f"{where} describes no event: {error}; correct it") from None
    except OverflowError:
        raise InputError(f"{where} describes no event: a number in it is too large; correct it") from None


def of_tree(tree: Any, source: str, known: str) -> list[Event]:
    """The events of a tree, equal ones combined.

    Raises InputError, naming ``source``, for what has no bound here; ``known`` describes the accepted ledger formats.
    """
    counts: Counter[Event] = Counter()
    for event, times in _TreeReader(source, known).leaves(tree, 1.0, 1, 0):
        counts[event] += times
    if not counts:
        raise InputError(f"{source} holds no event that spends privacy; give the ledger of a training")
    return [
        checked(lambda event=event, n=n: replace(event, steps=n * event.steps), source)  # type: ignore[misc]
        for event, n in counts.items()
    ]


def for_neighbours(events: Sequence[Event], stated: Adjacency | None, source: str) -> tuple[Event, ...]:
    """The events converted to the ``stated`` adjacency; if None, to replace-one if an event has a bound only for it.

    Raises InputError, naming ``source``, for an event without a bound for the stated adjacency.
    """
    wanted = stated
    fixed = any(isinstance(e, SampledGaussian) and e.batches is Batches.FIXED_SIZE for e in events)
    if fixed and wanted is Adjacency.ZERO_OUT:
        wanted = Adjacency.REPLACE_ONE  # zeroing a record is one way of replacing it
    if wanted is None and any(event.adjacency is Adjacency.REPLACE_ONE for event in events):
        wanted = Adjacency.REPLACE_ONE
    converted = tuple(checked(lambda event=event: _for_adjacency(event, wanted), source) for event in events)  # type: ignore[misc]
    for event in converted:
        if stated is not None and not _has_bound_for(event, wanted):
            raise InputError(
                f"{source} holds {event.mechanism} among events for neighbours by {stated}, for which no bound on it "
                f"is derived here; {_REMEDIES[stated]}"
            )
    return converted


#: What to do if an event has no bound for an adjacency.
_REMEDIES = {
    Adjacency.ADD_OR_REMOVE: "expected none of tree aggregation, answers of each record or samples without "
    "replacement; state replace-one or, for trees and answers, replace-special",
    Adjacency.REPLACE_ONE: "expected Gaussian noise on the data, on Poisson batches or on samples, answers of each "
    "record on the whole data, and mechanisms of stated epsilon or rho; state another if the noise is calibrated to it",
    Adjacency.ZERO_OUT: "expected no truncated batches; state add-or-remove if that is meant",
}


def _for_adjacency(event: Event, wanted: Adjacency | None) -> Event:
    """The event for the ``wanted`` adjacency if there is one, else unchanged."""
    if wanted is None:
        return event
    if any(field.name == "neighbours" for field in fields(event)):
        if isinstance(event, ManyWayResponse) and wanted is Adjacency.ADD_OR_REMOVE:
            return event
        return replace(event, neighbours=wanted)  # type: ignore[call-arg]
    if not isinstance(event, SampledGaussian) or wanted is not Adjacency.REPLACE_ONE:
        return event
    if event.sample_rate == 1:
        return replace(event, batches=Batches.FIXED_SIZE)
    if event.batches is not Batches.POISSON:
        return event
    return ReplacedGaussian(
        noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=event.steps
    )  # fmt: skip


def _has_bound_for(event: Event, wanted: Adjacency | None) -> bool:
    """Whether the event's bound holds for the ``wanted`` adjacency."""
    if wanted is Adjacency.ZERO_OUT:
        return event.adjacency is wanted or (event.adjacency is Adjacency.ADD_OR_REMOVE and event.holds_zeroed)
    return event.adjacency is wanted


def _number(tree: _Tree, field: str) -> float:
    value: Any = tree.get(field)
    if type(value) not in (int, float):
        raise ValueError(f"{field} is {shown(value)}, not a number")
    return float(value)


def _whole_number(tree: _Tree, field: str) -> int:
    value = tree.get(field)
    if type(value) is not int:
        raise ValueError(f"{field} is {shown(value)}, not a whole number")
    return value


def _numbers(tree: _Tree, field: str) -> tuple[float, ...]:
    values = tree.get(field)
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        raise ValueError(f"{field} is {shown(values)}, not a list of numbers")
    return tuple(map(float, values))


def _by_noise(noise: float, make: Callable[[float], Event]) -> Sequence[Event]:
    """The event for ``noise``; no event if it is infinite, and no privacy if it is 0."""
    return () if noise == math.inf else _NO_PRIVACY if noise == 0 else (make(noise),)


def _mixture(tree: _Tree, rate: float) -> Sequence[Event]:
    moves, chances = _numbers(tree, "sensitivities"), _numbers(tree, "sampling_probs")

    def make(noise: float) -> Event:
        return MixtureOfGaussians(noise_stddev=noise, sensitivities=moves, probabilities=chances, sample_rate=rate)

    make(1.0)  # checks the law
    if not any(move * chance for move, chance in zip(moves, chances, strict=True)):
        return ()
    return _by_noise(_number(tree, "standard_deviation"), make)


def _randomized_response(tree: _Tree) -> Sequence[Event]:
    """Randomized response: with probability ``noise_parameter``, the answer is a uniformly random bucket."""
    uniform, buckets = _number(tree, "noise_parameter"), _whole_number(tree, "num_buckets")
    if not 0 <= uniform <= 1 or buckets < 1:
        raise ValueError(f"noise_parameter is {uniform:g} and num_buckets {buckets}; expected 0 to 1, and at least 1")
    if uniform == 1 or buckets == 1:
        return ()
    if uniform == 0:
        return _NO_PRIVACY
    return (ManyWayResponse(epsilon=math.log1p(buckets * (1 - uniform) / uniform), answers=buckets),)


def _stated_epsilon(tree: _Tree, rate: float) -> Sequence[Event]:
    epsilon, delta = _number(tree, "epsilon"), _number(tree, "delta")
    if epsilon == 0 == delta:
        return ()
    if epsilon == math.inf or delta == 1:
        return _NO_PRIVACY
    return (EpsilonDeltaDp(epsilon=epsilon, delta=delta, sample_rate=rate),)


def _zcdp(tree: _Tree) -> Sequence[Event]:
    """(xi, rho)-zCDP; if rho is 0, the divergences of all orders, including the infinite one, are at most xi."""
    rho, xi = _number(tree, "rho"), _number(tree, "xi") if "xi" in tree else 0.0
    if rho:
        return (ZeroConcentratedDp(rho=rho, xi=xi),)
    return (EpsilonDeltaDp(epsilon=xi),) if xi else ()


def _discrete_gaussian(tree: _Tree, rate: float) -> Sequence[Event]:
    """Exact for one whole number; for several, by zCDP (Canonne, Kamath and Steinke 2020, theorem 4)."""
    sigma, moved = _number(tree, "sigma"), _number(tree, "sensitivity") if "sensitivity" in tree else 1.0
    if moved < 0:
        raise ValueError(f"sensitivity is {moved:g}; it must be at least 0")
    if moved == 0:
        return ()
    if tree.get("dimension") == 1 and moved == int(moved):
        return _by_noise(sigma, lambda s: DiscreteGaussianNoise(stddev=s, sensitivity=int(moved), sample_rate=rate))
    if rate != 1:
        raise ValueError("on batches, discrete Gaussian noise is known in dimension 1 with a whole sensitivity alone")
    if sigma < 0:
        raise ValueError(f"sigma is {sigma:g}; it must be at least 0")
    return _by_noise(sigma, lambda s: ZeroConcentratedDp(rho=(moved / s) ** 2 / 2))


def _by_epsilon(tree: _Tree, make: Callable[[float], Event]) -> Sequence[Event]:
    epsilon = _number(tree, "epsilon")
    return () if epsilon == 0 else _NO_PRIVACY if epsilon == math.inf else (make(epsilon),)


#: DpEvents on the whole data or on a Poisson batch -> the events of one step, from the DpEvent's fields and the rate.
_NOISES: Mapping[str, Callable[[_Tree, float], Sequence[Event]]] = {
    "GaussianDpEvent": lambda tree, rate: _by_noise(
        _number(tree, "noise_multiplier"), lambda noise: SampledGaussian(noise_multiplier=noise, sample_rate=rate)
    ),
    "LaplaceDpEvent": lambda tree, rate: _by_noise(
        _number(tree, "noise_multiplier"), lambda noise: LaplaceNoise(scale=noise, sample_rate=rate)
    ),
    # Permuting and flipping is dominated by Laplace noise (docs/batches.md#choices-among-candidates).
    "PermuteAndFlipDpEvent": lambda tree, rate: _by_epsilon(
        tree, lambda epsilon: LaplaceNoise(scale=1 / epsilon, sample_rate=rate)
    ),
    "DiscreteLaplaceDpEvent": lambda tree, rate: (
        _NO_PRIVACY if _number(tree, "noise_parameter") in (0, math.inf) else (_discrete_laplace(tree, rate),)
    ),
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "MixtureOfGaussiansDpEvent": _mixture,
    "EpsilonDeltaDpEvent": _stated_epsilon,
    "NonPrivateDpEvent": lambda tree, rate: _NO_PRIVACY,
}


def _discrete_laplace(tree: _Tree, rate: float) -> Event:
    decay, moved = _number(tree, "noise_parameter"), _whole_number(tree, "sensitivity")
    return DiscreteLaplaceNoise(decay=decay, sensitivity=moved, sample_rate=rate)


def _tree_aggregation(tree: _Tree) -> Sequence[Event]:
    """Sums along binary trees; a record is in one leaf of one tree, so the tree with the most leaves decides."""
    noise, counts = _number(tree, "noise_multiplier"), tree.get("step_counts")
    leaves = counts if isinstance(counts, list) else [counts]
    if not leaves or any(type(n) is not int or n < 1 for n in leaves):
        raise ValueError(f"step_counts is {shown(counts)}, not one or several whole numbers above 0")
    most = max(leaves)
    return _by_noise(noise, lambda s: TreeGaussian(noise_multiplier=s, leaves=most, sample_rate=1 / most, steps=most))


def _truncated(tree: _Tree) -> Sequence[Event]:
    """Truncated Poisson batches."""
    rate, records, size = (
        _number(tree, "sampling_probability"),
        _whole_number(tree, "dataset_size"),
        _whole_number(tree, "truncated_batch_size"),
    )
    if rate == 0 or records == 0 or size == 0:
        return ()
    return _by_noise(
        _number(tree, "noise_multiplier"),
        lambda s: TruncatedGaussian(noise_multiplier=s, sample_rate=rate, examples=records, largest_batch=size),
    )


#: DpEvents on the whole data only -> the events of one step; none if it reveals nothing.
_WHOLE_DATA: Mapping[str, Callable[[_Tree], Sequence[Event]]] = {
    "RandomizedResponseDpEvent": _randomized_response,
    "SingleEpochTreeAggregationDpEvent": _tree_aggregation,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "ZCDpEvent": _zcdp,
    "ExponentialMechanismDpEvent": lambda tree: _by_epsilon(tree, lambda epsilon: ExponentialChoice(epsilon=epsilon)),
}


class _TreeReader:
    """Converts a DpEvent tree of the ledger ``source``."""

    def __init__(self, source: str, known: str) -> None:
        self._source, self._known = source, known

    def leaves(self, tree: Any, rate: float, times: int, depth: int) -> Iterator[tuple[Event, int]]:
        """The events of each leaf, at the sampling ``rate`` of Poisson batches, and how often each happens."""
        name = tree.get("class_name") if isinstance(tree, dict) else None
        if name is None or depth > DEEPEST:
            raise InputError(f"{self._source}: {shown(tree)} is not a DpEvent; expected {self._known}")
        if name == "NoOpDpEvent":
            return
        if name == "ComposedDpEvent" and isinstance(tree.get("events"), list) and rate == 1:
            for event in tree["events"]:
                yield from self.leaves(event, rate, times, depth + 1)
        elif name == "SelfComposedDpEvent" and type(tree.get("count")) is int and tree["count"] > 0 and rate == 1:
            yield from self.leaves(tree.get("event"), rate, times * tree["count"], depth + 1)
        elif name == "PoissonSampledDpEvent" and rate == 1 and type(tree.get("sampling_probability")) in (int, float):
            chance = checked(lambda: _number(tree, "sampling_probability"), self._source)
            yield from self._batch_events(tree.get("event"), chance, times, depth + 1)
        elif name in ("SampledWithoutReplacementDpEvent", "SampledWithReplacementDpEvent") and rate == 1:
            yield from self._sample_events(tree, times, depth + 1, replacement=name == "SampledWithReplacementDpEvent")
        else:
            yield from ((event, times) for event in self._leaf_events(name, tree, rate, depth))

    def _leaf_events(self, name: str, tree: _Tree, rate: float, depth: int) -> Sequence[Event]:
        """The events of a DpEvent that holds no others, or of the best of several runs."""
        if name == "RepeatAndSelectDpEvent" and rate == 1:
            return (checked(lambda: self._best_of_runs_event(tree, depth + 1), self._source),)
        if name in _WHOLE_DATA and rate == 1:
            return checked(lambda: _WHOLE_DATA[name](tree), self._source)
        if name in _NOISES:
            return checked(lambda: _NOISES[name](tree, rate), self._source) if rate else ()
        within = f" within batches of rate {rate:g}" if rate != 1 else ""
        raise InputError(
            f"{self._source} holds {shown(name)}{within}, for which no bound is derived here; expected Gaussian noise, "
            "mixtures of it, Laplace or discrete noise, or a stated epsilon, each on the whole data or on a Poisson "
            "batch of its own, Gaussian noise on truncated Poisson batches and on samples with or without replacement, "
            "randomized response, zCDP, choices among candidates and tree aggregation on the whole data, the best of "
            "runs of equal Gaussians or Laplace noise, and compositions of these"
        )

    def _sample_events(self, tree: _Tree, times: int, depth: int, *, replacement: bool) -> Iterator[tuple[Event, int]]:
        """Gaussian noise on samples of a fixed size, drawn with or without ``replacement``."""
        taken, out_of = (
            checked(lambda field=field: _whole_number(tree, field), self._source)  # type: ignore[misc]
            for field in _SIZES
        )
        how = "with" if replacement else "without"
        if taken < 0 or out_of < 1 or (taken > out_of and not replacement):
            raise InputError(f"{self._source} takes {taken} of {out_of} records {how} replacement; correct the numbers")
        for event, n in self._batch_events(tree.get("event"), 1.0, times, depth):
            if isinstance(event, UnprotectedRelease) and taken:
                yield event, n
                continue
            if not isinstance(event, SampledGaussian) or event.sample_rate != 1:
                raise InputError(
                    f"{self._source} holds other than Gaussian noise on samples {how} replacement, for which no bound "
                    "is derived here; expected a GaussianDpEvent, or several"
                )
            if taken and replacement:
                make_event = partial(
                    RedrawnGaussian, noise_multiplier=event.noise_multiplier, examples=out_of, draws=taken
                )
                yield checked(make_event, self._source), n
            elif taken:
                yield replace(event, sample_rate=taken / out_of, batches=Batches.FIXED_SIZE), n

    def _batch_events(self, tree: Any, rate: float, times: int, depth: int) -> Iterator[tuple[Event, int]]:
        """The events of one batch: a single one, or several Gaussians, which together amount to one.

        Releases of a record's contribution with noise s_i, even chosen adaptively, are dominated by one Gaussian with
        noise (sum_i s_i^-2)^(-1/2) (Dong, Roth and Su 2022, corollary 3.3). The same holds on a fixed-size sample.
        """
        if not isinstance(tree, dict) or tree.get("class_name") not in ("ComposedDpEvent", "SelfComposedDpEvent"):
            yield from self.leaves(tree, rate, times, depth)
            return
        released = [(event, n) for event, n in self.leaves(tree, 1.0, 1, depth)]
        if any(isinstance(event, UnprotectedRelease) for event, _ in released):
            yield from ((event, times) for event in _NO_PRIVACY if rate)
            return
        if not all(isinstance(event, SampledGaussian) and event.sample_rate == 1 for event, _ in released):
            raise InputError(
                f"{self._source} holds several releases of one batch that are not all Gaussian, for which no bound is "
                "derived here; expected Gaussian noise alone within a batch"
            )
        if released:
            inverse = math.hypot(
                *(math.sqrt(n) / e.noise_multiplier for e, n in released if isinstance(e, SampledGaussian))
            )
            joint = partial(SampledGaussian, noise_multiplier=1 / inverse, sample_rate=rate)
            event = checked(joint, self._source)
            if rate:
                yield event, times

    def _best_of_runs_event(self, tree: _Tree, depth: int) -> Event:
        """The best of several runs, each of equal Gaussians on Poisson batches, or on the whole data.

        On the whole data, Gaussians may differ, and there may be equal Laplace noise in their place.
        """
        mean, shape = _number(tree, "mean"), _number(tree, "shape")
        inner = tree.get("event")
        # Gaussians on the whole data amount to one, like several on one batch.
        batched = list(self.leaves(inner, 1.0, 1, depth))
        whole = all(isinstance(event, SampledGaussian) and event.sample_rate == 1 for event, _ in batched)
        joined = {"class_name": "ComposedDpEvent", "events": [inner]}
        run = list(self._batch_events(joined, 1.0, 1, depth)) if whole else []
        kinds = {event for event, _ in run or batched}
        only = kinds.pop() if len(kinds) == 1 else None
        law: Any = {"mean_runs": mean, "shape": None if shape == math.inf else shape}
        law["run_steps"] = sum(n for _, n in run or batched)
        if isinstance(only, LaplaceNoise) and only.sample_rate == 1:
            return BestOfLaplaceRuns(scale=only.scale, **law)
        if isinstance(only, SampledGaussian) and only.batches is Batches.POISSON:
            return BestOfRuns(noise_multiplier=only.noise_multiplier, sample_rate=only.sample_rate, **law)
        raise ValueError(
            "the runs of which the best is released are not of equal Gaussians on the data or on batches, or of equal "
            "Laplace noise on the data"
        )
