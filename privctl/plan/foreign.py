"""Ledgers of other programs as events: Opacus's ``accountant.history``, and dp_accounting's trees of DpEvents.

Both count noise multipliers as privctl does (noise standard deviation / clip norm), mean Poisson batches by a rate,
and by default take neighbours to differ by one example added or removed. No ledger of theirs says which neighbours it
means; one that was made to say so, and means others, is refused.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from privctl.domain.errors import InputError
from privctl.domain.events import (
    Batches,
    BestOfRuns,
    DiscreteLaplaceNoise,
    EpsilonDeltaDp,
    Event,
    LaplaceNoise,
    ManyWayResponse,
    MixtureOfGaussians,
    ReplacedGaussian,
    SampledGaussian,
    TruncatedGaussian,
    ZeroConcentratedDp,
)
from privctl.domain.guarantee import Adjacency
from privctl.storage.json_text import parse_json, shown

_SIZES = ("sample_size", "source_dataset_size")
_Made = TypeVar("_Made")

_DEEPEST, _LONGEST_REPR = 30, 1 << 20
_ADD_OR_REMOVE_TAKEN = (
    "Adjacency taken: add-or-remove, the default of Opacus and dp_accounting. Adding or removing one example changes a "
    "sum by the clip norm at most; replacing one may change it by twice that. In tree aggregation a record that is "
    "removed leaves its place empty"
)
_REPLACE_ONE_TAKEN = (
    "Adjacency taken: replace-one, which is stated or is what batches of fixed size and answers of each record are "
    "known for. Replacing one example changes a sum by twice the clip norm at most, and noise multipliers are taken to "
    "be noise standard deviation / clip norm"
)
#: Where a ledger may say which neighbours it means, and how it says add-or-remove.
_ADJACENCY_KEYS = ("adjacency", "neighboring_relation", "neighbouring_relation", "neighbors", "neighbours")
_ADD_OR_REMOVE = {"addorremove", "addorremoveone"}
_REPLACE_ONE = {"replaceone"}
_KNOWN = (
    "a list of events as privctl writes it; Opacus's accountant.history, [[noise multiplier, sample rate, steps]], "
    'or its state_dict(), {"history": [...]}; a dp_accounting tree as repr() writes it, or as JSON with "class_name"'
)

#: DpEvents that add noise -> one step of each here, from its fields and the rate of its Poisson batches.
_NOISES: Mapping[str, Callable[[Mapping[str, Any], float], Event]] = {
    "GaussianDpEvent": lambda tree, rate: SampledGaussian(
        noise_multiplier=_number(tree, "noise_multiplier"), sample_rate=rate
    ),
    "LaplaceDpEvent": lambda tree, rate: LaplaceNoise(scale=_number(tree, "noise_multiplier"), sample_rate=rate),
    "DiscreteLaplaceDpEvent": lambda tree, rate: DiscreteLaplaceNoise(
        decay=_number(tree, "noise_parameter"), sensitivity=_whole(tree, "sensitivity"), sample_rate=rate
    ),
    "MixtureOfGaussiansDpEvent": lambda tree, rate: MixtureOfGaussians(
        noise_stddev=_number(tree, "standard_deviation"),
        sensitivities=_numbers(tree, "sensitivities"),
        probabilities=_numbers(tree, "sampling_probs"),
        sample_rate=rate,
    ),
}


def adjacency_taken(events: Sequence[Event]) -> str:
    """A sentence on what a foreign ledger of ``events`` is taken to mean, for whoever shows the numbers."""
    replaced = any(event.adjacency is Adjacency.REPLACE_ONE for event in events)
    return _REPLACE_ONE_TAKEN if replaced else _ADD_OR_REMOVE_TAKEN


def _answers(tree: Mapping[str, Any]) -> Sequence[Event]:
    """Randomized response among so many buckets, of which a uniform one is told with the noise's probability."""
    mixed, buckets = _number(tree, "noise_parameter"), _whole(tree, "num_buckets")
    if not 0 <= mixed <= 1 or buckets < 1:
        raise ValueError(f"noise_parameter is {mixed:g} of {buckets} buckets; expected 0 to 1, of at least 1")
    if mixed == 0 < buckets - 1:
        raise ValueError("noise_parameter is 0, so that every answer is told as it is")
    if mixed == 1 or buckets == 1:
        return ()
    return (ManyWayResponse(epsilon=math.log1p(buckets * (1 - mixed) / mixed), answers=buckets),)


def _concentrated(tree: Mapping[str, Any]) -> Sequence[Event]:
    """(xi, rho)-zCDP; without rho, divergences of all orders are at most xi, the infinite one among them."""
    rho, xi = _number(tree, "rho"), _number(tree, "xi") if "xi" in tree else 0.0
    if rho:
        return (ZeroConcentratedDp(rho=rho, xi=xi),)
    return (EpsilonDeltaDp(epsilon=xi),) if xi else ()


def foreign_events(text: str, source: str) -> tuple[Event, ...] | None:
    """The events of another program's ledger; None where ``text`` is a list of objects, privctl's own.

    Raises InputError, naming ``source``, for anything else, and for events that privctl has no bound for.
    """
    tree = _of_repr(text, source) if text.lstrip()[:1] not in ("[", "{") else None
    data = parse_json(text, source) if tree is None else tree
    replaced = _states_replacement(data, source)
    if tree is not None or (isinstance(data, dict) and "class_name" in data):
        return _composed(data, source, replaced)
    history = data.get("history") if isinstance(data, dict) else data
    if not isinstance(history, list) or not (history or history is data):
        raise InputError(f"{source} is no ledger; expected {_KNOWN}")
    if all(isinstance(entry, dict) for entry in history):
        if history is data:
            return None
        _refuse_entry(history[0], 0, source)
    events = tuple(_of_history(entry, i, source) for i, entry in enumerate(history))
    return tuple(map(_of_replacement, events)) if replaced else events


def _states_replacement(data: Any, source: str) -> bool:
    """Whether ``data`` says that its neighbours replace an example; InputError for neighbours of any other kind."""
    stated = set(_relations(data, source, 0))
    if len(stated) > 1:
        raise InputError(f"{source} states both add-or-remove and replace-one adjacency; state one of them")
    return True in stated


def _relations(data: Any, source: str, depth: int) -> Iterator[bool]:
    """What ``data`` and all within it say of their neighbours: True for replacement, False for adding or removing."""
    within = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for each in within if depth <= _DEEPEST else ():
        if isinstance(each, dict | list):
            yield from _relations(each, source, depth + 1)
    for key in _ADJACENCY_KEYS if isinstance(data, dict) else ():
        stated = data.get(key)
        plain = "".join(c for c in str(stated).rpartition(".")[2].lower() if c.isalpha())
        if stated is not None and plain not in _ADD_OR_REMOVE | _REPLACE_ONE:
            raise InputError(
                f"{source} has {key} {shown(stated)}; foreign ledgers are read with add-or-remove or replace-one "
                "adjacency; give the noise multipliers of one of them, and state that"
            )
        if stated is not None:
            yield plain in _REPLACE_ONE


def _of_history(entry: Any, index: int, source: str) -> Event:
    numbers = isinstance(entry, list) and all(type(n) in (int, float) for n in entry)
    if not numbers or len(entry) != 3 or entry[2] % 1:
        _refuse_entry(entry, index, source)
    noise, rate, steps = entry
    where = f"{source}: entry {index + 1}"
    return _checked(lambda: SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=int(steps)), where)


def _refuse_entry(entry: Any, index: int, source: str) -> NoReturn:
    raise InputError(f"{source}: entry {index + 1} is {shown(entry)}; expected {_KNOWN}")


def _checked(make: Callable[[], _Made], where: str) -> _Made:
    try:
        return make()
    except ValueError as error:
        raise InputError(f"{where} describes no event: {error}; correct it") from None


def _number(tree: Mapping[str, Any], field: str) -> float:
    value: Any = tree.get(field)
    if type(value) not in (int, float):
        raise ValueError(f"{field} is {shown(value)}, not a number")
    return float(value)


def _whole(tree: Mapping[str, Any], field: str) -> int:
    value = tree.get(field)
    if type(value) is not int:
        raise ValueError(f"{field} is {shown(value)}, not a whole number")
    return value


def _numbers(tree: Mapping[str, Any], field: str) -> tuple[float, ...]:
    values = tree.get(field)
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        raise ValueError(f"{field} is {shown(values)}, not a list of numbers")
    return tuple(map(float, values))


def _of_repr(text: str, source: str) -> Any:
    """A tree of DpEvents from its ``repr``, as dictionaries; nothing is evaluated."""
    fault = InputError(f"{source} is no ledger; expected {_KNOWN}")
    if len(text) > _LONGEST_REPR:
        raise fault
    try:
        return _plain(ast.parse(text.strip(), mode="eval").body, 0)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise fault from None


def _plain(node: ast.expr, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        names = [keyword.arg for keyword in node.keywords]
        # What Python itself refuses: of two values the greater noise would count, or an event pass for another.
        if len({"class_name", *names}) != 1 + len(names) or None in names:
            raise ValueError
        return {"class_name": node.func.id, **{str(k.arg): _plain(k.value, depth + 1) for k in node.keywords}}
    if isinstance(node, ast.List | ast.Tuple):
        return [_plain(each, depth + 1) for each in node.elts]
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    return ast.literal_eval(node)


def _composed(tree: Any, source: str, stated: bool) -> tuple[Event, ...]:
    """The events of a tree, for neighbours that replace an example where it is ``stated`` or an event is for these."""
    counts: Counter[Event] = Counter()
    for event, times in _leaves(tree, 1.0, 1, 0, source):
        counts[event] += times
    if not counts:
        raise InputError(f"{source} holds no event that spends privacy; give the ledger of a training")
    found = tuple(
        _checked(lambda event=event, n=n: replace(event, steps=n), source)  # type: ignore[misc]
        for event, n in counts.items()
    )
    replaced = stated or any(event.adjacency is Adjacency.REPLACE_ONE for event in found)
    if not replaced:
        return found
    found = tuple(map(_of_replacement, found))
    for event in found:
        if stated and event.adjacency is not Adjacency.REPLACE_ONE:
            raise InputError(
                f"{source} holds {event.mechanism} among events for neighbours that replace an example, for which no "
                "bound on it is derived here; expected Gaussian noise, and randomized response on the whole data"
            )
    return found


def _of_replacement(event: Event) -> Event:
    """Gaussian noise on the whole data or on Poisson batches, as it protects where a record is replaced."""
    if isinstance(event, SampledGaussian) and event.sample_rate == 1:
        return replace(event, batches=Batches.FIXED_SIZE)
    if isinstance(event, SampledGaussian) and event.batches is Batches.POISSON:
        return ReplacedGaussian(
            noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=event.steps
        )
    return event


def _leaves(tree: Any, rate: float, times: int, depth: int, source: str) -> Iterator[tuple[Event, int]]:
    """Each noise as an event of one step, with the ``rate`` of its Poisson batches, and how often it is added."""
    name = tree.get("class_name") if isinstance(tree, dict) else None
    if name is None or depth > _DEEPEST:
        raise InputError(f"{source}: {shown(tree)} is no DpEvent; expected {_KNOWN}")
    if name == "NoOpDpEvent":
        return
    if name == "ComposedDpEvent" and isinstance(tree.get("events"), list) and rate == 1:
        for event in tree["events"]:
            yield from _leaves(event, rate, times, depth + 1, source)
    elif name == "SelfComposedDpEvent" and type(tree.get("count")) is int and tree["count"] > 0 and rate == 1:
        yield from _leaves(tree.get("event"), rate, times * tree["count"], depth + 1, source)
    elif name == "PoissonSampledDpEvent" and rate == 1 and type(tree.get("sampling_probability")) in (int, float):
        yield from _of_batch(tree.get("event"), tree["sampling_probability"], times, depth + 1, source)
    elif name == "SampledWithoutReplacementDpEvent" and rate == 1:
        yield from _of_fixed_size(tree, times, depth + 1, source)
    elif name in _STATED and rate == 1:
        yield from ((event, times) for event in _checked(lambda: _STATED[name](tree, depth + 1, source), source))
    elif name in _NOISES:
        yield _checked(lambda: _NOISES[name](tree, rate), source), times
    else:
        within = f" within batches of rate {rate:g}" if rate != 1 else ""
        raise InputError(
            f"{source} holds {shown(name)}{within}, for which no bound is derived here; expected Gaussian noise, "
            "mixtures of it, Laplace or discrete Laplace noise, each on the whole data or on a Poisson batch of its "
            "own, Gaussian noise on truncated Poisson batches and on samples without replacement, randomized response, "
            "zCDP and tree aggregation on the whole data, the best of runs of equal Gaussians, and compositions of "
            "these"
        )


def _of_fixed_size(tree: Mapping[str, Any], times: int, depth: int, source: str) -> Iterator[tuple[Event, int]]:
    """Gaussian noise on samples of a fixed size."""
    taken, out_of = (_checked(lambda field=field: _whole(tree, field), source) for field in _SIZES)  # type: ignore[misc]
    if not 0 <= taken <= out_of or not out_of:
        raise InputError(f"{source} takes {taken} of {out_of} records without replacement; correct the numbers")
    rate = taken / out_of
    for event, n in _of_batch(tree.get("event"), 1.0, times, depth, source):
        if not isinstance(event, SampledGaussian) or event.sample_rate != 1:
            raise InputError(
                f"{source} holds other than Gaussian noise on samples without replacement, for which no bound is "
                "derived here; expected a GaussianDpEvent, or several"
            )
        if rate:
            yield replace(event, sample_rate=rate, batches=Batches.FIXED_SIZE), n


def _of_batch(tree: Any, rate: float, times: int, depth: int, source: str) -> Iterator[tuple[Event, int]]:
    """What is released of one batch: one noise, or several Gaussians, which together are one Gaussian.

    Steps that release a record's contribution with noise s_i, one after the other and however chosen, are dominated by
    one Gaussian with noise (sum_i s_i^-2)^(-1/2) (Dong, Roth and Su 2022, corollary 3.3); so are those of a sample.
    """
    if not isinstance(tree, dict) or tree.get("class_name") not in ("ComposedDpEvent", "SelfComposedDpEvent"):
        yield from _leaves(tree, rate, times, depth, source)
        return
    released = [(event, n) for event, n in _leaves(tree, 1.0, 1, depth, source)]
    if not all(isinstance(event, SampledGaussian) and event.sample_rate == 1 for event, _ in released):
        raise InputError(
            f"{source} holds several releases of one batch that are not all Gaussian, for which no bound is "
            "derived here; expected Gaussian noise alone within a batch"
        )
    if released:
        inverse = math.hypot(
            *(math.sqrt(n) / e.noise_multiplier for e, n in released if isinstance(e, SampledGaussian))
        )
        joint = lambda: SampledGaussian(noise_multiplier=1 / inverse, sample_rate=rate)  # noqa: E731
        yield _checked(joint, source), times


def _of_runs(tree: Mapping[str, Any], depth: int, source: str) -> Event:
    """The best of runs, each of equal Gaussians on batches, or of any on the whole data."""
    mean, shape = _number(tree, "mean"), _number(tree, "shape")
    inner = tree.get("event")
    # Gaussians on the whole data amount to one, as several on one batch do.
    batched = list(_leaves(inner, 1.0, 1, depth, source))
    whole = all(isinstance(event, SampledGaussian) and event.sample_rate == 1 for event, _ in batched)
    run = list(_of_batch({"class_name": "ComposedDpEvent", "events": [inner]}, 1.0, 1, depth, source)) if whole else []
    kinds = {event for event, _ in run or batched}
    only = kinds.pop() if len(kinds) == 1 else None
    if not isinstance(only, SampledGaussian) or only.batches is not Batches.POISSON:
        raise ValueError("the runs of which the best is released are not of equal Gaussians on the data or on batches")
    return BestOfRuns(
        noise_multiplier=only.noise_multiplier, sample_rate=only.sample_rate, mean_runs=mean,
        shape=None if shape == math.inf else shape, run_steps=sum(n for _, n in run or batched),
    )  # fmt: skip


def _of_trees(tree: Mapping[str, Any]) -> Event:
    """Sums along a binary tree (Kairouz et al. 2021, appendix D): a record is in one leaf, so in one node a level.

    Nodes are released when they are complete: with n leaves those of floor(log2 n) + 1 levels, whose Gaussians are one
    Gaussian. No record is in two trees.
    """
    noise, counts = _number(tree, "noise_multiplier"), tree.get("step_counts")
    leaves = counts if isinstance(counts, list) else [counts]
    if not leaves or any(type(n) is not int or n < 1 for n in leaves):
        raise ValueError(f"step_counts is {shown(counts)}, not one or several whole numbers above 0")
    levels = max(leaves).bit_length()
    return SampledGaussian(noise_multiplier=noise / math.sqrt(levels))


def _truncated(tree: Mapping[str, Any]) -> Sequence[Event]:
    """Poisson batches cut to a largest size."""
    rate, records, size = (
        _number(tree, "sampling_probability"), _whole(tree, "dataset_size"), _whole(tree, "truncated_batch_size")
    )  # fmt: skip
    if rate == 0 or records == 0 or size == 0:
        return ()
    noise = _number(tree, "noise_multiplier")
    return (TruncatedGaussian(noise_multiplier=noise, sample_rate=rate, examples=records, largest_batch=size),)


#: DpEvents on the whole data alone -> one step of each here, nothing where they tell nothing.
_STATED: Mapping[str, Callable[[Mapping[str, Any], int, str], Sequence[Event]]] = {
    "RandomizedResponseDpEvent": lambda tree, depth, source: _answers(tree),
    "RepeatAndSelectDpEvent": lambda tree, depth, source: (_of_runs(tree, depth, source),),
    "SingleEpochTreeAggregationDpEvent": lambda tree, depth, source: (_of_trees(tree),),
    "TruncatedSubsampledGaussianDpEvent": lambda tree, depth, source: _truncated(tree),
    "ZCDpEvent": lambda tree, depth, source: _concentrated(tree),
}
