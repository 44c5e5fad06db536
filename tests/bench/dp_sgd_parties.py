"""Whole private training steps by privctl and by other people's engines, all of the same shape.

Each party makes a step: forward, backward, clipping, noise, division by the batch size, and torch's fused AdamW.
Afterwards ``grad`` holds the noisy clipped sum by the batch size.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

OURS, BASE, PARTLY = "privctl", "non-private", "privctl, gradients only"
#: By ``privctl.make_private``, with a batch drawn and collated in each step.
OWN_LOOP = "privctl, your own loop"
#: Where llvmlite is not installed, numpy draws the noise.
WITHOUT_CODE = "privctl without llvmlite"
#: For models whose activations are written out in Python: without privacy, by the kernels that privctl runs them by.
FUSED = "non-private, fused activations"

#: What holds to the end of a party's process.
_of_this_process = contextlib.ExitStack()

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step works on; ``losses_of`` calls what it is given in place of ``model`` and gives (n,)."""

    model: nn.Module
    losses_of: Callable[[Any], Tensor]
    count: int
    clip: float
    noise: float
    device: torch.device
    origin: tuple[str, ...]

    def optimizer(self) -> torch.optim.Optimizer:
        """Fused AdamW that has its moments already, as after a first step."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer


def non_private(work: Work) -> Step:
    """Torch alone."""
    optimizer = work.optimizer()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        work.losses_of(work.model).mean().backward()
        optimizer.step()

    return step


def fused(work: Work) -> Step:
    """Torch alone, with activations as privctl's training loop runs them."""
    _fuse(work.model)
    return non_private(work)


def ours(work: Work, *, only_gradients: bool = False, machine_code: bool = True) -> Step:
    """What a step of privctl's training loop does, once it has drawn enough noise to compile machine code for it."""
    from privctl.randomness import WORTH_COMPILING
    from privctl.train.clipping import Clipping, PerExample
    from privctl.train.steps.gradient_noise import noise_for

    _fuse(work.model)
    optimizer, noise = work.optimizer(), noise_for(work.device)
    engine = PerExample(work.model, Clipping(norm=work.clip), each_pass=True, trusted=True)
    steps = iter(range(1 << 30))
    if not machine_code:
        sys.modules["llvmlite"] = None  # type: ignore[assignment] # as if it were not installed
    if work.device.type == "cpu":
        unused = torch.zeros(1 << 20)
        for _ in range(-(-WORTH_COMPILING // len(unused))):
            noise.release([unused], 1.0, next(steps))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        engine.accumulate(lambda: work.losses_of(work.model), weight=1 / work.count)
        if not only_gradients:
            gradients = [p.grad for p in work.model.parameters() if p.grad is not None]
            if work.noise:
                noise.release(gradients, work.noise * work.clip / work.count, next(steps))
            optimizer.step()

    return step


def own_loop(work: Work) -> Step:
    """The steps of a loop of the user's own, in which every record is in every batch."""
    import privctl
    from privctl.randomness import WORTH_COMPILING

    # The loss reads the batch of ``work``: the loader draws positions in it.
    loader = DataLoader(range(work.count), batch_size=work.count)
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-5, fused=True)
    private = privctl.make_private(
        work.model, optimizer, loader, noise_multiplier=work.noise, clip_norm=work.clip, delta=1e-6
    )

    def step() -> None:
        for _ in private.loader:
            private.backward(lambda: work.losses_of(work.model))
            optimizer.step()

    if work.device.type == "cpu":
        for _ in range(-(-WORTH_COMPILING // sum(p.numel() for p in work.model.parameters()))):
            step()
    return step


def _fuse(model: nn.Module) -> None:
    from privctl.models.activations import fused_activations

    _of_this_process.enter_context(fused_activations(model))


def opacus(work: Work, mode: str) -> Step:
    """Opacus with ``grad_sample_mode`` hooks, functorch or ew."""
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import DPOptimizer

    inner = work.optimizer()
    wrapped = wrap_model(work.model, grad_sample_mode=mode, **({} if mode == "ew" else {"strict": False}))
    optimizer = DPOptimizer(inner, noise_multiplier=work.noise, max_grad_norm=work.clip, expected_batch_size=work.count)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        work.losses_of(wrapped).mean().backward()
        optimizer.step()

    return step


def opacus_ghost(work: Work) -> Step:
    """Opacus' fast gradient clipping."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    inner = work.optimizer()
    wrapped = GradSampleModuleFastGradientClipping(work.model, max_grad_norm=work.clip, strict=False)
    optimizer = DPOptimizerFastGradientClipping(
        inner, noise_multiplier=work.noise, max_grad_norm=work.clip, expected_batch_size=work.count
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        DPTensorFastGradientClipping(wrapped, optimizer, work.losses_of(wrapped)).backward()
        optimizer.step()

    return step


def fastdp(work: Work, *, origin: bool) -> Step:
    """FastDP's book-keeping, mixed; it reports nothing but on the standard output."""
    import fastDP
    from fastDP import transformers_support

    # It replaces forward passes by those of old transformers, for the sake of position ids, which are given here.
    transformers_support.forward_swapper = lambda module: None
    optimizer = work.optimizer()
    with contextlib.redirect_stdout(io.StringIO()):
        engine = fastDP.PrivacyEngine(
            work.model, batch_size=work.count, sample_size=1000 * work.count, epochs=1, max_grad_norm=work.clip,
            noise_multiplier=work.noise, clipping_mode="MixOpt", clipping_fn="Abadi", loss_reduction="mean",
            origin_params=list(work.origin) if origin else None,
        )  # fmt: skip
        engine.attach(optimizer)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        work.losses_of(work.model).mean().backward()
        with contextlib.redirect_stdout(io.StringIO()):
            optimizer.step()

    return step


PARTIES: dict[str, Callable[[Work], Step]] = {
    BASE: non_private,
    FUSED: fused,
    OURS: ours,
    WITHOUT_CODE: lambda work: ours(work, machine_code=False),
    OWN_LOOP: own_loop,
    PARTLY: lambda work: ours(work, only_gradients=True),
    "opacus hooks": lambda work: opacus(work, "hooks"),
    "opacus functorch": lambda work: opacus(work, "functorch"),
    "opacus ew": lambda work: opacus(work, "ew"),
    "opacus ghost": opacus_ghost,
    "fastdp": lambda work: fastdp(work, origin=False),
    "fastdp origin_params": lambda work: fastdp(work, origin=True),
}


def present() -> list[str]:
    """The parties whose package can be imported."""
    missing = {name for name in ("opacus", "fastDP") if find_spec(name) is None}
    without_code = find_spec("llvmlite") is None
    return [
        name
        for name in PARTIES
        if not any(name.startswith(each.lower()) for each in missing) and not (name == WITHOUT_CODE and without_code)
    ]
