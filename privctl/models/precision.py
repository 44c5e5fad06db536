"""The number format of forward passes, which --precision selects."""

from __future__ import annotations

from typing import Any

import torch

from privctl.domain.errors import CommandError
from privctl.models.choices import FloatFormat


def precision_named(name: str | None) -> FloatFormat | None:
    """The precision ``name``; None for None. Raises CommandError for an unknown name."""
    try:
        return None if name is None else FloatFormat(name)
    except ValueError:
        raise CommandError(f"--precision is {name!r}; it must be {' or '.join(FloatFormat)}") from None


def precision_of(network: Any) -> FloatFormat | None:
    """The precision of the weights of ``network``; None if they are in another format."""
    name = str(network.dtype).removeprefix("torch.")
    return FloatFormat(name) if name in set(FloatFormat) else None


def convert(network: Any, precision: FloatFormat) -> None:
    """Round the weights and saved buffers of ``network`` in place, so that its layers compute in that format.

    As when transformers loads a network in that format, buffers that are computed at construction, such as rotary
    frequencies, do not change, nor do modules that the class keeps in float32.
    """
    dtype = getattr(torch, precision)
    stored = set(network.state_dict(keep_vars=True))
    in_float32 = tuple(getattr(network, "_keep_in_fp32_modules_strict", None) or ())
    for named in (network.named_parameters(), network.named_buffers()):
        for name, tensor in named:
            kept = any(part in name.split(".") for part in in_float32)
            if name in stored and tensor.is_floating_point() and not kept:
                tensor.data = tensor.data.to(dtype)


def why_slow(precision: FloatFormat | None, device: torch.device) -> str:
    """Why passes in ``precision`` may be slower than in float32 on ``device``; empty if there is no reason."""
    if precision is not FloatFormat.BFLOAT16 or device.type != "cpu" or _multiplies_bfloat16():
        return ""
    return (
        "this processor has no instructions for bfloat16 (such as AVX512_BF16 or AMX), so --precision bfloat16 may "
        "take longer than float32"
    )


def _multiplies_bfloat16() -> bool:
    """Whether PyTorch reports bfloat16 instructions on this processor."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(has is True for name, has in capabilities.items() if "bf16" in name)
