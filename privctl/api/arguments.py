"""Shared by the functions of this package: paths of any kind, checks of numbers, and aliases of arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from privctl.data.several import DataPath, SeveralPaths, data_at
from privctl.domain import ranges
from privctl.domain.errors import CommandError
from privctl.domain.ranges import Range

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: A file or folder, as a string or as a path.
FilePath = str | os.PathLike[str]
#: Data at one path, or at several that are read as one.
DataPaths = FilePath | Sequence[FilePath]

_EVERYWHERE: dict[str, Range] = {
    "batch_size": ranges.COUNT,
    "beta1": ranges.BELOW_ONE,
    "beta2": ranges.BELOW_ONE,
    "clip_norm": ranges.AMOUNT,
    "dataset_size": ranges.COUNT,
    "delta": ranges.FRACTION,
    "epochs": ranges.AMOUNT,
    "epsilon": ranges.POSITIVE,
    "learning_rate": ranges.AMOUNT,
    "momentum": ranges.BELOW_ONE,
    "resize": ranges.COUNT,
    "steps": ranges.COUNT,
    "weight_decay": ranges.AMOUNT_OR_ZERO,
}
#: An AUC above chance.
_AUC = Range(low=0.5, high=1, open_low=True, open_high=True)
#: Function -> ranges of its arguments, which override those in ``_EVERYWHERE``.
_OWN: dict[str, dict[str, Range]] = {
    "account": {
        "delta": ranges.BELOW_ONE,
        "noise_multiplier": ranges.POSITIVE,
        "priors": ranges.FRACTION,
        "sample_rate": ranges.CHANCE,
    },
    "audit": {
        **dict.fromkeys(
            (
                "references",
                "suffix_tokens",
                "least_prefix",
                "top_k",
                "queries",
                "records",
                "candidates",
                "adversarial",
                "adversarial_budget",
                "adversarial_tokens",
                "continuations",
                "continuation_tokens",
                "beam",
            ),
            ranges.COUNT,
        ),
        "delta": ranges.BELOW_ONE,
        "least_auc": _AUC,
        "max_length": Range(low=2, high=1e12, whole=True),
        "most_secrets": ranges.COUNT,
        "query_probability": ranges.FRACTION,
        "prefix_tokens": ranges.COUNT_OR_ZERO,
        "sampling_seed": ranges.SEED,
        "seed": ranges.SEED32,
        "temperature": ranges.AMOUNT,
        "top_p": ranges.CHANCE,
    },
    "audit_split": {"records": ranges.COUNT},
    "audit_scores": {"delta": ranges.BELOW_ONE, "least_auc": _AUC, "threshold": Range(low=-math.inf)},
    "noise": {
        "epochs": ranges.COUNT,
        "noise_stddev": ranges.POSITIVE,
        "seed": ranges.SEED,
        "smoothness": ranges.POSITIVE,
        "strong_convexity": ranges.POSITIVE,
        "threads": Range(low=1, high=64, whole=True),
    },
    "retrain": {
        "clip_norm": ranges.CLIP_NORM,
        "lora_rank": ranges.COUNT,
        "max_length": ranges.COUNT,
        "micro_examples": ranges.COUNT,
        "micro_tokens": ranges.COUNT,
        "noise_multiplier": ranges.AMOUNT,
        "public_batch_size": ranges.COUNT,
        "public_weight": ranges.AMOUNT_OR_ZERO,
        "seed": ranges.SEED,
        "warmup_steps": ranges.COUNT_OR_ZERO,
    },
    "verify": {"seconds": ranges.AMOUNT, "seed": ranges.SEED32},
}
#: Argument -> its option, where the names differ.
_FLAGS = {"priors": "--prior", "attacks": "--attack", "methods": "--method"}


def range_of(function: str, name: str) -> Range | None:
    """The range of the argument ``name`` of ``function``; None where it has no numbers, or the engine checks them."""
    return _OWN[function].get(name, _EVERYWHERE.get(name))


def check_numbers(function: str, options: Mapping[str, Any]) -> None:
    """Raise CommandError, naming the option, for a value that is no number or out of its range."""
    for name, given in options.items():
        within = range_of(function, name)
        for value in given if isinstance(given, tuple) else (given,):
            if within is not None and value is not None:
                _require(within, _FLAGS.get(name, f"--{name.replace('_', '-')}"), value)


def _require(within: Range, flag: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"{flag} is {value!r}; it must be a number")
    try:
        within.require(flag, value)
    except ValueError as error:
        raise CommandError(str(error)) from None


def path_at(given: FilePath, name: str) -> Path:
    """The path given as argument ``name``. Raises CommandError for any other value, such as a model in memory."""
    if not isinstance(given, str | os.PathLike):
        raise CommandError(f"{name} is a value of type {type(given).__name__}; give a path")
    return Path(given)


def path_or_none(given: FilePath | None, name: str = "a file") -> Path | None:
    """The path given as argument ``name``, or None. Raises CommandError for any other value."""
    return None if given is None else path_at(given, name)


def data_or_none(given: DataPaths | SeveralPaths | None) -> DataPath | None:
    """The data at the given paths, or None. Raises CommandError for a path that is given twice."""
    return None if given is None else data_at(given)


def claim_text(given: str | Sequence[float] | None) -> str | None:
    """A claim as ``--claim`` takes it, from a pair (epsilon, delta). Raises CommandError for any other value."""
    if given is None or isinstance(given, str):
        return given
    try:
        epsilon, delta = map(float, given)
    except (TypeError, ValueError):
        raise CommandError(f"claim is {given!r}; give a pair (epsilon, delta)") from None
    return f"{epsilon!r},{delta!r}"


def accepting(**aliases: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """A decorator for a function whose argument NAME may also be given as ALIAS, for each ``ALIAS="NAME"``.

    The decorated function raises CommandError where an argument is given under both names.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @wraps(function)
        def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            for alias, name in aliases.items():
                if alias in options and name in options:
                    raise CommandError(f"{name} is given twice, once as {alias}; remove {alias}")
                if alias in options:
                    options[name] = options.pop(alias)
            return function(*arguments, **options)

        return call

    return decorate


def as_tuple(given: Any) -> tuple[Any, ...]:
    """One value, several, or None, as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str | int | float | os.PathLike) else tuple(given)
