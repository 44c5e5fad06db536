"""Products of float32 in full, whichever of torch's settings allows fewer bits, and settings as before afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.backends import cudnn, mkldnn
from torch.utils.data import DataLoader

import privctl
from privctl.train.clipping.products import full_precision

KINDS = {
    "GPU matmul": torch.backends.cuda.matmul,
    "GPU conv": cudnn.conv,
    "GPU rnn": cudnn.rnn,
    "CPU matmul": mkldnn.matmul,
    "CPU conv": mkldnn.conv,
    "CPU rnn": mkldnn.rnn,
}


def newer(kind: str, precision: str) -> Callable[[], None]:
    return lambda: setattr(KINDS[kind], "fp32_precision", precision)


SETTINGS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "older, high": lambda: torch.set_float32_matmul_precision("high"),
    "older, medium": lambda: torch.set_float32_matmul_precision("medium"),
    "older, cuDNN off": lambda: setattr(cudnn, "allow_tf32", False),
    "newer, all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),  # as transformers' Trainer does
    "newer, all exact": lambda: setattr(torch.backends, "fp32_precision", "ieee"),
    "newer, GPU matmul": newer("GPU matmul", "tf32"),
    "newer, GPU conv": newer("GPU conv", "ieee"),
    "newer, CPU matmul": newer("CPU matmul", "bf16"),
    "newer, CPU conv": newer("CPU conv", "bf16"),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = state()
    yield
    torch.backends.fp32_precision = cudnn.fp32_precision = "none"  # cudnn.flags leaves what it found for all there
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    for name, kind in KINDS.items():
        kind.fp32_precision = before[name]
    assert state() == before


def state() -> dict[str, str]:
    return {name: kind.fp32_precision for name, kind in KINDS.items()}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_products_are_exact_inside_and_settings_stay(setting: str, device: str) -> None:
    SETTINGS[setting]()
    before = state()
    for _ in range(2):
        with full_precision(torch.device(device)):
            inside = state()
            with full_precision(torch.device(device)):
                assert state() == inside
            assert state() == inside
            assert {inside[name] for name in KINDS if device == "cuda" or name.startswith("CPU")} <= {"ieee", "none"}
            if device == "cuda":
                # As around a loss of connectionist temporal classification, in models of speech.
                with cudnn.flags(enabled=False):
                    assert torch.get_float32_matmul_precision() == "highest"
        assert state() == before


def test_what_follows_the_setting_for_all_still_does() -> None:
    with full_precision(torch.device("cuda")):
        pass
    torch.backends.fp32_precision = "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    with full_precision(torch.device("cuda")):
        pass
    torch.backends.fp32_precision = "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


@pytest.mark.parametrize("setting", ["newer, all", "newer, GPU matmul", "newer, CPU matmul"])
def test_a_loop_with_tf32_by_the_newer_settings_trains_privately(setting: str) -> None:
    SETTINGS[setting]()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = [torch.randn(3) for _ in range(8)]
    private = privctl.make_private(
        model, optimizer, DataLoader(records, batch_size=4), noise_multiplier=1.0, clip_norm=1.0, delta=1e-3
    )
    before = model.weight.detach().clone()
    for batch in private.loader:
        private.backward(lambda batch=batch: model(batch).square().sum(1))  # type: ignore[misc]
        optimizer.step()
    assert not torch.equal(model.weight, before)
