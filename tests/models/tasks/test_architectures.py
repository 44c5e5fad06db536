"""Architectures that state, name or compute something in a way of their own: loaded, run and saved like the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from audits.scores.subject import load_subject
from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.guard.weights import check_loaded
from privctl.models.kinds import CAUSAL
from privctl.models.language import read_config, read_network
from privctl.models.loading import TrainingModel, load_for_training
from privctl.storage.reader import open_checkpoint
from privctl.train.release.reload_check import _differences, reference_answers
from tests.zoo.shrink import build

CAUSAL_LM, IMAGES = TaskName.CAUSAL_LM, TaskName.IMAGE_CLASSIFICATION


def loaded(folder: Path, task: TaskName, kind: str) -> TrainingModel:
    build(str(task), kind, folder)
    return load_for_training(folder, task, norm="frozen" if kind in ("levit", "pp_lcnet") else None)


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        pytest.param(IMAGES, "clip", id="the size of images in a part of the configuration"),
        pytest.param(IMAGES, "pp_lcnet", id="logits under another name"),
        pytest.param(IMAGES, "levit", id="a configuration that the network adds to"),
        pytest.param(CAUSAL_LM, "recurrent_gemma", id="a constant in half precision", marks=pytest.mark.slow),
    ],
)
def test_what_is_saved_is_the_network(task: TaskName, kind: str, tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", task, kind)
    reference = reference_answers(model, model.network)
    assert reference.answers.shape[-1] == (2 if task is IMAGES else 32)
    model.network.save_pretrained(tmp_path / "saved")
    if model.companion is not None:
        model.companion.save_pretrained(tmp_path / "saved")
    reference.require(tmp_path / "saved", model.network, tmp_path / "saved")


@pytest.mark.slow
def test_another_constant_or_configuration_is_another_network(tmp_path: Path) -> None:
    network = loaded(tmp_path / "gemma", CAUSAL_LM, "recurrent_gemma").network
    other = loaded(tmp_path / "other", CAUSAL_LM, "recurrent_gemma").network
    assert not list(_differences(other, network, {}))
    network.model.normalizer += 1.0
    assert list(_differences(other, network, {})) == [
        "transformers loads another model.normalizer than the network has"
    ]
    levit = loaded(tmp_path / "levit", IMAGES, "levit").network
    again = loaded(tmp_path / "again", IMAGES, "levit").network
    again.config.down_ops = [*levit.config.down_ops, [""]]
    assert not list(_differences(again, levit, {"down_ops": levit.config.down_ops}))
    assert "down_ops" in next(_differences(again, levit, {"down_ops": again.config.down_ops}))


def test_classes_that_are_only_counted_have_names(tmp_path: Path) -> None:
    assert loaded(tmp_path, IMAGES, "pvt").labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        ("imagegpt", "reads tokens"),
        ("siglip2", "reads patches of images of different shapes"),
        ("shieldgemma2", "reads a text beside the image"),
    ],
)
def test_what_does_not_read_pixels_alone_is_refused_by_name(kind: str, reads: str, tmp_path: Path) -> None:
    build(str(IMAGES), kind, tmp_path)
    for act in (lambda: load_for_training(tmp_path, IMAGES), lambda: load_subject(tmp_path, task=IMAGES, device="cpu")):
        with pytest.raises(InputError, match=f"{kind}.*{reads}.*such as vit"):
            act()


def test_a_tied_head_beside_renamed_tensors_is_the_file_s(tmp_path: Path) -> None:
    """The file holds the embeddings once; a head of other numbers is in no file."""
    build("causal-lm", "gemma3", tmp_path)
    config = read_config(tmp_path, tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        network, misfits = read_network(checkpoint, tmp_path, config, torch.float32, CAUSAL)
        assert not misfits.missing
        tied = network.lm_head.weight
        network.lm_head.weight = torch.nn.Parameter(tied.detach() + 0.5)
        with pytest.raises(InputError, match="other numbers than the file"):
            check_loaded(network, checkpoint, (), ())
        network.lm_head.weight = tied
        check_loaded(network, checkpoint, (), ())


def test_a_padding_row_that_loading_sets_to_zero_is_named_with_a_way_out(tmp_path: Path) -> None:
    """Youtu's head is tied to its embeddings, so that training moves the padding token's row."""
    model = loaded(tmp_path / "model", CAUSAL_LM, "youtu")
    model.network.config.pad_token_id = 0
    with torch.no_grad():
        model.network.lm_head.weight[0] += 0.25
    saved = tmp_path / "saved"
    for folder in (saved, tmp_path / "again"):
        model.network.save_pretrained(folder)
        model.companion.save_pretrained(folder)
        if folder == saved:
            with pytest.raises(InputError, match="row of the padding token to zero; take pad_token_id out"):
                reference_answers(model, model.network).require(folder, model.network, folder)
            model.network.config.pad_token_id = None
    reference_answers(model, model.network).require(folder, model.network, folder)


def test_the_text_part_of_a_larger_model_is_refused_by_name(tmp_path: Path) -> None:
    build("causal-lm", "emu3", tmp_path)
    with pytest.raises(InputError, match="names Emu3ForCausalLM in its config.json.*part of a larger one"):
        load_for_training(tmp_path, CAUSAL_LM)
