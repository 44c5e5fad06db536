"""Mistakes of new users: each is one sentence that says what to do, ends with its code, and changes no file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors.torch import save_file

import privctl
from privctl.cli import run
from privctl.domain.errors import PrivctlError
from tests.models.tasks.small import architecture, words

CHAT = [{"messages": [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "a dog"}]}] * 8
#: Partial results of scans: the data, which shard, its file, and more options.
SHARDS = [
    ("mails.jsonl", "1/2", "first.jsonl", []),
    ("mails.jsonl", "2/2", "second.jsonl.gz", []),
    ("mails.jsonl", "2/2", "kinds.jsonl", ["--kinds", "email"]),
    ("mails.jsonl", "2/3", "thirds.jsonl", []),
    ("calls.jsonl", "2/2", "calls-2.jsonl", []),
]
BUDGET = ["--delta", "1e-5"]


def lines(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, adapters that are not right, and data in the forms people have."""
    folder = tmp_path_factory.mktemp("mistakes")
    base = architecture(folder / "base", "gpt2", n_layer=1)
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(base))
    network.save_pretrained(base)
    words().tokenizer.save_pretrained(base)
    for name, named in (("lost", str(folder / "nowhere")), ("hub", "gpt2")):
        (folder / name).mkdir()
        settings = {"peft_type": "LORA", "r": 4, "target_modules": ["c_attn"], "base_model_name_or_path": named}
        (folder / name / "adapter_config.json").write_text(json.dumps(settings))
        save_file({"w": torch.ones(2, 2)}, folder / name / "adapter_model.safetensors")
    torch.save({"w": torch.ones(2, 2)}, folder / "weights.pt")
    lines(folder / "train.jsonl", [{"text": "the cat sat on a mat"}] * 8)
    shutil.copy(folder / "train.jsonl", folder / "copy.jsonl")
    lines(folder / "chat.jsonl", CHAT)
    lines(folder / "roles.jsonl", [{"messages": [{"content": "a cat"}]}] * 8)
    lines(folder / "empty-chat.jsonl", [{"messages": []}] * 8)
    pq.write_table(pa.table({"sentence": ["a cat"] * 8}), folder / "a.parquet")
    (folder / "b.csv").write_text("text\na cat\n")
    (folder / "classifier").mkdir()
    (folder / "classifier" / "config.json").write_text(
        '{"model_type": "bert", "architectures": ["BertForSequenceClassification"]}'
    )
    (folder / "semicolons.csv").write_text("text;label\na cat;1\n")
    (folder / "scores.csv").write_text("id,score,member\n" + "".join(f"r{i},{i / 9},{i % 2}\n" for i in range(40)))
    (folder / "words.csv").write_text("id,score,member\nr1,high,1\nr2,low,0\n")
    (folder / "twice.csv").write_text("id,score,member\nr1,1,1\nr1,2,0\n")
    (folder / "yes.csv").write_text("id,score,member\nr1,1,yes\nr2,2,no\n")
    (folder / "nan.csv").write_text("id,score,member\nr1,nan,1\nr2,2,0\n")
    (folder / "ledger.json").write_text('[{"type": "sampled-gaussian", "noise_multiplier": -1, "steps": 1}]')
    (folder / "typo.json").write_text('[{"type": "gausian", "noise_multiplier": 1}]')
    (folder / "history.json").write_text("[[1.0, 2.0, 10]]")
    (folder / "none.json").write_text("[]")
    lines(folder / "mails.jsonl", [{"text": f"write to a{i}@example.org"} for i in range(9)])
    lines(folder / "calls.jsonl", [{"text": "call +44 20 7946 0958"}] * 9)
    for data, shard, name, more in SHARDS:
        output = str(folder / name)
        assert run(["secrets", "scan", str(folder / data), "--shard", shard, "-o", output, "-q", *more]) == 0
    (folder / "cut.gz").write_bytes((folder / "second.jsonl.gz").read_bytes()[:-20])
    lines(folder / "book.jsonl", [{"id": "email-1", "kind": "email", "value": "a0@example.org", "records": [99]}])
    (folder / "text.parquet").write_text("no table")
    lines(folder / "twelve.jsonl", [{"text": f"the cat sat on {i} mats"} for i in range(12)])
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0\0")
    (folder / "model.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    (folder / "bytes.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    shutil.copy(Path(__file__).parents[1] / "golden" / "report-1.json", folder / "other.report.json")
    return folder


@pytest.fixture
def here(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(inputs)
    return inputs


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


TRAIN = ["retrain", "dp-sgd", "base", "--epsilon", "8", "--steps", "2", "--batch-size", "4", "-o", "out"]
EXTRACT = ["audit", "extraction", "base", "--train", "train.jsonl", "--held-out", "mails.jsonl", "--prefix-tokens", "1"]
SCORE = ["audit", "score-records", "base", "--members", "train.jsonl", "--nonmembers", "mails.jsonl"]
PROTECT = ["secrets", "plan", "mails.jsonl", "--steps", "9", "--batch-size", "3", "-o", "p.safetensors", "--secrets"]
PLAIN = ["retrain", "plain", "base", "--steps", "2", "--batch-size", "4", "-o", "out"]
#: The call, its exit code, and what the sentence must hold.
MISTAKES = [
    ([*PLAIN, "--data", "chat.jsonl"], 3, "template"),
    ([*PLAIN, "--data", "roles.jsonl"], 3, "role"),
    ([*PLAIN, "--data", "empty-chat.jsonl"], 3, "an empty list"),
    ([*PLAIN, "--data", "chat.jsonl", "--text-column", "messages"], 3, "without --text-column"),
    ([*PLAIN, "--data", "nothing*.parquet"], 3, "nothing*.parquet"),
    ([*PLAIN, "--data", "[ab].*"], 3, "format"),
    ([*PLAIN, "--data", "base"], 3, "base is a model, not data"),
    ([*PLAIN, "--data", "semicolons.csv"], 3, "separates its columns by semicolons: 'text;label'"),
    (
        ["retrain", "plain", "classifier", *PLAIN[3:], "--data", "semicolons.csv"],
        3,
        "separates its columns by semicolons: 'text;label'",
    ),
    (["audit", "scores", "semicolons.csv"], 3, "separates its columns by semicolons: 'text;label'"),
    ([*TRAIN, "--data", "train.jsonl", "--group-by", "who"], 2, "--unit"),
    ([*PLAIN, "--data", "~/nothing.jsonl"], 3, "write $HOME"),
    (["retrain", "plain", "~/nothing", "--data", "train.jsonl", "-o", "out"], 3, "write $HOME"),
    ([*PLAIN, "--data", "train.jsonl", "--log", "tensorbord"], 2, "tensorboard"),
    ([*PLAIN, "--data", "train.jsonl", "--text-column", "body"], 3, "body"),
    ([*PLAIN, "--data", "train.jsonl", "--save-adapter"], 2, "--lora-rank"),
    ([*PLAIN, "--data", "train.jsonl", "--base", "base"], 2, "--base"),
    ([*TRAIN, "--data", "train.jsonl", "--convert", "batch-norm"], 2, "batch"),
    (["retrain", "plain", "lost", "--data", "train.jsonl", "-o", "out"], 3, "nowhere"),
    (["retrain", "plain", "hub", "--data", "train.jsonl", "-o", "out"], 3, "--base"),
    (["audit", "hub", "--members", "train.jsonl", "--nonmembers", "chat.jsonl"], 3, "--base"),
    (["audit", "base", "--members", "train.jsonl"], 2, "--nonmembers"),
    (["audit", "lost/adapter_model.safetensors", "--base", "base"], 3, "give its folder, lost"),
    (
        ["retrain", "plain", "lost/adapter_model.safetensors", "--data", "train.jsonl", "-o", "out"],
        3,
        "its folder, lost",
    ),
    (["verify", "weights.pt"], 3, "is a pickle file"),
    (["verify", "model.gguf"], 3, "is a GGUF file"),
    (["report", "model.gguf"], 3, "is a GGUF file"),
    (["verify", "model.onnx"], 3, "its folder or its .safetensors file"),
    (["verify", "bytes.h5"], 3, "its folder or its .safetensors file"),
    (["verify", "words.csv"], 3, "is not a privctl report, which is a JSON object; give NAME.report.json"),
    (["verify", "train.jsonl"], 3, "holds a JSON object on each line, and is not a report"),
    (["audit", "base", "--members", "train.jsonl", "--nonmembers", "train.jsonl"], 2, "same file"),
    (["audit", "scores", "words.csv"], 3, "high"),
    (["audit", "scores", "twice.csv"], 3, "r1"),
    (["audit", "scores", "yes.csv"], 3, "yes"),
    (["audit", "scores", "nan.csv"], 3, "nan"),
    (["audit", "scores", "scores.csv", "--score-column", "loss"], 3, "loss"),
    (["audit", "scores", "scores.csv", "--models"], 3, "remove the column"),
    (["audit", "scores", "scores.csv", "--claim", "1"], 2, "--claim"),
    (["account", "--ledger", "ledger.json", *BUDGET], 3, "noise_multiplier"),
    (["account", "--ledger", "typo.json", *BUDGET], 3, "gausian"),
    (["account", "--ledger", "history.json", *BUDGET], 3, "between 0 and 1"),
    (["account", "--ledger", "none.json", *BUDGET], 3, "at least one"),
    (["account", "--ledger", "absent.json", *BUDGET], 3, "absent.json"),
    (["account", "--ledger", "train.jsonl", *BUDGET], 3, "train.jsonl"),
    (["report", "base", "--plot", "c.svg"], 3, "give the report that was written with it"),
    (["report", "train.jsonl"], 3, "train.jsonl"),
    (["sign", "base", "--key", "absent.key"], 3, "give the report that was written with it"),
    (["secrets", "scan", "chat.jsonl", "--by", "user", "-o", "s.jsonl"], 3, "user"),
    ([*TRAIN, "--data", "train.jsonl", "--fsdp"], 2, "torchrun"),
    ([*TRAIN, "--data", "train.jsonl", "--fsdp", "--dry-run"], 2, "remove --fsdp"),
    ([*TRAIN, "--data", "train.jsonl", "--held-out", "train.jsonl"], 2, "not trained on"),
    ([*TRAIN, "--data", "train.jsonl", "--held-out", "base/../train.jsonl"], 2, "not trained on"),
    ([*TRAIN, "--data", "train.jsonl", "--held-out", "copy.jsonl"], 2, "copy.jsonl is a copy of the training data"),
    ([*TRAIN, "--data", "train.jsonl", "--data", "train.jsonl"], 2, "twice"),
    ([*TRAIN, "--data", "train.jsonl", "--batch-size", "100"], 2, "8 examples"),
    ([*TRAIN, "--data", "train.jsonl", "--noise-multiplier", "1"], 2, "exactly one"),
    ([*TRAIN, "--data", "train.jsonl", "--train", "nothing.*"], 2, "matches no parameter"),
    ([*TRAIN, "--data", "train.jsonl", "--base-bits", "4"], 2, "--save-adapter"),
    ([*TRAIN, "--data", "train.jsonl", "--resize", "8", "8"], 2, "--resize"),
    ([*TRAIN, "--data", "train.jsonl", "--secrets", "book.jsonl"], 3, "privctl secrets plan"),
    ([*TRAIN, "--data", "train.jsonl", "--output", "base", "--force"], 2, "cannot replace it"),
    ([*TRAIN, "--data", "train.jsonl", "--output", ".", "--force"], 2, "a name of its own"),
    ([*TRAIN, "--data", "train.jsonl", "--bf16", "--device", "quantum"], 2, "quantum"),
    (["audit", "base", "--members", "train.jsonl", "--nonmembers", "mails.jsonl", "-o", "/"], 2, "a name of its own"),
    (["audit", "base", "--canaries", "mails.jsonl"], 3, "canary plant"),
    (
        ["audit", "base", "--members", "twelve.jsonl", "--nonmembers", "mails.jsonl", "--shadow", "hub"],
        3,
        "hub holds no",
    ),
    ([*EXTRACT, "--suffix-tokens", "2", "--prompts", "text.parquet"], 3, "text.parquet"),
    (["audit", "base", "--secrets", "book.jsonl"], 2, "--data"),
    (["canary", "plant", "mails.jsonl", "-o", "."], 2, "a name of its own"),
    (["noise", "base", "--noise-stddev", "0.1", "-o", "."], 2, "a name of its own"),
    ([*SCORE, "-o", "s.csv"], 2, ".parquet"),
    ([*SCORE, "-o", "s.parquet", "--attack", "midpoint"], 2, "audit membership"),
    ([*SCORE, "-o", "s.parquet", "--attack", "reference"], 2, "--reference"),
    ([*SCORE, "-o", "s.parquet", "--text-column", "body"], 3, "body"),
    ([*SCORE, "-o", "s.parquet", "--task", "image-classification"], 3, "not an image classifier"),
    ([*SCORE, "-o", "text.parquet"], 2, "--force"),
    ([*SCORE[:-1], "train.jsonl", "-o", "s.parquet"], 2, "two sets"),
    (["audit", "scores", "text.parquet"], 3, "text.parquet"),
    (["audit", "scores", "scores-*.parquet"], 3, "matches no file"),
    (["secrets", "scan", "mails.jsonl", "--shard", "0/2", "-o", "s.jsonl"], 2, "I/N"),
    (["secrets", "scan", "mails.jsonl", "--shard", "1/2"], 2, "--output"),
    (["secrets", "scan", "mails.jsonl", "--shard", "1/2", "-o", "mails.jsonl", "-f"], 2, "overwritten"),
    (["secrets", "merge", "first.jsonl", "-o", "s.jsonl"], 3, "shard 2 of 2 is missing"),
    (["secrets", "merge", "first.jsonl", "first.jsonl", "-o", "s.jsonl"], 3, "each shard once"),
    (["secrets", "merge", "first.jsonl", "thirds.jsonl", "-o", "s.jsonl"], 3, "one scan"),
    (["secrets", "merge", "first.jsonl", "calls-2.jsonl", "-o", "s.jsonl"], 3, "other data"),
    (["secrets", "merge", "first.jsonl", "kinds.jsonl", "-o", "s.jsonl"], 3, "email, and first.jsonl without --kinds"),
    (["secrets", "merge", "first.jsonl", "cut.gz", "-o", "s.jsonl"], 3, "cut.gz"),
    (["secrets", "merge", "first.jsonl", "mails.jsonl", "-o", "s.jsonl"], 3, "--shard"),
    (["secrets", "merge", "first.jsonl", "second.jsonl.gz", "-o", "first.jsonl", "-f"], 2, "another --output"),
    ([*PROTECT, "first.jsonl"], 3, "secrets merge"),
    ([*PROTECT, "book.jsonl"], 3, "99"),
    ([*PROTECT, "absent.jsonl"], 3, "absent.jsonl"),
    ([*PLAIN, "--data", "train.jsonl", "--held-out", "loop.jsonl"], 3, "loop.jsonl"),
    (["audit", "split", "loop.jsonl", "-o", "s"], 3, "loop.jsonl"),
    (["canary", "plant", "train.jsonl", "loop.jsonl", "-o", "p.jsonl"], 3, "loop.jsonl"),
    (["secrets", "scan", "loop.jsonl", "-o", "s.jsonl"], 3, "loop.jsonl"),
    (["noise", "base", "--noise-stddev", "1", "-o", "loop.jsonl"], 2, "loop.jsonl"),
]


@pytest.mark.parametrize(
    ("call", "code", "part"), MISTAKES, ids=[" ".join(call[:3] + call[-2:]) for call, *_ in MISTAKES]
)
def test_a_mistake_is_one_sentence(
    call: list[str], code: int, part: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    found = run(call)
    stderr = capsys.readouterr().err
    assert found == code
    assert part in stderr
    (sentence,) = [line for line in stderr.splitlines() if not re.match(r"Usage: |Try |$|privctl: task ", line)]
    assert "Traceback" not in sentence
    assert len(sentence) < 500
    assert files(here) == before


SETTINGS = [
    ("[retrain.plain]\nepochz = 2\n", "epochz"),
    ("[retrian]\nepochs = 2\n", "retrian"),
    ('[retrain.plain]\nepochs = "many"\n', "many"),
    ("[retrain.plain]\nepochs = [1, 2]\n", "epochs"),
    ("retrain.plain.epochs = \n", "privctl.toml"),
]


@pytest.mark.parametrize(("settings", "part"), SETTINGS)
def test_a_mistake_in_a_settings_file_names_the_file(
    settings: str,
    part: str,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("privctl.toml").write_text(settings)
    assert run(["retrain", "plain", str(here / "base"), "--data", str(here / "train.jsonl"), "-o", "out"]) in (2, 3)
    stderr = capsys.readouterr().err
    assert "privctl.toml" in stderr
    assert part in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["privctl.toml"]


def opacus(history: Any) -> Any:
    return SimpleNamespace(accountant=SimpleNamespace(history=history))


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: privctl.retrain("dp-sdg", "base", data="train.jsonl", epsilon=8, output="out"), "dp-sgd"),
    (lambda: privctl.retrain("plain", "base", data="train.jsonl", epochz=1, output="out"), "did you mean epochs?"),
    (lambda: privctl.account(epsilon=1, delta=1e-5, sample_rate=2, steps=10), "sample"),
    (lambda: privctl.account(epsilon="one", delta=1e-5, sample_rate=0.1, steps=10), "epsilon"),
    (lambda: privctl.audit("base", members="train.jsonl", nonmembers="absent.jsonl"), "absent.jsonl"),
    (lambda: privctl.noise("base", epsilon=-1), "epsilon"),
    (lambda: privctl.verify("train.jsonl"), "train.jsonl"),
    (lambda: privctl.from_opacus(opacus([]), model="base", examples=100, delta=1e-5), "history is empty"),
    (
        lambda: privctl.from_opacus(opacus([(1.0, 0.1, 10)]), model="absent.safetensors", examples=100, delta=1e-5),
        "absent",
    ),
]


@pytest.mark.parametrize(("call", "part"), CALLS)
def test_a_mistake_in_python_is_one_sentence(call: Callable[[], Any], part: str, here: Path) -> None:
    before = files(here)
    with pytest.raises(PrivctlError) as raised:
        call()
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
    assert files(here) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["scan", "mails.jsonl"], "privctl has no command 'scan'; did you mean privctl secrets scan?"),
        (["dp-sgd", "base"], "privctl has no command 'dp-sgd'; did you mean privctl retrain dp-sgd?"),
        (["retrain", "dp-sgd", "base", "--patient", "who"], "No such option '--patient'. Did you mean '--unit'?"),
        (["audit", "base", "--patient", "who"], "No such option '--patient'. Did you mean '--group-by'?"),
        (["audit", "base", "--non-members", "a.csv"], "No such option '--non-members'. Did you mean '--nonmembers'?"),
        (["audit", "base", "--validation-file", "a"], "No such option '--validation-file'. Did you mean '--held-out'?"),
    ],
    ids=lambda each: " ".join(each[:2]) if isinstance(each, list) else "",
)
def test_what_was_meant_is_named(call: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(call) == 2
    assert message in capsys.readouterr().err
