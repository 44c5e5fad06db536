"""Calls image classifiers, and reads the names of their classes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


def check_reads_pixels(path: Path, network: nn.Module) -> None:
    """Raise InputError for a network at ``path`` whose input is anything but the pixels of one image.

    ImageGPT reads colour indices, ShieldGemma a text beside the image, SigLIP 2 patches of images of different shapes.
    """
    taken = inspect.signature(network.forward).parameters
    kind = getattr(getattr(network, "config", None), "model_type", "image")
    if "input_ids" in taken:
        reads = "tokens" if "pixel_values" not in taken else "a text beside the image"
    elif "spatial_shapes" in taken:
        reads = "patches of images of different shapes"
    else:
        return
    raise InputError(
        f"{path} ({kind}) reads {reads}; image classification is supported for models that read the "
        "pixels of one image, such as vit, convnext or siglip: give one of those"
    )


def image_logits(network: Any, pixels: Tensor) -> Tensor:
    """The logits [n, classes] for ``pixels`` [n, channels, height, width]."""
    return logits_in(network(pixel_values=pixels))


def logits_in(answer: Any) -> Tensor:
    """The logits in the output of a network; PP-LCNet returns its head's output as the last hidden state.

    For question answering they are [rows, tokens, 2]: the logits of an answer's start and end.
    """
    if hasattr(answer, "start_logits"):
        from torch import stack

        return stack([answer.start_logits, answer.end_logits], -1)
    logits: Tensor = answer.logits if hasattr(answer, "logits") else answer.last_hidden_state
    return logits


def class_names(config: Any) -> dict[int, str]:
    """The names of a classifier's outputs by number; transformers' default names if ``config`` has none."""
    if config.id2label is None:  # PVT's configuration
        return {i: f"LABEL_{i}" for i in range(config.num_labels)}
    return {int(i): str(name) for i, name in sorted(config.id2label.items(), key=lambda item: int(item[0]))}
