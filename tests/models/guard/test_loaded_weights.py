"""Weights that a network keeps in another form than the file: held against it exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from privctl.domain.errors import InputError
from privctl.models.guard import sizes
from privctl.models.guard.weights import check_loaded
from privctl.models.kinds import CAUSAL
from privctl.models.language import read_config, read_network
from privctl.storage.reader import open_checkpoint
from tests.zoo.shrink import build, pairs


def test_experts_that_changed_places_are_not_those_of_the_file(tmp_path: Path) -> None:
    """Their count, sum and sum of squares are the file's."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=63, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=3, max_position_embeddings=32,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        network, _ = read_network(checkpoint, tmp_path, config, torch.float32, CAUSAL)
        held = {info.name for _, info in checkpoint.tensors()}
        first = next(p for n, p in network.named_parameters() if n not in held and p.ndim == 3)
        with torch.no_grad():
            first.copy_(first[[1, 0, 2]])
        with pytest.raises(InputError, match="holds other numbers than the file"):
            check_loaded(network, checkpoint, (), ())


@pytest.mark.parametrize(
    "kind",
    [
        "minimax_m2",
        *(pytest.param(k, marks=pytest.mark.slow) for k in (
            "bailing_hybrid", "deepseek_v4", "exaone_moe", "hy_v3", "inkling2_text", "kimi_linear", "kolibri1",
            "nemotron_h",
        )),
    ],
)  # fmt: skip
def test_tensors_that_the_network_keeps_under_other_names_come_back(tmp_path: Path, kind: str) -> None:
    """Renamed, rearranged and, some of them, buffers: all held exactly, and a changed one is refused."""
    if ("causal-lm", kind) not in set(pairs()):
        pytest.skip("the installed transformers does not know it")
    build("causal-lm", kind, tmp_path)
    config = read_config(tmp_path, tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        network, misfits = read_network(checkpoint, tmp_path, config, torch.float32, CAUSAL)
        assert not misfits.missing
        held = {info.name for _, info in checkpoint.tensors()}
        state = network.state_dict()
        moved = [n for n in state if n not in held and state[n].is_floating_point()]
        for name in (moved[0], moved[-1]):
            before = state[name].clone()
            state[name].view(-1)[0] += 0.5
            with pytest.raises(InputError, match="other numbers than the file"):
                check_loaded(network, checkpoint, (), ())
            state[name].copy_(before)
        check_loaded(network, checkpoint, (), ())


def test_where_another_kind_of_layer_begins_is_no_count_of_layers() -> None:
    """Published configurations of Qwen2 state 28, however many layers a model has."""
    sizes.check_counts({"num_hidden_layers": 1, "max_window_layers": 28}, Path("config.json"), [])
    with pytest.raises(InputError, match="num_hidden_layers 28"):
        sizes.check_counts({"num_hidden_layers": 28, "max_window_layers": 28}, Path("config.json"), [])
