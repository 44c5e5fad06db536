"""``privctl.make_private``: private steps in the user's own training loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence, Sized
from functools import partial, wraps
from typing import Any, ParamSpec

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.deltas import default_delta, delta_warning
from privctl.accounting.gridded import Released, exact_target
from privctl.domain.checks import fraction, positive
from privctl.domain.errors import CommandError
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.integrations.own_model import is_compiled
from privctl.integrations.private_loader import steps_per_pass
from privctl.integrations.private_training import PrivateTraining
from privctl.integrations.shared_records import require_own_items
from privctl.integrations.users import Users, require_each_once, users_of
from privctl.randomness import NoiseSource
from privctl.train.settings.adaptive_clipping import (
    LEARNING_RATE,
    AdaptiveClipping,
    default_count_stddev,
    sum_noise_multiplier,
)
from privctl.train.settings.choices import ClippingStyle
from privctl.train.steps.sampling import PoissonBatches

_Given = ParamSpec("_Given")
#: Name of an argument in Opacus -> name of the argument here.
_OF_OPACUS = {
    "module": "model",
    "data_loader": "loader",
    "max_grad_norm": "clip_norm",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
}
#: Optimizers that cannot make a private step, and why.
_UNFIT = (
    (
        torch.optim.LBFGS,
        "computes several gradients in a step, and a private step has one with noise",
    ),
    (torch.optim.SparseAdam, "takes sparse gradients only, and those with noise are dense"),
)


def _refusing_names_of_opacus(function: Callable[_Given, PrivateTraining]) -> Callable[_Given, PrivateTraining]:
    """A decorator: Opacus's names of arguments raise a CommandError that gives privctl's names."""

    @wraps(function)
    def call(*arguments: _Given.args, **options: _Given.kwargs) -> PrivateTraining:
        foreign = [name for name in _OF_OPACUS if name in options]
        if foreign:
            replacements = ", ".join(f"{name} as {_OF_OPACUS[name]}" for name in foreign)
            raise CommandError(f"make_private has other names than Opacus for its arguments; give {replacements}")
        return function(*arguments, **options)

    return call


@_refusing_names_of_opacus
def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    noise_multiplier: float | None = None,
    clip_norm: float = 1.0,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: float | None = None,
    clipping: str = "flat",
    target_unclipped_quantile: float | None = None,
    clip_norm_learning_rate: float = LEARNING_RATE,
    unclipped_count_stddev: float | None = None,
    users: Sequence[Any] | None = None,
    unit: str = "user",
    records_per_draw: int = 1,
) -> PrivateTraining:
    """Make the steps of ``optimizer`` on ``model`` differentially private (DP-SGD, Abadi et al. 2016).

    ``loader`` has the data set and the batch size. ``clip_norm`` is the L2 norm that each example's gradient is clipped
    to, and ``noise_multiplier`` the noise standard deviation / clip norm. Or give ``epsilon`` and ``epochs``: the noise
    is then such that (``epsilon``, ``delta``) holds after that many epochs, and further steps are refused. ``delta`` is
    by default the smaller of 1e-5 and 1 / examples^1.1; a warning is given for one not well below 1 / examples.
    ``clipping`` is ``flat``, ``automatic`` or ``per-layer``.

    With ``target_unclipped_quantile`` clipping is adaptive (flat only): ``clip_norm`` is that of the first step, and
    changes until this share of gradients is not clipped. Each step then also releases the number of unclipped gradients
    with noise of standard deviation ``unclipped_count_stddev`` (by default a twentieth of the batch size, at least
    twice the noise multiplier). ``noise_multiplier`` and ``epsilon`` account for both releases. The result's
    ``clip_norms`` are the norms so far.

    With ``users``, the name of each record's user in the order of the data set, users are protected with all of their
    records. Steps draw users instead of records: ``batch_size`` is the expected number of users in a batch, an epoch
    draws each user once in expectation, and ``delta`` and the report count users. A step uses ``records_per_draw``
    random records of each drawn user, some of them repeatedly if the user has fewer, and clips their mean gradient.
    ``unit`` is the name of a user in the report, such as the name of the field.

    Iterate over the result's ``loader``, whose batches are Poisson samples with the batch size of ``loader`` as their
    expected size. If no example was drawn, the batch is one example whose gradient is not added, so that every step has
    its batch. For each batch call ``backward`` with a function that returns the losses (n,) of its n rows, then
    ``optimizer.step()``. Divide batches that are too large by ``pieces``. Save the model, then call ``report``. See
    ``PrivateTraining``.

    Raises CommandError for settings that do not go together, InputError for a model that mixes examples or whose
    gradients cannot be computed for each example.
    """
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise CommandError(
            "make_private serves one process; run your loop in one, with pieces(ROWS) for a batch that is too large to "
            "compute at once, or train a Hugging Face model with `privctl retrain dp-sgd` under torchrun"
        )
    _require_kinds(model, optimizer, loader)
    user_records = users_of(users, _records(loader), unit, records_per_draw)
    if users is None:
        require_each_once(loader.dataset)
    require_own_items(loader.dataset, users)
    examples, size = user_records.count, _size(loader, user_records)
    most_steps: int | None = None
    rate = size / examples
    _require_numbers(
        noise_multiplier=noise_multiplier, clip_norm=clip_norm, epsilon=epsilon, delta=delta, epochs=epochs
    )
    delta = default_delta(examples) if delta is None else delta
    try:
        positive("clip_norm", clip_norm)
        fraction("delta", delta)
        style = ClippingStyle(clipping)
        if noise_multiplier is None:
            trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            numbers = trained + (target_unclipped_quantile is not None)
            noise_multiplier, most_steps = _noise_for(epsilon, epochs, delta, rate, numbers)
        elif epsilon is not None or epochs is not None:
            raise CommandError("noise_multiplier sets the noise, and so do epsilon and epochs; give one or the other")
        positive("noise_multiplier", noise_multiplier)
        adaptive = None
        if target_unclipped_quantile is not None:
            adaptive = AdaptiveClipping(
                quantile=target_unclipped_quantile,
                learning_rate=clip_norm_learning_rate,
                count_stddev=default_count_stddev(noise_multiplier, size)
                if unclipped_count_stddev is None
                else unclipped_count_stddev,
            )
            sum_noise_multiplier(noise_multiplier, adaptive.count_stddev)
            if style is not ClippingStyle.FLAT:
                raise CommandError(f"an adaptive clip norm needs flat clipping, and clipping is {style}; change one")
        elif unclipped_count_stddev is not None:
            raise CommandError("unclipped_count_stddev is a setting of target_unclipped_quantile; give that too")
    except ValueError as error:
        raise CommandError(str(error)) from None
    if sentence := delta_warning(delta, examples):
        warnings.warn(sentence, stacklevel=3)  # the caller's line, behind the decorator
    return PrivateTraining(
        model=model,
        optimizer=optimizer,
        dataset=loader.dataset,
        collate=loader.collate_fn or default_collate,
        users=user_records,
        batches=PoissonBatches(examples, rate, NoiseSource()),
        batch_size=size,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        clipping=style,
        delta=delta,
        most_steps=most_steps,
        adaptive=adaptive,
    )


def _require_kinds(model: object, optimizer: object, loader: object) -> None:
    """Raise CommandError for an argument of a wrong type, and for an optimizer that accelerate prepared."""
    what = "make_private takes a model, its optimizer and a DataLoader, in this order"
    kinds = (
        ("model", model, nn.Module),
        ("optimizer", optimizer, torch.optim.Optimizer),
        ("loader", loader, DataLoader),
    )
    for name, given, kind in kinds:
        if not isinstance(given, kind):
            raise CommandError(f"{name} is of type {type(given).__name__}; {what}")
    if isinstance(model, nn.Module) and is_compiled(model):
        raise CommandError(
            "torch.compile made the model, and each example's gradient is taken at its layers as they run; give the "
            "model from before that, and call it in the loop"
        )
    if isinstance(model, nn.Module) and any(_is_spread(module) for module in model.modules()):
        raise CommandError(
            "DataParallel computes the model's rows on several devices, by copies whose gradients cannot be clipped "
            "here; give the model inside it, and compute large batches by pieces(ROWS)"
        )
    for unfit, why in _UNFIT:
        if isinstance(optimizer, unfit):
            raise CommandError(f"{unfit.__name__} {why}; give another optimizer, such as SGD or Adam")
    if hasattr(optimizer, "accelerator_state"):
        raise CommandError("accelerate prepared the optimizer; give the model, optimizer and loader from before that")


def _is_spread(module: nn.Module) -> bool:
    return isinstance(module, nn.DataParallel) and len(module.device_ids) > 1


def _require_numbers(**given: object) -> None:
    """Raise CommandError for an argument that is neither a number nor None."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CommandError(f"{name} is {value!r}; it must be a number")


def _records(loader: DataLoader[Any]) -> int:
    """The number of records. Raises CommandError where the data set has no length or no positions."""
    dataset = loader.dataset
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise CommandError(
            "the loader's data set cannot be counted and read by position, as Poisson batches need; give one with "
            "__len__ and __getitem__"
        )
    return len(dataset)


def _size(loader: DataLoader[Any], users: Users) -> int:
    """The expected number of examples in a batch.

    Raises CommandError for a loader without a batch size, with one above the number of examples, or with a sampler.
    """
    if loader.batch_size is None:
        raise CommandError(
            "the loader has no batch_size, the expected size of a batch; give a DataLoader that has one, not one that "
            "accelerate or a Trainer prepared"
        )
    examples = users.count
    if not 1 <= loader.batch_size <= examples:
        what = "examples" if users.unit is None else f"values of {users.unit!r}, which batches are drawn from"
        raise CommandError(f"batch_size is {loader.batch_size} and there are {examples} {what}; give 1 to {examples}")
    sampler = loader.sampler
    shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == users.records
    if type(sampler) is not SequentialSampler and not shuffled:
        raise CommandError(
            f"the loader has a {type(sampler).__name__}, which Poisson batches cannot follow: they are drawn from the "
            "whole data set; give a loader of exactly the examples to train on, without a sampler"
        )
    return loader.batch_size


def _noise_for(
    epsilon: float | None, epochs: float | None, delta: float, rate: float, trained: int
) -> tuple[float, int]:
    """The noise multiplier for ``epsilon`` at ``delta`` after ``epochs`` epochs, and the number of their steps.

    ``rate`` is the sampling rate, and ``trained`` the number of values that each step releases.
    """
    if epsilon is None:
        raise CommandError("give either noise_multiplier, or epsilon with epochs")
    if epochs is None:
        raise CommandError("epsilon needs epochs, the passes over the data that it is for")
    positive("epochs", epochs)
    positive("epsilon", epsilon)
    steps = max(1, math.ceil(round(epochs * steps_per_pass(rate), 6)))
    left, target_delta = exact_target(Released(coordinates=steps * trained), epsilon, delta)
    return noise_multiplier_for(left, target_delta, partial(_ledger, rate=rate, steps=steps)), steps


def _ledger(noise: float, *, rate: float, steps: int) -> Ledger:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=Batches.POISSON)
    return Ledger(events=(event,))
