"""``privctl shadow``: halves, resuming, stacking, and what the audit makes of the scores."""

from __future__ import annotations

import importlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from audits.membership.shadows import (
    coins,
    read_shadow,
    read_shadows,
    scores_path,
    summary,
    weights_digest,
)
from audits.scores.subject import load_subject, read
from privctl.cli import run
from privctl.data.records import read_records
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.reports.codec import decode
from privctl.reports.files import read_report
from privctl.shadow.halves import train_one
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import open_checkpoint
from tests.audits.other import sentences
from tests.data.test_changed_while_read import changing
from tests.forked import Forked
from tests.models.tasks.small import architecture, words

KINDS = {
    "gpt2": "causal-lm",
    "bert": "masked-lm",
    "roberta": "text-classification",
    "vit": "image-classification",
    "resnet": "image-classification",
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(folder: Path, kind: str = "gpt2") -> Path:
    """An architecture without weights."""
    architecture(folder, kind, **({} if kind == "resnet" else {"initializer_range": 0.05}))
    words().tokenizer.save_pretrained(folder)
    return folder


def data(path: Path, seed: int, count: int = 20) -> Path:
    drawn = random.Random(seed)
    lines = [{"text": text, "label": drawn.choice("xy")} for text in sentences(count, seed)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def images(path: Path, seed: int, side: int, count: int = 20) -> Path:
    drawn = np.random.default_rng(seed)
    pixels = drawn.integers(256, size=(count, side, side, 3), dtype=np.uint8)
    np.savez(path, images=pixels, labels=drawn.integers(2, size=count))
    return path


def call(folder: Path, output: Path, *more: str, kind: str = "gpt2") -> list[str]:
    """The arguments of a small run on two files, made where they are not there yet."""
    model = folder / kind
    if not model.exists():
        start(model, kind)
        for seed in (1, 2):
            if kind in ("vit", "resnet"):
                images(folder / f"{kind}{seed}.npz", seed, 8 if kind == "vit" else 32)
            else:
                data(folder / f"{kind}{seed}.jsonl", seed)
    files = sorted(str(path) for path in folder.glob(f"{kind}[12].*"))
    more = (*more, "--norm", "frozen") if kind == "resnet" else more
    return [
        "shadow", str(model), "--data", files[0], "--data", files[1], "--task", KINDS[kind], "--count", "4",
        "--steps", "5", "--batch-size", "8", "--learning-rate", "5e-3", "--device", "cpu", "-q", "-o", str(output),
        *more,
    ]  # fmt: skip


# Those left quick have attention, images, and every task between them.
@pytest.mark.parametrize("kind", [k if k == "gpt2" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_stacked_and_single_models_agree(kind: str, tmp_path: Path) -> None:
    assert run(call(tmp_path, tmp_path / "stacked", "--vectorize", "4", "--weight-decay", "0.1", kind=kind)) == 0
    assert run(call(tmp_path, tmp_path / "single", "--vectorize", "1", "--weight-decay", "0.1", kind=kind)) == 0
    for index in range(4):
        stacked, single = (read_shadow(scores_path(tmp_path / name, index)) for name in ("stacked", "single"))
        assert stacked.lp == pytest.approx(single.lp, abs=2e-4)
        assert single.lp.std() > 0.004, "scores that hardly vary would agree whatever was trained"
        assert np.array_equal(stacked.included, single.included)
        assert np.array_equal(stacked.digests, single.digests)
    first, second = (read_shadow(scores_path(tmp_path / "single", index)).lp for index in (0, 1))
    assert np.abs(first - second).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "momentum"])
def test_stacked_gradient_descent_agrees_too(optimizer: str, tmp_path: Path) -> None:
    more = ["--optimizer", optimizer, "--weight-decay", "0.5", "--learning-rate", "0.3", "--schedule", "linear"]
    more += ["--momentum", "0.9"] if optimizer == "momentum" else []
    for name, at_once in (("stacked", "4"), ("single", "1")):
        assert run(call(tmp_path, tmp_path / name, *more, "--vectorize", at_once)) == 0
    stacked, single = (read_shadow(scores_path(tmp_path / name, 2)) for name in ("stacked", "single"))
    assert stacked.lp == pytest.approx(single.lp, abs=2e-4)


@pytest.mark.slow
def test_converted_batch_normalisation(tmp_path: Path) -> None:
    """The same networks as with frozen statistics at the start, but for rounding; each is saved without statistics."""
    frozen = call(tmp_path, tmp_path / "frozen", kind="resnet")
    converted = [w for w in call(tmp_path, tmp_path / "converted", kind="resnet") if w not in ("--norm", "frozen")]
    more = ["--convert", "batch-norm", "--keep-models", "--vectorize", "2"]
    assert run(frozen) == 0
    assert run([*converted, *more]) == 0
    for index in range(4):
        tensors = load_file(tmp_path / "converted" / f"shadow-000{index}" / "model.safetensors")
        statistics = {name: array for name, array in tensors.items() if "running" in name}
        assert len(statistics) >= 12
        assert all((array == float("var" in name)).all() for name, array in statistics.items())
    assert json.loads((tmp_path / "converted" / "shadow.report.json").read_text())["parameters"]["converted"]


def fixed_halves(seed: int, index: int, records: int) -> np.ndarray:
    """Every pair splits the records at the same place."""
    return (np.arange(records) < records // 2) == index % 2


def one_coin(seed: int, index: int, records: int) -> np.ndarray:
    """Coins that depend on the pair too little."""
    return coins(seed, 0 if index < 6 else index, records)


def biased(seed: int, index: int, records: int) -> np.ndarray:
    return coins(seed, index, records) & coins(seed + 1, index, records)


def random_halves(draw: Callable[[int, int, int], np.ndarray]) -> bool:
    """Whether 32 models over 2000 records look like fair coins that are independent but within a pair, at 6 sigma."""
    found = np.stack([draw(7, index, 2000) for index in range(32)]).astype(np.float64)
    sizes = np.abs(found.mean(axis=1) - 0.5) < 6 * 0.5 / np.sqrt(2000)
    signs = 2 * found - 1
    across = np.abs(signs[::2] @ signs[::2].T / 2000)[~np.eye(16, dtype=np.bool_)] < 6 / np.sqrt(2000)
    halves = (found.sum(axis=0) == 16).all()
    neighbours = np.abs((signs[:, 1:] * signs[:, :-1]).mean(axis=1)) < 6 / np.sqrt(2000)
    return bool(sizes.all() and across.all() and halves and neighbours.all())


def test_halves_are_random() -> None:
    assert random_halves(coins)
    for draw in (fixed_halves, one_coin, biased):
        assert not random_halves(draw)
    assert not np.array_equal(coins(0, 0, 50), coins(1, 0, 50))


@pytest.mark.slow
def test_a_second_call_trains_only_what_is_missing(shadows: Path, tmp_path: Path) -> None:
    shutil.copytree(shadows, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "shadows"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    scores_path(folder, 2).unlink()
    assert run(call(tmp_path, folder, "--count", "6")) == 0
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert len(after) == 6
    assert {name for name in before if before[name] == after[name]} == set(before) - {"shadow-0002.scores.safetensors"}
    report = read_report(folder / "shadow.report.json")
    assert report.parameters["count"] == 6
    assert len(report.outputs) == 6
    assert report.parameters["learning_rate"] == 5e-3
    assert {item.role for item in report.inputs} == {"config", "tokenizer", "data"}


def test_scores_do_not_depend_on_which_models_are_trained_together(shadows: Path, tmp_path: Path) -> None:
    assert run(call(tmp_path, tmp_path / "b", "--vectorize", "3")) == 0
    for index in range(4):
        one, other = (read_shadow(scores_path(folder, index)).lp for folder in (shadows / "shadows", tmp_path / "b"))
        assert one == pytest.approx(other, abs=2e-4)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_share_the_models(processes: int, shadows: Path, tmp_path: Path, forked: Forked) -> None:
    shutil.copytree(shadows, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "b"
    more = ["--count", "5", "--vectorize", "1", "--json"]  # one more than is there, which no two processes can share
    first, *others = forked.together(processes, call(tmp_path, folder, *more))
    assert [each.code for each in (first, *others)] == [0] * processes, first.errors
    assert not any(each.out for each in others)
    report = read_report(folder / "shadow.report.json")
    assert decode(first.out, "shared") == report
    assert [item.path for item in report.outputs] == [scores_path(folder, index).name for index in range(5)]
    for index in range(4):
        one, other = (read_shadow(scores_path(place, index)).lp for place in (shadows / "shadows", folder))
        assert one == pytest.approx(other, abs=2e-4)


#: The command, of which the second process cannot write its models' scores.
FULL = """
import errno, os, sys
from privctl.cli import run
from privctl.shadow.folder import ShadowFolder

def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

if os.environ["RANK"] == "1":
    ShadowFolder.add = full
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_cannot_write_ends_all(shadows: Path, tmp_path: Path, forked: Forked) -> None:
    shutil.copytree(shadows, tmp_path, dirs_exist_ok=True)
    (tmp_path / "worker.py").write_text(FULL)
    arguments = call(tmp_path, tmp_path / "b", "--vectorize", "1")
    for process in forked.together(2, arguments, script=str(tmp_path / "worker.py")):
        assert process.code == 4, process.errors[-2000:]
        assert "the operating system refused: No space left on device" in process.errors.splitlines()[-1]


@pytest.fixture(scope="module")
def shadows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``shadows`` and the data beside them must not be changed."""
    folder = tmp_path_factory.mktemp("made")
    assert run(call(folder, folder / "shadows")) == 0
    return folder


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--learning-rate", "0.1"], "was made with learning_rate 0.005, not 0.1; go on with the same settings"),
        (["--seed", "3"], "was made with seed 0, not 3"),
        (["--max-length", "20"], "was made with scoring"),
    ],
)
def test_other_settings_are_refused(
    shadows: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert run(call(shadows, shadows / "shadows", *more)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--count", "3"], 2, "--count is 3; with fewer than 4 models"),
        (["--vectorize", "0"], 2, "--vectorize is 0"),
        (["--vectorize", "2", "--dropout"], 2, "--vectorize 2 cannot be combined with --dropout"),
        (["--resize", "8", "8"], 2, "--resize does not apply to the task causal-lm"),
        (["--labels", "x,y"], 2, "--labels does not apply"),
        (["--batch-size", "50"], 2, "--batch-size 50 exceeds the data, which holds 20 examples"),
        (["--learning-rate", "1e12"], 3, "lower --learning-rate"),
    ],
)
def test_a_mistake_is_refused_and_stores_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, says: str
) -> None:
    assert run(call(tmp_path, tmp_path / "shadows", *more)) == code
    assert says in capsys.readouterr().err
    assert not list((tmp_path / "shadows").glob("*.safetensors"))


def described(folder: Path) -> Mapping[str, Any]:
    scoring: Mapping[str, Any] = read_shadow(scores_path(folder, 0)).settings["scoring"]
    return scoring


def digests(path: Path) -> list[bytes]:
    return [record.digest for record in read_records(path)]


def test_the_audit_finds_its_records_in_any_order(shadows: Path, tmp_path: Path) -> None:
    shutil.copytree(shadows, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "shadows"
    wanted = [*digests(tmp_path / "gpt22.jsonl")[::-1], *digests(tmp_path / "gpt21.jsonl")[3:9]]
    found = read_shadows(folder, wanted, "", described(folder))
    pool = [*digests(tmp_path / "gpt21.jsonl"), *digests(tmp_path / "gpt22.jsonl")]
    one = read_shadow(scores_path(folder, 3))
    assert found.lp[3].tolist() == [one.lp[pool.index(name)] for name in wanted]
    assert summary(found) == {"models": 4, "fewest_in": 2, "fewest_out": 2}
    data(tmp_path / "other.jsonl", 9)
    with pytest.raises(InputError, match="20 of 60 records are not among those"):
        read_shadows(folder, [*pool, *digests(tmp_path / "other.jsonl")], "", described(folder))
    with pytest.raises(CommandError, match="were scored with max_length 40, not 30; score the model the same way"):
        read_shadows(folder, pool, "", {**described(folder), "max_length": 30})
    for index in (0, 1):
        scores_path(folder, index).unlink()
    lacking = int((coins(0, 2, 40).astype(int) + coins(0, 3, 40) > 0).sum())
    with pytest.raises(InputError, match=f"{lacking} of 40 records have fewer than 2 of the 2 shadow models"):
        read_shadows(folder, pool, "", {"task": "causal-lm", **read_shadow(scores_path(folder, 2)).settings["scoring"]})


def test_a_target_among_the_shadow_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shadows"
    assert run(call(tmp_path, folder, "--keep-models")) == 0
    model = folder / "shadow-0001"
    subject = load_subject(model, device="cpu")
    kept = read_shadow(scores_path(folder, 1))
    with open_checkpoint(model) as checkpoint:
        tensors = [tensor for file in checkpoint.files for tensor in hash_tensors(file).tensors]
    assert weights_digest(tensors) == kept.weights
    rows = subject.rows(read(subject, tmp_path / "gpt21.jsonl")).rows
    lp = [float(subject.scorer.score([row])[0].mean()) for row in rows]
    assert lp == pytest.approx(kept.lp[:20].tolist(), abs=1e-5), "the kept weights are those that were scored"
    audit = [
        "audit", str(model), "--members", str(tmp_path / "gpt21.jsonl"), "--nonmembers", str(tmp_path / "gpt22.jsonl"),
        "--device", "cpu", "-q", "--shadow", str(folder),
    ]  # fmt: skip
    assert run([*audit, "-o", str(tmp_path / "a.report.json")]) == 2
    assert "is itself the shadow model of" in capsys.readouterr().err
    assert (folder / "shadow-0001.report.json").is_file()


def test_files_that_were_changed_are_refused(shadows: Path, tmp_path: Path) -> None:
    shutil.copytree(shadows, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "shadows"
    path = scores_path(folder, 0)
    whole = path.read_bytes()
    included = read_shadow(path).included
    path.write_bytes(whole.replace(included.tobytes(), np.sort(included).tobytes()))
    with pytest.raises(InputError, match="the coins of its seed 0 did not choose"):
        read_shadow(path)
    path.write_bytes(whole.replace(b'\\"seed\\": 0', b'\\"seed\\":-1'))
    with pytest.raises(InputError, match="does not hold the scores of a shadow model"):
        read_shadow(path)
    save_file(load_file(path), path)
    with pytest.raises(InputError, match="does not hold the scores of a shadow model"):
        read_shadow(path)
    with pytest.raises(InputError, match="holds no shadow scores"):
        read_shadows(tmp_path / "gpt2", [], "", {})


def test_records_that_repeat_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = call(tmp_path, tmp_path / "shadows")
    (tmp_path / "gpt22.jsonl").write_text(
        (tmp_path / "gpt21.jsonl").read_text() + (tmp_path / "gpt22.jsonl").read_text()
    )
    assert run([argument for argument in arguments if argument != "-q"]) == 0
    assert "left out: 20 records that repeat an earlier one" in capsys.readouterr().err
    assert len(read_shadow(scores_path(tmp_path / "shadows", 0)).lp) == 40


def test_an_interrupted_run_loses_only_what_it_was_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, whole = tmp_path / "shadows", train_one
    begun: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        begun.append(len(begun))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr("privctl.shadow.run.train_one", interrupted)
    assert run(call(tmp_path, folder, "--vectorize", "1")) == 130
    complete = [scores_path(folder, i).name for i in (0, 1)]
    assert sorted(path.name for path in folder.iterdir()) == [*complete, "shadow.report.json"]
    assert [found.path for found in read_report(folder / "shadow.report.json").outputs] == complete
    kept = [scores_path(folder, i).read_bytes() for i in (0, 1)]
    assert run(call(tmp_path, folder, "--vectorize", "1")) == 0
    assert len(begun) == 5, "the third was begun twice"
    assert [scores_path(folder, i).read_bytes() for i in (0, 1)] == kept
    assert run(call(tmp_path, tmp_path / "at-once", "--vectorize", "1")) == 0
    assert scores_path(folder, 3).read_bytes() == scores_path(tmp_path / "at-once", 3).read_bytes()


@pytest.mark.parametrize(
    ("name", "called"), [("gpt21.jsonl", "pool:recipe_for"), ("gpt2/config.json", "run:audited_model")]
)
def test_files_that_change_while_models_are_made_are_not_named(
    name: str, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = call(tmp_path, tmp_path / "shadows", "--vectorize", "1")
    module, function = called.split(":")
    found = importlib.import_module(f"privctl.shadow.{module}")
    monkeypatch.setattr(found, function, changing(tmp_path / name, getattr(found, function)))
    assert run(asked) == ExitCode.BAD_INPUT
    assert f"{name} was changed while it was read" in " ".join(capsys.readouterr().err.split())
    assert not [*(tmp_path / "shadows").glob("*.report.json")]
