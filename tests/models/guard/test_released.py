"""What ``privctl noise`` releases beside the weights: no key that makes a loader run code, fetch, or look elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.models.guard.keys import STRIPPED, without_code
from privctl.reports.codec import decode

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
#: Written as no library would, so that a copy that was parsed and written again shows.
CONFIG = '{"model_type":   "gpt2", "n_layer": 1, "layer_norm_epsilon": 1e-05}\r\n'


@pytest.fixture
def folder(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    write_model(model / "model.safetensors", {"w": np.random.default_rng(0).standard_normal((40, 30), np.float32)})
    (model / "config.json").write_bytes(CONFIG.encode())
    return model


def noise(folder: Path, *more: str) -> int:
    return run(["noise", str(folder), *FACTS, *more])


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("name", "data", "key"),
    [
        ("config.json", {"transformers_weights": "other.safetensors"}, "transformers_weights"),
        ("config.json", {"text_config": {"attn_implementation": "kernels-community/x"}}, "attn_implementation"),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("config.json", {"rms_norm_eps": 1e12}, "rms_norm_eps"),
        ("generation_config.json", {"custom_generate": "someone/code"}, "custom_generate"),
        ("tokenizer_config.json", {"vocab_file": "/etc/passwd"}, "vocab_file"),
        ("preprocessor_config.json", {"trust_remote_code": True}, "trust_remote_code"),
        ("processor_config.json", {"a": [{"use_kernels": True}]}, "use_kernels"),
    ],
)
def test_a_key_that_loading_refuses_is_not_released(
    folder: Path, name: str, data: dict[str, Any], key: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(json.dumps(data))
    assert noise(folder, *more) == ExitCode.BAD_INPUT
    stderr = capsys.readouterr().err
    assert f"{name} has {key}" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_keys_that_name_code_are_left_out_and_said_to_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {"model_type": "gpt2", "sub": {"auto_map": {"AutoModel": "a.B"}, "kept": [1.5, "ü", None]}, "n": 2**53 + 1}
    (folder / "config.json").write_text(json.dumps({**held, "auto_map": {"AutoConfig": "someone/code--mine.Config"}}))
    (folder / "tokenizer_config.json").write_bytes(b'{"model_max_length":   12}')
    assert noise(folder) == ExitCode.OK
    assert "left out of config.json: auto_map, which names code" in " ".join(capsys.readouterr().out.split())
    private = folder.with_name("model.private")
    assert json.loads((private / "config.json").read_text()) == {**held, "sub": {"kept": [1.5, "ü", None]}}
    assert (private / "tokenizer_config.json").read_bytes() == b'{"model_max_length":   12}'
    path = folder.with_name("model.private.report.json")
    report = decode(path.read_text(), str(path))
    assert [o.what for o in report.omissions if "code" in o.reason] == ["auto_map of config.json"]
    assert run(["verify", str(path), "-q"]) == ExitCode.OK, "the digest is of the file as it was written"


def test_a_file_without_such_keys_is_copied_byte_for_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "added_tokens.json").write_text('{"compile": 7, "pretrained": 8}')  # tokens, not keys
    assert noise(folder) == ExitCode.OK
    assert "left out" not in capsys.readouterr().out
    private = folder.with_name("model.private")
    assert (private / "config.json").read_bytes() == CONFIG.encode()
    assert (private / "added_tokens.json").read_bytes() == (folder / "added_tokens.json").read_bytes()


def test_a_configuration_that_is_no_json_object_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text("[1]")
    assert noise(folder) == ExitCode.BAD_INPUT
    assert "config.json is not a JSON object" in capsys.readouterr().err


def test_every_key_that_names_code_is_found_at_any_depth() -> None:
    for key in STRIPPED:
        assert without_code({"a": [{key: 1, "b": 2}]}) == ({"a": [{"b": 2}]}, (key,))
    assert without_code({"a": 1}) == ({"a": 1}, ())


@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "chat_template.json"])
def test_a_link_out_of_the_folder_is_not_released(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder from elsewhere would have the user's own files copied into the release."""
    (folder.parent / "secret.json").write_text('{"key": "secret"}')
    (folder / name).symlink_to("../secret.json")
    data = folder.parent / "d.jsonl"
    data.write_text('{"text": "a b"}\n')
    training = ["retrain", "dp-sgd", str(folder), "--data", str(data), "--epsilon", "1", "-o", str(folder.parent / "r")]
    for code in (noise(folder), run([*training, "--epochs", "1", "--from-scratch"])):
        assert code == ExitCode.BAD_INPUT
    stderr = capsys.readouterr().err
    assert stderr.count(f"{name} is a link to {folder.parent / 'secret.json'}, outside the model's folder") == 2
    assert sorted(path.name for path in folder.parent.iterdir()) == ["d.jsonl", "model", "secret.json"]


def test_links_within_the_folder_and_to_the_store_of_the_hub_are_followed(folder: Path) -> None:
    snapshot = folder.parent / "hub" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    store = snapshot.parents[1] / "blobs"
    store.mkdir()
    (snapshot / "config.json").rename(store / "abc")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "template").write_text("{{ x }}")
    (snapshot / "chat_template.jinja").symlink_to("template")
    assert noise(snapshot, "-o", str(folder.parent / "out")) == 0
    assert (folder.parent / "out" / "config.json").read_bytes() == CONFIG.encode()
    assert (folder.parent / "out" / "chat_template.jinja").read_text() == "{{ x }}"
    assert not (folder.parent / "out" / "config.json").is_symlink()
