"""Models made ready for training: where their weights come from, what is new, and that they can be saved again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    T5Config,
)

from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import PrivacyReport
from privctl.models.choices import TaskName
from privctl.models.kinds import IMAGE_CLASSIFIER
from privctl.models.language import load_model
from privctl.models.loading import TrainingModel, known_labels, load_for_training
from privctl.models.normalisation import batch_norms
from privctl.models.tasks.base import evaluation_mode
from privctl.models.tasks.build import text_task
from privctl.reports.files import now
from privctl.train.release.model import save_network
from privctl.train.release.reload_check import reference_answers
from tests.audits.tiny import save_model, save_tokenizer
from tests.models.tasks.small import RECORDS, architecture, config, words
from tests.zoo.shrink import build
from tests.zoo.sizes import SPECIAL_SETTINGS

TEXT = TaskName.TEXT_CLASSIFICATION
IMAGES = TaskName.IMAGE_CLASSIFICATION


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def saved(model: TrainingModel, folder: Path) -> Path:
    """What the writer of trained models makes of it."""
    save_network(
        model.network,
        model.companion,
        folder,
        lambda _, outputs: PrivacyReport(step="retrain", created=now(), versions={}, outputs=outputs),
        reference=reference_answers(model, model.network),
        public=True,
    )
    return folder


def test_random_weights_come_from_the_seed(tmp_path: Path) -> None:
    folder = architecture(tmp_path / "a", "llama", dtype="bfloat16")
    state = torch.get_rng_state()
    models = [load_for_training(folder, TaskName.CAUSAL_LM, vocabulary=words(), seed=s) for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weights(models[0].network), weights(models[1].network))
    assert not torch.equal(weights(models[0].network), weights(models[2].network))
    assert (models[0].initial_weights, models[0].seed, models[0].fresh) == ("random", 1, ())
    assert models[0].vocabulary_from_private_data
    assert models[0].network.config.vocab_size == len(words().tokenizer)
    assert {p.dtype for p in models[0].network.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in models[0].network.parameters())


def test_a_checkpoint_is_used_unless_told_otherwise(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "llama")
    model = load_for_training(folder, TaskName.CAUSAL_LM)
    assert model.initial_weights == "checkpoint"
    assert torch.equal(weights(model.network), weights(load_model(folder, device="cpu").network))
    assert (model.network.training, model.text and model.text.context) == (False, 64)
    assert load_for_training(folder, TaskName.CAUSAL_LM, dropout=True).network.training
    scratch = load_for_training(folder / "model.safetensors", TaskName.CAUSAL_LM, from_scratch=True)
    assert scratch.initial_weights == "random"
    assert not torch.equal(weights(scratch.network), weights(model.network))
    with pytest.raises(CommandError, match="add --from-scratch"):
        load_for_training(folder, TaskName.CAUSAL_LM, vocabulary=words())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds pickles"):
        load_for_training(folder, TaskName.CAUSAL_LM)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tf_model.h5", "holds tf_model.h5, but no weights in safetensors"),
        ("model.onnx", "holds model.onnx, but no weights in safetensors"),
        ("model.safetensors.incomplete", "holds model.safetensors.incomplete, but no weights in safetensors"),
        ("model-00001-of-00002.safetensors", "holds model-00001-of-00002.safetensors, but no .*index.json"),
        ("checkpoint-15/model.safetensors", "has weights only in its checkpoints, such as checkpoint-15"),
    ],
)
def test_no_random_weights_replace_those_that_cannot_be_read(tmp_path: Path, name: str, advice: str) -> None:
    folder = save_model(tmp_path / "llama")
    for checkpoint in ("checkpoint-5", "checkpoint-15", "checkpoint-20"):
        (folder / checkpoint).mkdir()
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(InputError, match=f"{advice}.*; to train from random weights, add --from-scratch"):
        load_for_training(folder, TaskName.CAUSAL_LM)
    (folder / "model.safetensors").symlink_to("lost")
    with pytest.raises(InputError, match="has a model.safetensors that is not a file, or a link to none"):
        load_for_training(folder, TaskName.CAUSAL_LM)
    assert load_for_training(folder, TaskName.CAUSAL_LM, from_scratch=True).initial_weights == "random"


def test_a_classification_head_is_drawn_anew(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = BertModel(config("bert", vocab_size=63))
    base.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    models = [load_for_training(tmp_path, TEXT, labels=["x", "y", "z"], seed=s) for s in (1, 1, 2)]
    assert models[0].fresh == ("classifier.bias", "classifier.weight")
    assert models[0].labels == ("x", "y", "z")
    assert models[0].network.classifier.weight.shape == (3, 16)
    assert torch.equal(models[0].network.bert.embeddings.word_embeddings.weight, base.embeddings.word_embeddings.weight)
    heads = [model.network.classifier.weight for model in models]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_masked_model_becomes_a_classifier_and_a_classifier_gets_other_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config("bert", vocab_size=63)).save_pretrained(tmp_path / "mlm")
    save_tokenizer(tmp_path / "mlm")
    model = load_for_training(tmp_path / "mlm", TEXT, labels=["x", "y"])
    assert "bert.pooler.dense.weight" in model.fresh
    again = saved(model, tmp_path / "out")
    assert known_labels(again) == ("x", "y")
    kept = load_for_training(again, TEXT)
    assert (kept.fresh, kept.labels) == ((), ("x", "y"))
    assert torch.equal(weights(kept.network), weights(model.network))
    grown = load_for_training(again, TEXT, labels=["x", "y", "z"])
    assert grown.fresh == ("classifier.bias", "classifier.weight")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_hidden_layers": 3}, "lacks bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "holds tensors its config.json has no place for"),
        ({"intermediate_size": 33}, "has other shapes than its config.json describes for"),
        ({"hidden_size": 17}, "config.json|shapes|cannot be"),
    ],
)
@pytest.mark.parametrize("headless", [False, True])
def test_a_body_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], fault: str, headless: bool
) -> None:
    kind: Any = BertModel if headless else BertForSequenceClassification
    kind(config("bert", vocab_size=63)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(InputError, match=fault):
        load_for_training(tmp_path, TEXT, labels=["x", "y"])


def test_what_is_not_supported_says_so(tmp_path: Path) -> None:
    llama = save_model(tmp_path / "llama")
    with pytest.raises(InputError, match="is a llama model, which is not a masked language model"):
        load_for_training(llama, TaskName.MASKED_LM)
    with pytest.raises(InputError, match="is a llama model, which is not an image classifier"):
        load_for_training(llama, IMAGES, from_scratch=True)
    with pytest.raises(CommandError, match="--labels does not apply to the task causal-lm"):
        load_for_training(llama, TaskName.CAUSAL_LM, labels=["a", "b"])
    with pytest.raises(CommandError, match="--norm batch is unknown"):
        load_for_training(llama, TaskName.CAUSAL_LM, norm="batch")
    bert = architecture(tmp_path / "bert", "bert")
    with pytest.raises(InputError, match="has no tokenizer beside its weights"):
        load_for_training(bert, TaskName.MASKED_LM)
    save_tokenizer(bert)
    with pytest.raises(InputError, match="tokenizer without a mask token"):
        load_for_training(bert, TaskName.MASKED_LM)
    edit(bert, vocab_size=20)
    with pytest.raises(InputError, match="has a tokenizer of 63 tokens and embeds 20"):
        load_for_training(bert, TEXT, labels=["a", "b"])
    edit(bert, num_attention_heads=3)
    with pytest.raises(InputError, match="config.json"):
        load_for_training(bert, TEXT, labels=["a", "b"])
    T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=1).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="encoder-decoder.*give --task seq2seq-lm"):
        load_for_training(tmp_path / "t5", TaskName.CAUSAL_LM)
    with pytest.raises(InputError, match=r"holds neither model\.safetensors nor .*for a network of your own class see"):
        load_for_training(tmp_path, TaskName.CAUSAL_LM)


def test_the_context_is_what_every_part_allows(tmp_path: Path) -> None:
    model = load_for_training(architecture(tmp_path / "r", "roberta"), TaskName.MASKED_LM, vocabulary=words())
    assert model.text is not None
    assert model.text.context == 39  # 40 positions, of which padding_idx + 1 = 1 are never a token's


def test_a_causal_classifier_learns_what_padding_is(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "llama")
    model = load_for_training(folder, TEXT, labels=["a", "b"])
    assert model.fresh == ("score.weight",)
    assert model.network.config.pad_token_id == 2
    assert model.network.get_input_embeddings().padding_idx is None
    task = text_task(model, RECORDS)
    batch = task.batch(range(5), torch.device("cpu"), 0)
    assert task.losses(model.network, batch).shape == (5,)


def with_statistics(folder: Path) -> nn.Module:
    """A ResNet whose running statistics are those of some batches, saved to ``folder``."""
    torch.manual_seed(0)
    network: Any = AutoModelForImageClassification.from_config(config("resnet"))
    for _ in range(3):
        network.train()(torch.rand(8, 3, 32, 32) * 3)
    network.eval().save_pretrained(folder)
    return network


def test_batch_normalisation_is_refused_or_frozen(tmp_path: Path) -> None:
    folder = architecture(tmp_path / "resnet", "resnet")
    with pytest.raises(InputError, match=r"has batch normalisation .* and 5 more.*--norm frozen keeps"):
        load_for_training(folder, IMAGES, labels=["a", "b"])
    fresh = load_for_training(folder, IMAGES, labels=["a", "b"], norm="frozen", dropout=True)
    assert fresh.frozen_norms == batch_norms(fresh.network)
    assert len(fresh.frozen_norms) == 6
    start = with_statistics(folder)
    with pytest.raises(InputError, match="has batch normalisation"):
        load_for_training(folder, IMAGES, labels=["a", "b"])
    model = load_for_training(folder, IMAGES, labels=["a", "b"], norm="frozen", dropout=True)
    pixels = torch.rand(2, 3, 32, 32)
    assert model.network.training
    with torch.no_grad():
        assert torch.equal(
            model.network(pixels).logits, start(pixels).logits
        )  # it goes by its statistics, not by a batch's
        with evaluation_mode(model.network):
            pass
        assert torch.equal(model.network(pixels).logits, start(pixels).logits)
    again = load_for_training(saved(model, tmp_path / "out"), IMAGES, norm="frozen")
    assert torch.equal(again.network(pixels).logits, model.network(pixels).logits)
    with pytest.raises(CommandError, match="applies to batch normalisation"):
        load_for_training(architecture(tmp_path / "vit", "vit"), IMAGES, labels=["a", "b"], norm="frozen")


def test_weights_of_group_normalisation_are_refused(tmp_path: Path) -> None:
    """transformers' ResNet has no place for them: it would make up the statistics that they lack."""
    with_statistics(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: t for name, t in held.items() if "running" not in name and "num_batches" not in name},
        tmp_path / "model.safetensors",
    )
    edit(tmp_path, privctl_norm="group")
    with pytest.raises(InputError, match="lacks .*running_mean"):
        load_for_training(tmp_path, IMAGES, norm="frozen")
    with pytest.raises(InputError, match="lacks .*running_mean"):
        load_model(tmp_path, device="cpu", kind=IMAGE_CLASSIFIER)


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    model = load_for_training(architecture(tmp_path / "g", "gpt2"), TaskName.CAUSAL_LM, vocabulary=words())
    out = saved(model, tmp_path / "gpt2")
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    loaded = load_model(out, device="cpu")
    assert torch.equal(weights(loaded.network), weights(model.network))
    assert torch.equal(weights(AutoModelForCausalLM.from_pretrained(out)), weights(model.network))
    for kind in ("bert", "roberta"):
        masked = load_for_training(architecture(tmp_path / kind, kind), TaskName.MASKED_LM, vocabulary=words())
        out = saved(masked, tmp_path / f"{kind}-out")
        again = load_for_training(out, TaskName.MASKED_LM)
        assert again.fresh == ()
        assert torch.equal(weights(again.network), weights(masked.network))


def test_the_scaling_of_images_is_saved_and_read(tmp_path: Path) -> None:
    folder = architecture(tmp_path / "vit", "vit")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "rescale_factor": 0.5})
    )
    model = load_for_training(folder, IMAGES, labels=["a", "b", "c"])
    assert model.images is not None
    pixels = torch.full((1, 8, 8, 3), 4, dtype=torch.uint8)
    assert model.images.scale(pixels)[0, :, 0, 0].tolist() == pytest.approx([1.9, 0.9, 1.7 / 3])
    out = saved(model, tmp_path / "out")
    assert load_for_training(out, IMAGES).images == model.images
    for fault in ({"image_mean": [1]}, {"image_std": [0, 1, 1]}, {"rescale_factor": None}, {"image_mean": "x"}):
        (folder / "preprocessor_config.json").write_text(json.dumps(fault))
        with pytest.raises(InputError, match="preprocessor_config.json"):
            load_for_training(folder, IMAGES, labels=["a", "b"])


def test_transformers_scales_images_likewise(tmp_path: Path) -> None:
    model = load_for_training(architecture(tmp_path / "vit", "vit"), IMAGES, labels=["a", "b", "c"])
    assert model.images is not None
    model.images.save_pretrained(tmp_path)
    try:
        processor = AutoImageProcessor.from_pretrained(tmp_path)
    except ImportError:
        pytest.skip("this transformers needs torchvision for it")
    pixels = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8)
    found = processor(pixels[0].permute(2, 0, 1), return_tensors="pt")["pixel_values"]
    assert torch.allclose(found, model.images.scale(pixels), atol=1e-6)


def test_a_funnel_without_a_padding_token_stays_so(tmp_path: Path) -> None:
    """Stated, it would have transformers zero that row of the trained embedding; what reads both ways needs none."""
    build("text-classification", "funnel", tmp_path / "m")
    model = load_for_training(tmp_path / "m", TaskName.TEXT_CLASSIFICATION)
    assert model.network.config.pad_token_id is None


def test_a_network_that_halves_its_own_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RWKV of more blocks than rescale_every; without rescaling it loads, and predicts the same."""
    monkeypatch.setitem(SPECIAL_SETTINGS, "rwkv", {"num_hidden_layers": 4, "rescale_every": 2})
    build("causal-lm", "rwkv", tmp_path)
    ids = torch.tensor([[5, 9, 7, 6, 8]])
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids).logits
    with pytest.raises(InputError, match=r"rescale_every is 2 in config\.json.*set rescale_every to 0 there"):
        load_for_training(tmp_path, TaskName.CAUSAL_LM)
    path = tmp_path / "config.json"
    for every in (4, 0):  # no block is halved
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rescale_every": every}))
        network = load_for_training(tmp_path, TaskName.CAUSAL_LM).network
        with torch.no_grad():
            torch.testing.assert_close(network(ids).logits, expected, rtol=1e-3, atol=1e-3)
