"""What layers cost, and what few bits would save: counts of multiply-adds, and a model of hardware."""

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

#: How many times as fast as full precision a product is on hardware that has the format, by DPQuant's cost model (4 for
#: FP4) and vendors' peak numbers. No machine was measured.
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
    """Those of each layer's product, by its name, while ``run`` passes something through ``network``.

    The weight's and the input's gradient take as many again each. A layer that was not called has 0.
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


def faster(share: float, name: FormatName) -> float:
    """Amdahl's law: how many times as fast all products are together where ``share`` of them is in this format."""
    return 1 / (1 - share + share / SPEEDS[name])


def _terms(layer: Any) -> int:
    """Products that are added up for one number of the output."""
    weight: Tensor = layer.weight
    return weight.shape[0] if isinstance(layer, Conv1D) else weight[0].numel()
