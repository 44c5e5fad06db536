"""Opacus on one of the zoo's tiny models: whether its clipped sum is that of gradients found one at a time.

Each mode has the call that suits it best. The loss is summed, as everything is batch-first. Parameters that no record
uses are frozen, because Opacus stops at them. Position and token type ids are given for each record where the network
takes them and it is not right without, because Opacus cannot use a row that all records share. Modules are in training
mode, without which Opacus records nothing; dropout and other draws are off, and layers of batch normalisation keep
their statistics.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from privctl.models.normalisation import freeze
from privctl.models.quiet import quiet_transformers
from privctl.train.contribution.network_state import fixed_seed, without_dropout
from tests.bench.common import forked
from tests.bench.coverage import FAILS, LESS, RIGHT, WRONG
from tests.zoo.gradients import CPU, Gradient, norms_of, relative_error
from tests.zoo.shrink import one_line

MODES = ("hooks", "functorch", "ghost")
TOLERANCE = 1e-3
_OTHER = "in training mode, or with what it was given besides, the network computes other losses"
#: Parts of errors that do not go away where a network is given more.
_WHATEVER_IS_GIVEN = ("TypeError", "AttributeError", "NotImplementedError", "not on the expected device meta")

#: Each record's loss (n,) by a network.
Losses = Callable[[nn.Module], Tensor]
#: One way of calling Opacus on a network, and how it ended.
Call = Callable[[nn.Module], dict[str, Any]]


def tried(
    network: nn.Module,
    losses_of: Losses,
    gradients: Sequence[Gradient],
    norms: Sequence[str],
    limits: Mapping[str, int],
) -> dict[str, Any]:
    """By mode, how it ended. ``gradients`` are each record's own; ``norms`` names layers of batch normalisation.

    All calls share a process, on copies of the network. Where that ends early, each call has a process of its own.
    """

    def best(mode: str, run: Callable[[Call, nn.Module], dict[str, Any]]) -> dict[str, Any]:
        return _best(partial(_called, mode, losses_of, gradients, norms), network, run, still=bool(norms))

    together = forked(lambda: {mode: best(mode, _on_a_copy) for mode in MODES}, **limits)
    if "fails" not in together:
        return together
    return {mode: best(mode, partial(_in_a_process, limits)) for mode in MODES}


def _on_a_copy(call: Call, network: nn.Module) -> dict[str, Any]:
    return call(copy.deepcopy(network))


def _in_a_process(limits: Mapping[str, int], call: Call, network: nn.Module) -> dict[str, Any]:
    return forked(partial(call, network), **limits)


def _best(
    called: Callable[..., dict[str, Any]],
    network: nn.Module,
    run: Callable[[Call, nn.Module], dict[str, Any]],
    *,
    still: bool,
) -> dict[str, Any]:
    """The first call that is right, or else the first that is wrong, or how the last one failed."""
    found: list[dict[str, Any]] = []
    for frozen in (False, True) if still else (False,):
        for input_names in _input_names(network):
            ended = {
                "outcome": FAILS,
                **run(partial(called, input_names=input_names, still=frozen), network),
                "given": list(input_names),
            }
            if "fails" in ended:
                ended["reason"] = ended.pop("fails")
            if ended["outcome"] in (RIGHT, LESS):
                return ended
            if ended.get("reason") != _OTHER:
                found.append(ended)
            if any(each in ended.get("reason", "") for each in _WHATEVER_IS_GIVEN):
                break
    wrong = (each for each in found if each["outcome"] == WRONG)
    return next(wrong, found[-1] if found else {"outcome": FAILS, "reason": _OTHER})


def _input_names(network: nn.Module) -> Iterator[tuple[str, ...]]:
    """What the network is given of each record besides: nothing, then more and more of what it takes."""
    taken = inspect.signature(network.forward).parameters
    names = [name for name in ("position_ids", "token_type_ids") if name in taken and "input_ids" in taken]
    for count in range(len(names) + 1):
        yield tuple(names[:count])


def _called(
    mode: str,
    losses_of: Losses,
    gradients: Sequence[Gradient],
    norms: Sequence[str],
    network: nn.Module,
    *,
    input_names: Sequence[str],
    still: bool,
) -> dict[str, Any]:
    """One call, which changes ``network``."""
    before = _plain(network, losses_of)
    _train(network, norms, losses_of, before)
    used = set().union(*gradients)
    if still:
        used -= {name for name, _ in network.named_parameters() if name.rpartition(".")[0] in norms}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in used)
    names = [name for name, _ in network.named_parameters() if name in used]
    lengths = norms_of(gradients, names)
    clip = float(lengths.median())
    with without_dropout(network), fixed_seed(CPU), quiet_transformers(), _giving(network, input_names):
        if not _alike(_plain(network, losses_of), before):
            return {"outcome": FAILS, "reason": _OTHER}
        refusals = _refusals(network)
        try:
            STEPS[mode](network, losses_of, clip, len(gradients))
        except Exception as error:
            return {"outcome": FAILS, "reason": one_line(error)}
    relative = relative_error(network, gradients, (clip / (lengths + 1e-6)).clamp(max=1.0), names)
    if relative <= TOLERANCE:
        return {"outcome": LESS if still else RIGHT, "difference": relative}
    if refusals:
        return {"outcome": FAILS, "difference": relative, "reason": f"refused unless strict is False: {refusals[0]}"}
    return {"outcome": WRONG, "difference": relative}


def _plain(network: nn.Module, losses_of: Losses) -> Tensor:
    with torch.no_grad(), without_dropout(network), fixed_seed(CPU), quiet_transformers():
        return losses_of(network)


def _alike(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-6))


def _train(network: nn.Module, norms: Sequence[str], losses_of: Losses, before: Tensor) -> None:
    """Training mode; where that changes what is computed, only of the modules that hold weights."""
    for module in network.modules():
        for holder in (module, getattr(module, "config", None)):
            if hasattr(holder, "apply_spec_augment") or hasattr(holder, "mask_time_prob"):
                holder.apply_spec_augment = False  # stretches of time that are left out, drawn for the whole batch
            for name in ("jitter_noise", "input_jitter_noise", "router_jitter_noise"):
                if hasattr(holder, name):
                    setattr(holder, name, 0.0)
    network.train()
    freeze(network, tuple(norms))
    if _alike(_plain(network, losses_of), before):
        return
    network.eval()
    for module in network.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.training = True
    freeze(network, tuple(norms))


@contextmanager
def _giving(network: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Inside, the network gets those of ``names`` that it is not given, a row for each record."""

    def add(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        rows, length = kwargs["input_ids"].shape
        extras = {"position_ids": torch.arange(length), "token_type_ids": torch.zeros(length, dtype=torch.long)}
        return args, {name: extras[name].repeat(rows, 1) for name in names} | kwargs

    handle = network.register_forward_pre_hook(add, with_kwargs=True) if names else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _refusals(network: nn.Module) -> list[str]:
    """What Opacus says by default of this network, in which it would then compute nothing."""
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator
    from opacus.validators.errors import IllegalModuleConfigurationError

    found = [*ModuleValidator.validate(network, strict=False), *GradSampleModule.validate(network, strict=False)]
    return [one_line(each) for each in found if not isinstance(each, IllegalModuleConfigurationError)]


def _kept(network: nn.Module, losses_of: Losses, clip: float, count: int, *, functorch: bool) -> None:
    """``grad`` by gradients of each record that are kept until they are clipped."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(network, strict=False, loss_reduction="sum", force_functorch=functorch)
    wrapped.forbid_grad_accumulation()  # as PrivacyEngine does by default
    optimizer = DPOptimizer(
        _inner(network), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=count, loss_reduction="sum"
    )
    losses_of(network).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.pre_step()


def _ghost(network: nn.Module, losses_of: Losses, clip: float, count: int) -> None:
    """``grad`` by norms that are found in a first backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(network, max_grad_norm=clip, strict=False, loss_reduction="sum")
    wrapped.forbid_grad_accumulation()
    optimizer = DPOptimizerFastGradientClipping(
        _inner(network), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=count, loss_reduction="sum"
    )
    DPTensorFastGradientClipping(wrapped, optimizer, losses_of(network), loss_reduction="sum").backward()
    optimizer.pre_step()


def _inner(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.0)


STEPS: dict[str, Callable[[nn.Module, Losses, float, int], None]] = {
    "hooks": partial(_kept, functorch=False),
    "functorch": partial(_kept, functorch=True),
    "ghost": _ghost,
}
