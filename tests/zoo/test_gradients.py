"""Gradients of tiny models of many architectures, held against each example's own by plain autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privctl.domain.errors import CommandError
from privctl.models.choices import TaskName
from privctl.models.images import image_logits
from privctl.models.loading import load_for_training
from tests.train.clipping.support import Batch, agree
from tests.zoo.shrink import build

IMAGES = (
    "bit", "clip", "convnext", "cvt", "donut-swin", "efficientnet", "hiera", "mobilevitv2", "pp_lcnet", "pvt",
    "pvt_v2", "resnet", "siglip", "swin", "swinv2",
)  # fmt: skip
TEXTS = ("bamba", "dbrx", "dots1", "fuyu", "gemma3", "gemma4", "gpt_neo", "llama4", "mamba2", "ministral")


def of_images(model: Any, batch: Batch) -> Tensor:
    return functional.cross_entropy(image_logits(model, batch["pixels"]), batch["labels"], reduction="none")


def of_texts(model: Any, batch: Batch) -> Tensor:
    logits = model(**batch, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none").mean(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IMAGES)
def test_of_images(kind: str, tmp_path: Path, one_thread: None) -> None:
    build("image-classification", kind, tmp_path)
    try:
        model = load_for_training(tmp_path, TaskName.IMAGE_CLASSIFICATION, norm="frozen")
    except CommandError:  # it has no batch normalisation
        model = load_for_training(tmp_path, TaskName.IMAGE_CLASSIFICATION)
    generator = torch.Generator().manual_seed(11)
    # In float32 the gradient of one image of a tiny BiT is known to 2e-3 by either way.
    pixels = torch.randn(5, 3, 32, 32, generator=generator).double()
    batch = {"pixels": pixels, "labels": torch.tensor([0, 1, 1, 0, 1])}
    agree(model.network.double().eval(), of_images, batch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXTS)
def test_of_texts(kind: str, tmp_path: Path, one_thread: None) -> None:
    build("causal-lm", kind, tmp_path)
    model = load_for_training(tmp_path, TaskName.CAUSAL_LM)
    ids = torch.randint(5, 29, (5, 9), generator=torch.Generator().manual_seed(12))
    agree(model.network.eval(), of_texts, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
