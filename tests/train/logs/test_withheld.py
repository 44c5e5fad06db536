"""Exact measures of private examples: in nothing that a private run writes or says, but for a private file."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.train.logs.withheld import HELD_OUT_IS_PUBLIC
from tests.audits.tiny import save_model, sentences, write_jsonl
from tests.few import few

#: What the terminal, the report and the page call the measures of training examples.
_PRIVATE = ("training loss", "training_loss", "clipped_fraction", "median_norm", "clipped gradients", "norm before")
_PRIVATE += ("median_derivatives", "clipped_derivatives", "clipped vectors", "signs of differences")
METHODS = {
    "dp-sgd": ["--noise-multiplier", "1", "--delta", "1e-5"],
    "dpquant": ["--noise-multiplier", "1", "--delta", "1e-5", "--format", "luq-fp4", "--layers", "random"],
    "ferret": ["--release", "gaussian", "--epsilon", "20", "--delta", "1e-5", "--groups", "4", "--public-seed", "0a1b"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("withheld")
    save_model(folder / "start")
    write_jsonl(folder / "data.jsonl", sentences(40, seed=1))
    write_jsonl(folder / "held-out.jsonl", sentences(20, seed=2))
    return folder


def train(folder: Path, method: str, output: Path, *more: str) -> int:
    held_out = ["--held-out", str(folder / "held-out.jsonl")]
    command = ["retrain", method, str(folder / "start"), "--data", str(folder / "data.jsonl"), *held_out]
    return run(
        [
            *command,
            "--micro-tokens",
            "160",
            "--epochs",
            "1",
            "--batch-size",
            "10",
            "--device",
            "cpu",
            "-o",
            str(output),
            *more,
        ]
    )


def everything(folder: Path) -> str:
    """All that a run and a page of its report left behind, files and names."""
    return "\n".join(f"{p.name} {p.read_bytes().decode('utf-8', 'replace')}" for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "method",  # dpquant trains and reports with the loop of dp-sgd
    [pytest.param(name, marks=pytest.mark.slow) if name == "dpquant" else name for name in METHODS],
)
def test_a_private_run_shows_nothing_that_was_not_noised(
    folder: Path, tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert train(folder, method, output, *METHODS[method], "--show-unprotected") == 0
    out, err = capfd.readouterr()
    private = output.with_name("out.private-history.json")
    data = json.loads(private.read_text())
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "not for release" in data["warning"]
    exact = [v for entry in data["history"] for k, v in entry.items() if not k.startswith("held_out") and v]
    assert exact, "there was something to withhold"
    held_out_figures = {f"{v:.4g}" for entry in data["history"] for k, v in entry.items() if k.startswith("held_out")}
    private.unlink()
    assert run(["report", str(tmp_path / "out.report.json"), "-o", str(tmp_path / "page.html"), "-q"]) == 0
    for kind in ("markdown", "model-card", "intoto"):
        options = ["--format", kind, "-o", str(tmp_path / f"made.{kind}"), "-q"]
        assert run(["report", str(tmp_path / "out.report.json"), *options]) == 0
    left = everything(tmp_path) + out + err
    for word in _PRIVATE:
        assert word not in left
    for value in exact:
        if len(repr(value)) > 6:  # a share such as 0.9 is any number
            assert repr(value) not in left
            # a held-out measure may begin with the same digits
            assert f"{value:.4g}" not in set(re.findall(r"[\d.]+", out + err)) - held_out_figures
    words = " ".join(out.split())
    assert "withheld: losses, norms and fractions measured on the training examples" in words
    assert HELD_OUT_IS_PUBLIC in words
    assert "held-out loss" in words
    page = (tmp_path / "page.html").read_text()
    assert "losses, norms and fractions measured on the training examples" in page


def test_without_the_flag_there_is_no_private_file(folder: Path, tmp_path: Path) -> None:
    assert train(folder, "dp-sgd", tmp_path / "out", *METHODS["dp-sgd"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.report.json"]


@pytest.mark.parametrize("method", few(["clipped", "plain"], 1))
def test_a_run_without_protection_shows_what_it_did(
    folder: Path, tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, method, tmp_path / "out") == 0
    assert "training loss" in capfd.readouterr().out
    report = json.loads((tmp_path / "out.report.json").read_text())
    assert "training_loss" in report["parameters"]["history"][0]
    assert train(folder, method, tmp_path / "again", "--show-unprotected") == 2


def test_a_private_file_is_not_replaced_unasked(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.private-history.json").write_text("mine")
    assert train(folder, "dp-sgd", tmp_path / "out", *METHODS["dp-sgd"], "--show-unprotected") == 2
    assert "out.private-history.json exists; give --force" in capfd.readouterr().err
    assert (tmp_path / "out.private-history.json").read_text() == "mine"
