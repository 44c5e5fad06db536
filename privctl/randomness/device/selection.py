"""The choice of the engine for a device: Triton's if it works, else tensor operations; only after its self-test."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from privctl.domain.errors import PrivctlError
from privctl.randomness.device.engine import NoiseEngine
from privctl.randomness.device.selftest import require_sound
from privctl.randomness.device.tensor_engine import TensorEngine

if TYPE_CHECKING:
    import torch


@functools.cache
def engine_for(device: torch.device) -> NoiseEngine:
    """The fastest engine on ``device``, after its self-test there (``selftest``).

    Raises PrivctlError if the test fails, or if the device lacks an operation, such as double precision.
    """
    if (engine := _triton(device)) is not None:
        return engine
    try:
        require_sound(engine := TensorEngine(), device)
    except (RuntimeError, TypeError) as fault:
        raise PrivctlError(f"{device} cannot draw noise: {str(fault).splitlines()[0]}; give --device cpu") from fault
    return engine


def _triton(device: torch.device) -> NoiseEngine | None:
    """Triton's engine, if Triton is installed and can compile for ``device``."""
    if device.type != "cuda":
        return None
    try:
        from privctl.randomness.device.triton_engine import TritonEngine

        engine = TritonEngine()
        require_sound(engine, device)
    except PrivctlError:
        raise  # it runs, but gives wrong noise
    except Exception:
        # Without a C compiler, or on an unsupported GPU, Triton fails with exceptions of many kinds.
        return None
    return engine
