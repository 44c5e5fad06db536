from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    CanineConfig,
    CodeGenConfig,
    GPT2Config,
    GPT2LMHeadModel,
    RwkvConfig,
    T5Config,
    Wav2Vec2Config,
    WhisperConfig,
)

from audits.scores.forward import trunk_and_head
from audits.scores.subject import task_of
from privctl.domain.errors import CommandError, InputError
from privctl.models.language import choose_device, load_model, pad_of, read_config, vocabulary_of
from privctl.storage.reader import open_checkpoint
from tests.audits.tiny import save_model, save_tokenizer

IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def logits(path: Path) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = load_model(path, device="cpu").network(input_ids=IDS).logits
    return out


def test_a_file_of_any_name_is_the_same_model(folder: Path) -> None:
    expected = logits(folder)
    (folder / "model.safetensors").rename(folder / "noisy.eps1.safetensors")
    assert torch.equal(logits(folder / "noisy.eps1.safetensors"), expected)


def test_tied_weights_are_tied_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=63, n_embd=8, n_layer=1, n_head=2, n_positions=16)).eval()
    network.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    path = tmp_path / "model.safetensors"
    assert "lm_head.weight" not in load_file(path)
    model = load_model(path, device="cpu").network
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(model(input_ids=IDS).logits, network(input_ids=IDS).logits)


def test_half_precision_is_widened_on_a_cpu(folder: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(folder, device="cpu").dtype == "float32"


def test_nothing_is_printed_and_nothing_is_fetched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    edit_config(folder, bos_token_id=9999)  # transformers warns of this
    model = load_model(folder, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (model.context, model.vocabulary) == (64, 63)


def test_missing_parts_are_named(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "t")
    with pytest.raises(InputError, match=r"no tokenizer beside its weights \(such as tokenizer.json\)"):
        load_model(folder, device="cpu")
    (folder / "t").rename(folder / "tokenizer.json")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json beside its weights"):
        load_model(folder / "model.safetensors", device="cpu")


def test_what_is_no_model_is_told_so(folder: Path, tmp_path: Path) -> None:
    """The data in the model's place, and a folder without weights."""
    (data := tmp_path / "members.jsonl").write_text('{"text": "a"}\n')
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"members\.jsonl is JSON, not a model; give a Hugging Face model's folder"):
        load_model(data, device="cpu")
    with pytest.raises(InputError, match=r"empty holds neither model\.safetensors nor"):
        read_config(empty, empty)
    (empty / "checkpoint-9").mkdir()
    (empty / "checkpoint-9/model.safetensors").touch()
    with pytest.raises(InputError, match="such as .*checkpoint-9; for a network of your own class see"):
        read_config(empty, empty)
    (packed := tmp_path / "packed").mkdir()
    (packed / "model.gguf").write_bytes(b"GGUF\3\0\0\0")
    for path in (packed, packed / "model.gguf"):
        with pytest.raises(InputError, match="GGUF.*convert it with transformers"):
            read_config(path, path)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "unheard-of"}, "model_type 'unheard-of', which the installed transformers does not know"),
        ({"model_type": None}, "names no model_type"),
        ({"vocab_size": 70}, "has other shapes than its config.json describes for"),
        ({"num_hidden_layers": 3}, "lacks model.layers.2"),
        ({"num_hidden_layers": 1}, "holds tensors its config.json has no place for: model.layers.1"),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_a_config_that_does_not_fit(folder: Path, changes: dict[str, Any], fault: str, single: bool) -> None:
    edit_config(folder, **changes)
    with pytest.raises(InputError, match=fault):
        load_model(folder / "model.safetensors" if single else folder, device="cpu")


def test_code_that_comes_with_a_model_is_not_run(folder: Path) -> None:
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    auto = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    edit_config(folder, model_type="mine", auto_map=auto)
    with pytest.raises(InputError, match="only architectures that come with transformers are run"):
        load_model(folder, device="cpu")


def test_other_kinds_of_model_are_refused(folder: Path) -> None:
    T5Config().save_pretrained(folder)
    with pytest.raises(InputError, match=r"is an encoder-decoder model \(t5\), .*; give --task seq2seq-lm"):
        load_model(folder, device="cpu")


def test_a_model_of_sounds_is_not_asked_for_a_tokenizer(tmp_path: Path) -> None:
    Wav2Vec2Config().save_pretrained(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is a wav2vec2 model, which is not a causal language model"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("config", "name", "error", "sentence"),
    [
        (BartConfig(), "BartModel", CommandError, "names BartModel, and a bart model may serve"),
        (WhisperConfig(), "WhisperForConditionalGeneration", InputError, r"\(whisper\), .*it reads no text"),
        (
            BertConfig(),
            "BertForPreTraining",
            CommandError,
            "names BertForPreTraining, and a bert model may serve several tasks; give --task: causal-lm, masked-lm, "
            "text-classification, token-classification, question-answering$",
        ),
    ],
)
def test_a_model_without_a_task_is_told_so(
    config: Any, name: str, error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with pytest.raises(error, match=sentence):
        task_of(tmp_path)


def tiny_network(config: Any, auto: Any) -> Any:
    with torch.device("meta"):
        return auto.from_config(config)


@pytest.mark.parametrize("kind", [CodeGenConfig, RwkvConfig])
def test_a_configuration_need_not_have_a_padding_token(kind: Any) -> None:
    network = tiny_network(kind(vocab_size=20), AutoModelForCausalLM)
    network.config.__dict__.pop("pad_token_id", None)  # other versions may give every configuration one
    assert pad_of(network, SimpleNamespace(pad_token_id=None, eos_token_id=7)) == 7


def test_a_model_of_characters_takes_every_code_point() -> None:
    network = tiny_network(CanineConfig(num_hidden_layers=1), AutoModelForSequenceClassification)
    assert vocabulary_of(network) == sys.maxunicode + 1
    assert pad_of(network, SimpleNamespace(pad_token_id=None, eos_token_id=7)) == 0


def test_a_network_that_fails_when_it_is_run_is_refused(folder: Path) -> None:
    model = load_model(folder, device="cpu")

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("some setting")

    model.network.forward = broken
    with pytest.raises(InputError, match=r"\(llama\) cannot be run on what it is given: KeyError 'some setting'"):
        trunk_and_head(model)


def test_a_malformed_tokenizer_and_pickles(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(InputError, match="tokenizer that cannot be loaded"):
        load_model(folder, device="cpu")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    # AutoModel would leave out the head, without which no loss is that of the model.
    with pytest.raises(InputError, match=r"holds pickles.*LlamaForCausalLM\.from.*-safetensors'\), and copy"):
        load_model(folder, device="cpu")
    for names in ("[]", "null", '["__import__(1)"]', '{"a": 1}', "3"):
        (folder / "config.json").write_text(f'{{"model_type": "llama", "architectures": {names}}}')
        with pytest.raises(InputError, match=r"transformers: AutoModelForCausalLM\.from_pretrained"):
            open_checkpoint(folder)


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "meta"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(CommandError, match=f"--device {name}"):
        choose_device(name)


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = save_model(tmp_path / "whole")
    model = load_model(whole, device="cpu")
    model.network.save_pretrained(tmp_path / "cut", max_shard_size="20KB")
    save_tokenizer(tmp_path / "cut")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    assert torch.equal(logits(tmp_path / "cut"), logits(whole))
    shard = min((tmp_path / "cut").glob("model-*.safetensors"))
    with pytest.raises(InputError, match="lacks .*give the folder where a model has several files"):
        load_model(shard, device="cpu")
