"""Scaling of pixels for a model, and the file that describes it (``preprocessor_config.json``)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from privctl.domain.errors import InputError
from privctl.storage.atomic import write_bytes
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE_NAME = "preprocessor_config.json"
#: Means and deviations that are no statistics of any data.
_CONSTANT = ((0.5, 0.5), (0.0, 1.0))
#: Those of ImageNet and of CLIP's training, as transformers has them.
_PUBLISHED = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
)
#: Numbers in [0, 1] that agree to the third decimal differ by less.
_CLOSE = 6e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The input format of an image model: ``size`` (height, width), None for any, and the scaling of 8-bit pixels.

    A byte b becomes (b * ``factor`` - mean) / std, with a mean and a standard deviation per channel. They come from the
    model or are constants; computed from private images they would be a further release.
    """

    channels: int
    size: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1 / 255

    def scale(self, pixels: Tensor) -> Tensor:
        """Images as float32 (n, channels, height, width): scaled uint8 (n, height, width, channels); floats as is."""
        if pixels.dtype != torch.uint8:
            return pixels
        shape = (1, self.channels, 1, 1)
        mean = torch.tensor(self.mean, device=pixels.device).view(shape)
        std = torch.tensor(self.std, device=pixels.device).view(shape)
        return pixels.permute(0, 3, 1, 2).float().mul_(self.factor).sub_(mean).div_(std)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``preprocessor_config.json``, which transformers reads too; named like the method there."""
        content: dict[str, Any] = {
            "image_processor_type": "ViTImageProcessor",
            "do_rescale": True,
            "rescale_factor": self.factor,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "do_resize": self.size is not None,
        }
        if self.size is not None:
            content |= {"size": {"height": self.size[0], "width": self.size[1]}, "resample": 2}
        write_bytes(Path(folder) / FILE_NAME, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def is_published(facts: ImageFacts) -> bool:
    """Whether the means and deviations of ``facts`` are constants, or those that go with many published models."""
    return (facts.mean, facts.std) in {
        *(((number,) * facts.channels, (deviation,) * facts.channels) for number, deviation in _CONSTANT),
        *_PUBLISHED,
    }


def are_own_statistics(facts: ImageFacts, pixels: NDArray[Any]) -> bool:
    """Whether the means of ``facts`` are those of the images ``pixels`` themselves, to the third decimal.

    Where the means of all channels are alike, deviations must agree too, over all pixels or as the mean of the images'
    own. False for ``pixels`` that are not 8-bit, which are used unscaled.
    """
    if pixels.dtype != np.uint8:
        return False
    close = _CLOSE * 255 * facts.factor
    means = np.zeros((len(pixels), facts.channels))
    squares = np.zeros_like(means)
    for row, image in enumerate(pixels):  # one at a time, as in float64 all together would take eight times the memory
        values = image.reshape(-1, facts.channels) * facts.factor
        means[row], squares[row] = values.mean(0), np.square(values).mean(0)
    mean = means.mean(0)
    if np.abs(mean - facts.mean).max() > close:
        return False
    overall = np.sqrt(np.maximum(squares.mean(0) - np.square(mean), 0))
    of_images = np.sqrt(np.maximum(squares - np.square(means), 0)).mean(0)
    return bool(np.ptp(mean) > 10 * close) or any(
        np.abs(found - facts.std).max() <= close for found in (overall, of_images)
    )


def image_facts(folder: Path, config: Any) -> ImageFacts:
    """The input format of the model in ``folder``; without a ``preprocessor_config.json``, bytes scale to [-1, 1].

    Raises InputError unless the file's means and deviations are one finite number per channel, the latter positive.
    """
    stated: Any = getattr(config, "num_channels", None)
    channels = int(stated or getattr(_vision(config), "num_channels", 3))
    path = folder / FILE_NAME
    data = parse_json(read_text(path), str(path)) if path.is_file() else {}
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a JSON object; copy the original model's")
    normalised = data.get("do_normalize", True) is not False
    default = [0.5] * channels
    mean = (
        _numbers(data.get("image_mean") or default, "image_mean", channels, path) if normalised else (0.0,) * channels
    )
    std = _numbers(data.get("image_std") or default, "image_std", channels, path) if normalised else (1.0,) * channels
    rescaled = data.get("do_rescale", True) is not False
    (factor,) = _numbers([data.get("rescale_factor", 1 / 255)], "rescale_factor", 1, path) if rescaled else (1.0,)
    if min(std) <= 0 or factor <= 0:
        raise InputError(f"{path} scales by a number that is not positive; copy the original model's")
    return ImageFacts(channels=channels, size=_size(config), mean=mean, std=std, factor=factor)


def _numbers(values: Any, name: str, count: int, path: Path) -> tuple[float, ...]:
    sound = isinstance(values, list) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values
    )
    if not sound or len(values) != count:
        raise InputError(f"{path} has {values!r} as {name!r}; expected {count} finite numbers")
    return tuple(float(v) for v in values)


def _vision(config: Any) -> Any:
    """The vision part of a configuration for images and texts; None for others."""
    return getattr(config, "vision_config", None)


def _size(config: Any) -> tuple[int, int] | None:
    """The size of images (height, width), which models of images and texts state in their vision part."""
    size = getattr(config, "image_size", None) or getattr(_vision(config), "image_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None
