"""Trees of dp_accounting's DpEvents as events, and events as they protect other neighbours."""

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

#: How deep trees, and what states their neighbours, may lie.
DEEPEST = 30
_SIZES = ("sample_size", "source_dataset_size")
_Tree = Mapping[str, Any]
_Made = TypeVar("_Made")
#: One step that tells all.
_ALL_TOLD = (UnprotectedRelease(),)


def checked(make: Callable[[], _Made], where: str) -> _Made:
    """What ``make`` makes; its ValueError, or a number beyond floats, as an InputError that names ``where``."""
    try:
        return make()
    except ValueError as error:
        raise InputError(f"{where} describes no event: {error}; correct it") from None
    except OverflowError:
        raise InputError(f"{where} describes no event: a number in it is too large; correct it") from None


def of_tree(tree: Any, source: str, known: str) -> list[Event]:
    """The events of a tree, each once. Raises InputError for what has no bound; ``known`` are the forms of ledgers."""
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
    """The same for the neighbours that are ``stated``, or for replaced records where one of them is known for these.

    Raises InputError, naming ``source``, for an event without a bound for the neighbours that are stated.
    """
    wanted = stated
    fixed = any(isinstance(e, SampledGaussian) and e.batches is Batches.FIXED_SIZE for e in events)
    if fixed and wanted is Adjacency.ZERO_OUT:
        wanted = Adjacency.REPLACE_ONE  # a record that is zeroed is replaced
    if wanted is None and any(event.adjacency is Adjacency.REPLACE_ONE for event in events):
        wanted = Adjacency.REPLACE_ONE
    found = tuple(checked(lambda event=event: _for(event, wanted), source) for event in events)  # type: ignore[misc]
    for event in found:
        if stated is not None and not _bounds(event, wanted):
            raise InputError(
                f"{source} holds {event.mechanism} among events for neighbours by {stated}, for which no bound on it "
                f"is derived here; {_REMEDIES[stated]}"
            )
    return found


#: What is known for each neighbours.
_REMEDIES = {
    Adjacency.ADD_OR_REMOVE: "expected none of tree aggregation, answers of each record or samples without "
    "replacement; state replace-one or, for trees and answers, replace-special",
    Adjacency.REPLACE_ONE: "expected Gaussian noise on the data, on Poisson batches or on samples, answers of each "
    "record on the whole data, and mechanisms of stated epsilon or rho; state another if the noise is calibrated to it",
    Adjacency.ZERO_OUT: "expected no truncated batches; state add-or-remove if that is meant",
}


def _for(event: Event, wanted: Adjacency | None) -> Event:
    """The event for the neighbours that are ``wanted``, where it can be; Gaussians where a record is replaced."""
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


def _bounds(event: Event, wanted: Adjacency | None) -> bool:
    """Whether its bound holds for the neighbours that are ``wanted``."""
    if wanted is Adjacency.ZERO_OUT:
        return event.adjacency is wanted or (event.adjacency is Adjacency.ADD_OR_REMOVE and event.holds_zeroed)
    return event.adjacency is wanted


def _number(tree: _Tree, field: str) -> float:
    value: Any = tree.get(field)
    if type(value) not in (int, float):
        raise ValueError(f"{field} is {shown(value)}, not a number")
    return float(value)


def _whole(tree: _Tree, field: str) -> int:
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
    """Nothing where ``noise`` is infinite, all told where it is 0."""
    return () if noise == math.inf else _ALL_TOLD if noise == 0 else (make(noise),)


def _mixture(tree: _Tree, rate: float) -> Sequence[Event]:
    moves, chances = _numbers(tree, "sensitivities"), _numbers(tree, "sampling_probs")

    def make(noise: float) -> Event:
        return MixtureOfGaussians(noise_stddev=noise, sensitivities=moves, probabilities=chances, sample_rate=rate)

    make(1.0)  # checks the law
    if not any(move * chance for move, chance in zip(moves, chances, strict=True)):
        return ()
    return _by_noise(_number(tree, "standard_deviation"), make)


def _answers(tree: _Tree) -> Sequence[Event]:
    """Randomized response among so many buckets, of which a uniform one is told with the noise's probability."""
    mixed, buckets = _number(tree, "noise_parameter"), _whole(tree, "num_buckets")
    if not 0 <= mixed <= 1 or buckets < 1:
        raise ValueError(f"noise_parameter is {mixed:g} of {buckets} buckets; expected 0 to 1, of at least 1")
    if mixed == 1 or buckets == 1:
        return ()
    if mixed == 0:
        return _ALL_TOLD
    return (ManyWayResponse(epsilon=math.log1p(buckets * (1 - mixed) / mixed), answers=buckets),)


def _stated_epsilon(tree: _Tree, rate: float) -> Sequence[Event]:
    epsilon, delta = _number(tree, "epsilon"), _number(tree, "delta")
    if epsilon == 0 == delta:
        return ()
    if epsilon == math.inf or delta == 1:
        return _ALL_TOLD
    return (EpsilonDeltaDp(epsilon=epsilon, delta=delta, sample_rate=rate),)


def _concentrated(tree: _Tree) -> Sequence[Event]:
    """(xi, rho)-zCDP; without rho, divergences of all orders are at most xi, the infinite one among them."""
    rho, xi = _number(tree, "rho"), _number(tree, "xi") if "xi" in tree else 0.0
    if rho:
        return (ZeroConcentratedDp(rho=rho, xi=xi),)
    return (EpsilonDeltaDp(epsilon=xi),) if xi else ()


def _discrete_gaussian(tree: _Tree, rate: float) -> Sequence[Event]:
    """On one whole number exactly; on several by their zCDP (Canonne, Kamath and Steinke 2020, theorem 4)."""
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


def _of_range(tree: _Tree, make: Callable[[float], Event]) -> Sequence[Event]:
    epsilon = _number(tree, "epsilon")
    return () if epsilon == 0 else _ALL_TOLD if epsilon == math.inf else (make(epsilon),)


#: DpEvents on the whole data or on a Poisson batch -> what one step of each is here, from its fields and the rate.
_NOISES: Mapping[str, Callable[[_Tree, float], Sequence[Event]]] = {
    "GaussianDpEvent": lambda tree, rate: _by_noise(
        _number(tree, "noise_multiplier"), lambda noise: SampledGaussian(noise_multiplier=noise, sample_rate=rate)
    ),
    "LaplaceDpEvent": lambda tree, rate: _by_noise(
        _number(tree, "noise_multiplier"), lambda noise: LaplaceNoise(scale=noise, sample_rate=rate)
    ),
    # Permuting and flipping is dominated by Laplace noise (docs/batches.md#choices-among-candidates).
    "PermuteAndFlipDpEvent": lambda tree, rate: _of_range(
        tree, lambda epsilon: LaplaceNoise(scale=1 / epsilon, sample_rate=rate)
    ),
    "DiscreteLaplaceDpEvent": lambda tree, rate: (
        _ALL_TOLD if _number(tree, "noise_parameter") in (0, math.inf) else (_discrete_laplace(tree, rate),)
    ),
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "MixtureOfGaussiansDpEvent": _mixture,
    "EpsilonDeltaDpEvent": _stated_epsilon,
    "NonPrivateDpEvent": lambda tree, rate: _ALL_TOLD,
}


def _discrete_laplace(tree: _Tree, rate: float) -> Event:
    decay, moved = _number(tree, "noise_parameter"), _whole(tree, "sensitivity")
    return DiscreteLaplaceNoise(decay=decay, sensitivity=moved, sample_rate=rate)


def _of_trees(tree: _Tree) -> Sequence[Event]:
    """Sums along binary trees, of which a record is in one leaf of one tree: the deepest one counts."""
    noise, counts = _number(tree, "noise_multiplier"), tree.get("step_counts")
    leaves = counts if isinstance(counts, list) else [counts]
    if not leaves or any(type(n) is not int or n < 1 for n in leaves):
        raise ValueError(f"step_counts is {shown(counts)}, not one or several whole numbers above 0")
    most = max(leaves)
    return _by_noise(noise, lambda s: TreeGaussian(noise_multiplier=s, leaves=most, sample_rate=1 / most, steps=most))


def _truncated(tree: _Tree) -> Sequence[Event]:
    """Poisson batches cut to a largest size."""
    rate, records, size = (
        _number(tree, "sampling_probability"), _whole(tree, "dataset_size"), _whole(tree, "truncated_batch_size")
    )  # fmt: skip
    if rate == 0 or records == 0 or size == 0:
        return ()
    return _by_noise(
        _number(tree, "noise_multiplier"),
        lambda s: TruncatedGaussian(noise_multiplier=s, sample_rate=rate, examples=records, largest_batch=size),
    )


#: DpEvents on the whole data alone -> what one of each is here; nothing where they tell nothing.
_ON_ALL: Mapping[str, Callable[[_Tree], Sequence[Event]]] = {
    "RandomizedResponseDpEvent": _answers,
    "SingleEpochTreeAggregationDpEvent": _of_trees,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "ZCDpEvent": _concentrated,
    "ExponentialMechanismDpEvent": lambda tree: _of_range(tree, lambda epsilon: ExponentialChoice(epsilon=epsilon)),
}


class _TreeReader:
    """Walks a tree of the ledger ``source``."""

    def __init__(self, source: str, known: str) -> None:
        self._source, self._known = source, known

    def leaves(self, tree: Any, rate: float, times: int, depth: int) -> Iterator[tuple[Event, int]]:
        """What each leaf releases as events, with the ``rate`` of Poisson batches, and how often."""
        name = tree.get("class_name") if isinstance(tree, dict) else None
        if name is None or depth > DEEPEST:
            raise InputError(f"{self._source}: {shown(tree)} is no DpEvent; expected {self._known}")
        if name == "NoOpDpEvent":
            return
        if name == "ComposedDpEvent" and isinstance(tree.get("events"), list) and rate == 1:
            for event in tree["events"]:
                yield from self.leaves(event, rate, times, depth + 1)
        elif name == "SelfComposedDpEvent" and type(tree.get("count")) is int and tree["count"] > 0 and rate == 1:
            yield from self.leaves(tree.get("event"), rate, times * tree["count"], depth + 1)
        elif name == "PoissonSampledDpEvent" and rate == 1 and type(tree.get("sampling_probability")) in (int, float):
            chance = checked(lambda: _number(tree, "sampling_probability"), self._source)
            yield from self._of_batch(tree.get("event"), chance, times, depth + 1)
        elif name in ("SampledWithoutReplacementDpEvent", "SampledWithReplacementDpEvent") and rate == 1:
            yield from self._of_places(tree, times, depth + 1, again=name == "SampledWithReplacementDpEvent")
        else:
            yield from ((event, times) for event in self._of_leaf(name, tree, rate, depth))

    def _of_leaf(self, name: str, tree: _Tree, rate: float, depth: int) -> Sequence[Event]:
        """What is released by what holds no others, or by the best of runs."""
        if name == "RepeatAndSelectDpEvent" and rate == 1:
            return (checked(lambda: self._of_runs(tree, depth + 1), self._source),)
        if name in _ON_ALL and rate == 1:
            return checked(lambda: _ON_ALL[name](tree), self._source)
        if name in _NOISES:
            return checked(lambda: _NOISES[name](tree, rate), self._source) if rate else ()
        within = f" within batches of rate {rate:g}" if rate != 1 else ""
        raise InputError(
            f"{self._source} holds {shown(name)}{within}, for which no bound is derived here; expected Gaussian noise, "
            "mixtures of it, Laplace or discrete noise, or a stated epsilon, each on the whole data or on a Poisson "
            "batch of its own, Gaussian noise on truncated Poisson batches and on samples with or without replacement, "
            "randomized response, zCDP, choices among candidates and tree aggregation on the whole data, the best of "
            "runs of equal Gaussians, and compositions of these"
        )

    def _of_places(self, tree: _Tree, times: int, depth: int, *, again: bool) -> Iterator[tuple[Event, int]]:
        """Gaussian noise on samples of a fixed size, in which a record may come ``again``."""
        taken, out_of = (
            checked(lambda field=field: _whole(tree, field), self._source)  # type: ignore[misc]
            for field in _SIZES
        )
        how = "with" if again else "without"
        if taken < 0 or out_of < 1 or (taken > out_of and not again):
            raise InputError(f"{self._source} takes {taken} of {out_of} records {how} replacement; correct the numbers")
        for event, n in self._of_batch(tree.get("event"), 1.0, times, depth):
            if isinstance(event, UnprotectedRelease) and taken:
                yield event, n
                continue
            if not isinstance(event, SampledGaussian) or event.sample_rate != 1:
                raise InputError(
                    f"{self._source} holds other than Gaussian noise on samples {how} replacement, for which no bound "
                    "is derived here; expected a GaussianDpEvent, or several"
                )
            if taken and again:
                made = partial(RedrawnGaussian, noise_multiplier=event.noise_multiplier, examples=out_of, draws=taken)
                yield checked(made, self._source), n
            elif taken:
                yield replace(event, sample_rate=taken / out_of, batches=Batches.FIXED_SIZE), n

    def _of_batch(self, tree: Any, rate: float, times: int, depth: int) -> Iterator[tuple[Event, int]]:
        """What is released of one batch: one noise, or several Gaussians, which together are one Gaussian.

        Steps that release a record's contribution with noise s_i, one after the other and however chosen, are dominated
        by one Gaussian with noise (sum_i s_i^-2)^(-1/2) (Dong, Roth and Su 2022, corollary 3.3); so are those of a
        sample.
        """
        if not isinstance(tree, dict) or tree.get("class_name") not in ("ComposedDpEvent", "SelfComposedDpEvent"):
            yield from self.leaves(tree, rate, times, depth)
            return
        released = [(event, n) for event, n in self.leaves(tree, 1.0, 1, depth)]
        if any(isinstance(event, UnprotectedRelease) for event, _ in released):
            yield from ((event, times) for event in _ALL_TOLD if rate)
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

    def _of_runs(self, tree: _Tree, depth: int) -> Event:
        """The best of runs, each of equal Gaussians on batches, or of any on the whole data."""
        mean, shape = _number(tree, "mean"), _number(tree, "shape")
        inner = tree.get("event")
        # Gaussians on the whole data amount to one, as several on one batch do.
        batched = list(self.leaves(inner, 1.0, 1, depth))
        whole = all(isinstance(event, SampledGaussian) and event.sample_rate == 1 for event, _ in batched)
        joined = {"class_name": "ComposedDpEvent", "events": [inner]}
        run = list(self._of_batch(joined, 1.0, 1, depth)) if whole else []
        kinds = {event for event, _ in run or batched}
        only = kinds.pop() if len(kinds) == 1 else None
        if not isinstance(only, SampledGaussian) or only.batches is not Batches.POISSON:
            raise ValueError(
                "the runs of which the best is released are not of equal Gaussians on the data or on batches"
            )
        return BestOfRuns(
            noise_multiplier=only.noise_multiplier, sample_rate=only.sample_rate, mean_runs=mean,
            shape=None if shape == math.inf else shape, run_steps=sum(n for _, n in run or batched),
        )  # fmt: skip
