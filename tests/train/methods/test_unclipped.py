"""Training without clipping, whose networks no self-test runs beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

import privctl
from privctl.domain.errors import InputError
from tests.zoo.shrink import build, write_data


def test_a_network_that_cannot_be_differentiated_is_named(tmp_path: Path) -> None:
    """Reformer's backward pass computes its layers anew, in training mode only."""
    build("text-classification", "reformer", tmp_path / "model")
    with pytest.raises(InputError, match=r"cannot be differentiated as the run needs it \(AssertionError: .*Reformer"):
        privctl.retrain(
            "plain", tmp_path / "model", data=write_data("text-classification", tmp_path / "data"),
            output=tmp_path / "out", task="text-classification", steps=1, batch_size=2, device="cpu",
        )  # fmt: skip
    assert not (tmp_path / "out.run").exists(), "nothing was released, and nothing can be continued"
