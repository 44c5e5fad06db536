"""``privctl.from_opacus``: a report of a private training by Opacus, from its accountant's history."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

from privctl.accounting.deltas import default_delta
from privctl.domain.checks import positive
from privctl.domain.errors import CommandError, InputError
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Assumption
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.integrations.report import ASSERTED, guarantee_for, premises, report_place, usual_warnings, write
from privctl.integrations.users import Users

_NAME = "opacus"
#: Tolerance between the optimizer's expected batch size and the sampling rate times the number of examples.
_ROUNDING = 1e-6
_NOTE = "for noise in real arithmetic: what Opacus adds in floating point, and does not round, is not counted"
#: Opacus's class of engines, and attributes of optimizers, of adaptive clipping.
_ADAPTIVE_ENGINE, _OF_ADAPTIVE = "PrivacyEngineAdaptiveClipping", ("unclipped_num_std", "_adjusted_noise_multiplier")
_HISTORY = Assumption(
    name="reported ledger",
    statement="the history of Opacus's accountant holds every step that touched the examples, at the noise and the "
    "sampling rate that were used, and nothing else was computed from them",
    state=ASSERTED,
)


def from_opacus(
    engine: Any,
    model: str | os.PathLike[str],
    *,
    examples: int,
    delta: float | None = None,
    clip_norm: float | None = None,
    optimizer: Any = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> PrivacyReport:
    """Write a report of the training that ``engine``, an ``opacus.PrivacyEngine``, made private, and return it.

    ``engine`` may also be the engine's accountant, or its history: a list of (noise multiplier, sampling rate, steps).
    ``model`` is the finished model, saved as a safetensors file or a Hugging Face directory. ``examples`` is the number
    of training examples. ``delta`` is by default the smaller of 1e-5 and 1 / examples^1.1. ``clip_norm`` is the L2 norm
    (``max_grad_norm``), which the report states. With ``optimizer``, the one that Opacus returned, its noise multiplier
    and expected batch size are compared with the history, and its ``max_grad_norm`` is the clip norm. The report is
    written beside the model, or to ``output``.

    privctl computes epsilon itself, from ``engine.accountant.history``. It did not see the training, so every
    assumption of the guarantee is marked as asserted.

    Raises InputError for an engine without such a history, for an optimizer that does not match it, for adaptive
    clipping, and for a model that is not in safetensors format; CommandError for numbers out of range and for an
    existing report.
    """
    _require_fixed_norm(engine, optimizer)
    events = tuple(_events(_history(engine)))
    ledger = Ledger(events=events)
    _check_examples(examples, getattr(engine, "dataset", None))
    if optimizer is not None:
        clip_norm = _checked_clip_norm(optimizer, events[-1], examples, clip_norm)
    if clip_norm is not None:
        try:
            positive("clip_norm", clip_norm)
        except (TypeError, ValueError) as error:
            raise CommandError(str(error)) from None
    delta = default_delta(examples) if delta is None else delta
    place = report_place(Path(model), None if output is None else Path(output), force)
    source = "Opacus, secure mode" if getattr(engine, "secure_mode", False) else "Opacus, PyTorch's generator"
    noise = Assumption(name="secret noise", statement=f"nobody can foretell the noise: {source}", state=ASSERTED)
    guarantee = guarantee_for(
        ledger, delta, _NAME, [*premises(examples, _HISTORY, users=Users(records=examples)), noise], _NOTE, None
    )
    return write(
        Path(model),
        place,
        program=_NAME,
        parameters={
            "examples": examples,
            "delta": delta,
            "clip_norm": clip_norm,
            "accountant_history": [[event.noise_multiplier, event.sample_rate, event.steps] for event in events],
            "steps_begun": sum(event.steps for event in events),
            "noise_source": source,
        },
        mechanism=ledger,
        guarantees=(guarantee,),
        warnings=(
            f"{counted(len(events), 'entry', 'entries')} of Opacus's history, taken at its word",
            *_doubtful(events, examples),
            *usual_warnings(delta, examples),
        ),
    )


def _require_fixed_norm(engine: Any, optimizer: Any) -> None:
    """Raise InputError for adaptive clipping, where the clip norm depends on counts of unclipped gradients.

    Opacus does not center these counts and divides them by the exact batch sizes. A record changes such a count by 1,
    but the history accounts for 1/2, and the batch sizes get no noise.
    """
    adaptive = type(engine).__name__ == _ADAPTIVE_ENGINE or any(hasattr(optimizer, name) for name in _OF_ADAPTIVE)
    if adaptive:
        raise InputError(
            "the clip norm of this training followed counts of unclipped gradients, which cost more than Opacus's "
            "history holds; train with a fixed max_grad_norm, or with privctl.make_private's target_unclipped_quantile"
        )


def _checked_clip_norm(optimizer: Any, last: SampledGaussian, examples: int, clip_norm: float | None) -> float | None:
    """The clip norm of ``optimizer``, or else the given one.

    Raises InputError where the noise or batch size of ``optimizer`` differs from the ``last`` entry of the history, and
    CommandError where ``clip_norm`` differs from its clip norm.
    """
    try:
        noise, expected = float(optimizer.noise_multiplier), float(optimizer.expected_batch_size)
        processes = int(getattr(optimizer, "world_size", 1))
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            "this optimizer does not say its noise_multiplier and expected_batch_size; give the one that Opacus's "
            "make_private returned"
        ) from None
    if noise != last.noise_multiplier:
        raise InputError(
            f"the optimizer's noise multiplier is {noise:g}, and the last entry of the history has "
            f"{last.noise_multiplier:g}; entries are (noise multiplier, sampling rate, steps)"
        )
    # Opacus rounds the expected batch size of each process down.
    if not -_ROUNDING <= last.sample_rate * examples / processes - expected < 1 + _ROUNDING:
        raise InputError(
            f"the optimizer expects batches of {expected:g}, and a sampling rate of {last.sample_rate:g} gives "
            f"{last.sample_rate * examples / processes:g} of {examples} examples; entries are (noise multiplier, "
            "sampling rate, steps)"
        )
    own_norm = getattr(optimizer, "max_grad_norm", None)
    if clip_norm is not None and isinstance(own_norm, int | float) and own_norm != clip_norm:
        raise CommandError(
            f"clip_norm is {clip_norm:g}, and the optimizer's max_grad_norm {own_norm:g}; remove clip_norm"
        )
    return float(own_norm) if isinstance(own_norm, int | float) else clip_norm


def _doubtful(events: Sequence[SampledGaussian], examples: int) -> Iterator[str]:
    """Warnings of unlikely entries, such as those with two numbers swapped."""
    for number, event in enumerate(events, start=1):
        if event.noise_multiplier < event.sample_rate:
            yield (
                f"entry {number} of the history has a noise multiplier of {event.noise_multiplier:g}, below its "
                f"sampling rate of {event.sample_rate:g}: see that the two were not swapped, as nothing else shows it"
            )
        elif event.sample_rate * examples < 1:
            yield (
                f"entry {number} of the history draws {event.sample_rate * examples:.2g} examples a step on average: "
                "see that its sampling rate and the number of examples are right"
            )


def _check_examples(examples: Any, dataset: Any) -> None:
    """Raise CommandError where ``examples`` is no positive integer, or not the size of the engine's ``dataset``."""
    if type(examples) is not int or examples < 1:
        raise CommandError(f"examples is {examples!r}; it must be the number of training examples")
    if isinstance(dataset, Sized) and len(dataset) != examples:
        raise CommandError(
            f"examples is {examples}, and the engine's data set has {len(dataset)}; give the number it trained on"
        )


def _history(engine: Any) -> Any:
    """The history of an engine or accountant; a list is the history itself. None where there is none."""
    if isinstance(engine, list | tuple):
        return engine
    return getattr(getattr(engine, "accountant", engine), "history", None)


def _events(history: Any) -> Iterable[SampledGaussian]:
    if not isinstance(history, list | tuple):
        raise InputError(
            "this engine has no accountant.history; give an opacus.PrivacyEngine whose optimizer took its steps, or a "
            "list of (noise multiplier, sampling rate, steps)"
        )
    if not history:
        raise InputError("the accountant's history is empty; give the engine after the training, or the history itself")
    for number, entry in enumerate(history, start=1):
        try:
            noise, rate, steps = entry
            if any(isinstance(number, bool | str | bytes) for number in entry) or float(steps) % 1:
                raise ValueError("three numbers are needed, and a whole one of steps")
            if float(rate) > 1:
                raise ValueError(f"a sampling rate is at most 1, and the second number is {float(rate):g}")
            yield SampledGaussian(
                noise_multiplier=float(noise), sample_rate=float(rate), steps=int(steps), batches=Batches.POISSON
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"entry {number} of the accountant's history is {entry!r}, not a noise multiplier, a sampling rate and "
                f"a number of steps from which a guarantee follows ({error})"
            ) from None
