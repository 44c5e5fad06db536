"""Images from the weights of a classifier alone: class inversion, and the conditions of a stationary point.

No record is read. So where both sides were split by chance, what comes out depends on the split only through the
weights, and ``side_p_value`` is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

#: Slope of the sigmoid that stands for the derivative of a ReLU, which is 0 or 1 and so gives images no gradient.
_SLOPE = 150.0


@dataclass(frozen=True, slots=True)
class Target:
    """A classifier of ``classes`` for images of ``shape`` (channels, height, width) with values in [-1, 1].

    ``parameters`` are those whose conditions are used: all with this text in their names.
    """

    network: nn.Module
    shape: tuple[int, int, int]
    classes: int = 2
    parameters: str = ""

    def used(self) -> dict[str, Tensor]:
        """The parameters by name, detached."""
        return {name: p.detach() for name, p in self.network.named_parameters() if self.parameters in name}


class _SmoothReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(_SLOPE * x)


class _SmoothModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """ReLU, with a smooth derivative."""
        return _SmoothReLU.apply(x)


def smoothed(network: nn.Module) -> nn.Module:
    """``network``, changed in place: the same outputs, and ReLUs with a smooth derivative."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, _SmoothModule())
    return network


def margins(answer: Any, classes: Tensor) -> Tensor:
    """Each image's logit of its class above the largest other one, (n,)."""
    logits = answer if isinstance(answer, Tensor) else answer.logits
    own = logits.gather(1, classes[:, None])[:, 0]
    return own - logits.scatter(1, classes[:, None], -torch.inf).amax(1)


def by_class(target: Target, count: int, seed: int, *, steps: int = 100) -> Tensor:
    """``count`` images [count, *shape] that each raise the probability of a class (Fredrikson et al. 2015).

    Gradient ascent from noise, with priors on the range and on the differences of neighbours.
    """
    images, classes = _start(target, count, seed)
    optimizer = torch.optim.Adam([images], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        answer = target.network(images)
        logits = answer if isinstance(answer, Tensor) else answer.logits
        rough = images.diff(dim=2).square().sum() + images.diff(dim=3).square().sum()
        loss = functional.cross_entropy(logits, classes, reduction="sum")
        (loss + 1e-3 * rough + _beyond(images).sum()).backward()
        optimizer.step()
    return images.detach()


def by_conditions(target: Target, count: int, seed: int, *, steps: int) -> tuple[Tensor, float]:
    """``count`` images [count, *shape] whose gradients of the margin, with positive factors, sum to the weights.

    Training records do so at the stationary points to which homogeneous networks tend (Haim et al. 2022; of several
    classes Buzaglo et al. 2023), and wherever training with weight decay has come to rest. Beside them the squared
    distance that is left, as a share of the weights' squared norm.
    """
    smoothed(target.network)
    images, classes = _start(target, count, seed)
    weights = {name: value.clone().requires_grad_() for name, value in target.used().items()}
    every = {name: p.detach() for name, p in target.network.named_parameters()} | weights
    norm = float(_square(weights.values()).detach())
    logs = torch.zeros(count, requires_grad=True)

    def sums(create: bool) -> list[Tensor]:
        total = (logs.exp() * margins(functional_call(target.network, every, (images,)), classes)).sum()
        found = torch.autograd.grad(total, list(weights.values()), create_graph=create, materialize_grads=True)
        return list(found)

    first = float(_square(sums(create=False)).detach())
    with torch.no_grad():  # about half as long a sum as the weights
        logs += 0.5 * float(np.log(norm / max(first, 1e-12))) - 0.7
    optimizer = torch.optim.Adam([{"params": [images], "lr": 0.02}, {"params": [logs], "lr": 0.03}])
    left = 1.0
    for _ in range(steps):
        optimizer.zero_grad()
        distance = _square(w.detach() - g for w, g in zip(weights.values(), sums(create=True), strict=True)) / norm
        (distance + _beyond(images).sum() / count).backward()
        optimizer.step()
        left = float(distance.detach())
    return images.detach(), left


def residual(target: Target, images: Tensor, classes: Tensor) -> float:
    """How far the weights are from the nearest nonnegative sum of the gradients of these images' margins.

    As a share of the weights' squared norm: 0 where the conditions hold, 1 where the gradients explain nothing.
    """
    from scipy.optimize import nnls

    weights = {name: value.clone().requires_grad_() for name, value in target.used().items()}
    every = {name: p.detach() for name, p in target.network.named_parameters()} | weights
    columns = []
    for image, name in zip(images, classes, strict=True):
        margin = margins(functional_call(target.network, every, (image[None],)), name[None]).sum()
        parts = torch.autograd.grad(margin, list(weights.values()), materialize_grads=True)
        columns.append(torch.cat([part.flatten() for part in parts]))
    vector = torch.cat([value.detach().flatten() for value in weights.values()]).double().numpy()
    _, left = nnls(torch.stack(columns, 1).double().numpy(), vector)
    return float(left**2 / (vector @ vector))


def nearest(reconstructions: Tensor, records: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Each record's largest correlation with a reconstruction, over all pixels and channels: [records]."""
    found = (_standard(records) @ _standard(reconstructions).T).amax(1)
    return found.double().numpy()


def side_p_value(train: Sequence[float], heldout: Sequence[float]) -> float:
    """P-value of training records being nearer to reconstructions than held-out ones, by all splits of their ranks.

    The exact test of Mann and Whitney: each record counts once, by its own nearest reconstruction.
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(train, heldout, alternative="greater", method="exact").pvalue)


def _start(target: Target, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = (0.1 * torch.randn(count, *target.shape, generator=generator)).requires_grad_()
    return images, torch.arange(count) % target.classes


def _beyond(images: Tensor) -> Tensor:
    return (images.abs() - 1).relu().square()


def _square(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum()


def _standard(images: Tensor) -> Tensor:
    flat = images.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-9)
