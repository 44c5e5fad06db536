"""The cost of layers in multiply-adds, and a hardware model for what low precision would save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transformers.pytorch_utils import Conv1D

from privctl.models.tasks.base import evaluation_mode
from privctl.train.settings.choices import FormatName

if TYPE_CHECKING:
    from torch import Tensor, nn

#: The speedup of a product over full precision on hardware that supports the format, by DPQuant's cost model (4 for
#: FP4) and vendors' peak numbers; nothing was measured.
SPEEDS: Mapping[FormatName, float] = MappingProxyType(
    {
        FormatName.LUQ_FP4: 4.0,
        FormatName.INT4: 4.0,
        FormatName.UNIFORM4: 4.0,
        FormatName.FP8: 2.0,
        FormatName.FP8_STOCHASTIC: 2.0,
    }
)


def multiply_adds(network: nn.Module, names: Sequence[str], run: Callable[[], Any]) -> tuple[float, ...]:
    """The multiply-adds of each layer in ``names`` while ``run`` passes an input through ``network``.

    The gradients of weight and input take as many again each. A layer that was not called has 0.
    """
    counts = dict.fromkeys(names, 0.0)
    with ExitStack() as stack:
        for name in names:
            module = network.get_submodule(name)

            def count(layer: nn.Module, arguments: Any, output: Tensor, name: str = name) -> None:
                counts[name] += output.numel() * _terms(layer)

            stack.callback(module.register_forward_hook(count).remove)
        stack.enter_context(evaluation_mode(network))
        run()
    return tuple(counts.values())


def speedup(share: float, name: FormatName) -> float:
    """The speedup of all products by Amdahl's law if the fraction ``share`` of them is in this format."""
    return 1 / (1 - share + share / SPEEDS[name])


def _terms(layer: Any) -> int:
    """The number of products that are summed for one entry of the output."""
    weight: Tensor = layer.weight
    return weight.shape[0] if isinstance(layer, Conv1D) else weight[0].numel()
