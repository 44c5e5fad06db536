"""``privctl noise`` from the command line to the files it leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from privctl.cli import run
from privctl.domain.guarantee import Status
from privctl.domain.mechanism import Calibration, Regime, WeightNoise
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.files import file_artifact
from tests.cli.noised import FACTS, PUBLISHED, WEIGHTS, report_at, snapshot


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", WEIGHTS, {"format": "pt", "made": "here"})


def test_one_noise_level_writes_one_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    assert run(["noise", str(model), "--epsilon", "1", *PUBLISHED]) == 0
    table = capsys.readouterr().out
    assert all(text in table for text in ("0.00976053", "0.0728299", "306.23", "claimed", "conditional"))
    assert model.read_bytes() == before

    noisy = load_file(model.with_name("m.noised.safetensors"))
    assert np.array_equal(noisy["positions"], WEIGHTS["positions"])
    assert np.array_equal(noisy["embed"], noisy["head"])
    added = (noisy["embed"] - WEIGHTS["embed"]).ravel()
    assert abs(added.std() / 0.00976052988 - 1) < 5 / np.sqrt(2 * added.size)
    assert abs(added.mean()) < 5 * 0.00976 / np.sqrt(added.size)
    # Noise lies on a grid, so that a weight has none at all one time in a hundred.
    assert np.count_nonzero(noisy["bias"]) >= 4
    with safe_open(model.with_name("m.noised.safetensors"), "np") as file:
        assert file.metadata() == {"format": "pt", "privctl.report": "m.noised.report.json"}

    report = report_at(model.with_name("m.noised.report.json"))
    assert isinstance(report.mechanism, WeightNoise)
    assert report.mechanism.noise_stddev == pytest.approx(0.00976052988, rel=1e-9)
    assert report.mechanism.dimension == 300 * 70 + 50 * 50 + 7
    claims = {(g.name, g.adjacency.value): g for g in report.guarantees}
    assert claims["published", "unstated"].epsilon == 1
    assert claims["convex", "replace-one"].epsilon == pytest.approx(0.0728298432464, abs=1e-7)
    assert claims["nonconvex", "replace-one"].epsilon == pytest.approx(306.229454833, abs=1e-5)
    assert any("'made'" in o.what for o in report.omissions)
    assert report.mechanism.grid == 2.0**-12
    for guarantee in report.guarantees[1:]:
        assert guarantee.arithmetic is not None
        assert guarantee.arithmetic.coordinates == report.mechanism.dimension
        assert 0 < guarantee.arithmetic.epsilon < 1e-6
    assert np.array_equal(noisy["embed"], np.rint(noisy["embed"] * 2.0**12) / 2.0**12)
    assert report.outputs[0].path == "m.noised.safetensors"
    assert report.outputs[0] == _as_written(model.with_name("m.noised.safetensors"), report)


def _as_written(path: Path, report: PrivacyReport) -> Artifact:
    fresh = file_artifact("model", path, path.with_name("r"))
    return Artifact(
        role="model", path=path.name, digest=fresh.digest, bytes=fresh.bytes, tensors=report.outputs[0].tensors
    )


def test_several_candidates_are_nested_and_named(model: Path) -> None:
    assert run(["noise", str(model), "--epsilon", "0.01", "--epsilon", "100", "-q", *PUBLISHED]) == 0
    quiet, loud = (load_file(model.with_name(f"m.noised-eps{e}.safetensors"))["embed"] for e in ("100", "0.01"))
    first, step = (quiet - WEIGHTS["embed"]).ravel(), (loud - quiet).ravel()
    assert first.std() == pytest.approx(0.0068145, rel=0.03)
    assert step.std() == pytest.approx(np.sqrt(0.01403166**2 - 0.0068145**2), rel=0.03)
    assert abs(np.corrcoef(first, step)[0, 1]) < 5 / np.sqrt(first.size)
    report = report_at(model.with_name("m.noised-eps0.01.report.json"))
    assert any(g.scope.value == "all-candidates" for g in report.guarantees)
    assert any("nested" in warning for warning in report.warnings)


def test_two_runs_draw_different_noise(model: Path, tmp_path: Path) -> None:
    noisy = []
    for name in ("a", "b"):
        assert run(["noise", str(model), "-q", "-o", str(tmp_path / f"{name}.safetensors"), *FACTS]) == 0
        noisy.append(load_file(tmp_path / f"{name}.safetensors")["embed"] - WEIGHTS["embed"])
    assert abs(np.corrcoef(noisy[0].ravel(), noisy[1].ravel())[0, 1]) < 0.05


def test_a_seed_repeats_the_noise_and_voids_every_guarantee(model: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.safetensors"
        assert run(["noise", str(model), "-q", "--seed", "7", "-o", str(out), *FACTS]) == 0
        report = report_at(tmp_path / f"{name}.report.json")
        digests.append({t.digest for t in report.outputs[0].tensors})
        assert {g.status for g in report.guarantees} == {Status.VOID}
        assert not any("7" in str(value) for key, value in report.parameters.items() if "seed" in key)
    assert digests[0] == digests[1]


def test_dry_run_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(tmp_path)
    assert run(["noise", str(model), "--dry-run", "--epsilon", "0.5", "--epsilon", "2", *FACTS]) == 0
    assert "would write" in capsys.readouterr().out
    assert snapshot(tmp_path) == before


def test_json_is_the_report(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["noise", str(model), "--json", *FACTS]) == 0
    printed = capsys.readouterr().out
    assert printed == model.with_name("m.private.report.json").read_text()
    assert run(["noise", str(model), "--json", "--epsilon", "2", "--epsilon", "3", *FACTS]) == 0
    assert [r["parameters"]["epsilon"] for r in json.loads(capsys.readouterr().out)] == [2, 3]


def test_existing_outputs_are_kept_unless_forced(model: Path, tmp_path: Path) -> None:
    assert run(["noise", str(model), "-q", *FACTS]) == 0
    before = snapshot(tmp_path)
    assert run(["noise", str(model), "-q", *FACTS]) == 2
    assert snapshot(tmp_path) == before
    assert run(["noise", str(model), "-q", "--force", *FACTS]) == 0
    assert snapshot(tmp_path) != before


def test_gaussian_calibration_for_a_regime(model: Path) -> None:
    assert run(["noise", str(model), "-q", "--calibration", "gaussian", "--regime", "convex", *FACTS]) == 0
    report = report_at(model.with_name("m.private.report.json"))
    assert isinstance(report.mechanism, WeightNoise)
    assert report.mechanism.noise_stddev == pytest.approx(8.4493577787e-4, rel=1e-6)
    assert all(g.name != "published" for g in report.guarantees)


@pytest.mark.parametrize(
    ("arguments", "calibration", "regime"),
    [
        ([], Calibration.GAUSSIAN, Regime.NONCONVEX),
        (["--calibration", "published"], Calibration.DP_WEIGHTS, None),
        (["--calibration", "dp-weights"], Calibration.DP_WEIGHTS, None),
        (["--regime", "convex"], Calibration.GAUSSIAN, Regime.CONVEX),
        (["--regime", "nonconvex", "--adjacency", "zero-out"], Calibration.GAUSSIAN, Regime.NONCONVEX),
        (["--calibration", "gaussian"], Calibration.GAUSSIAN, Regime.NONCONVEX),
    ],
)
def test_noise_follows_unless_the_published_formula_is_asked_for_by_name(
    model: Path, arguments: list[str], calibration: Calibration, regime: Regime | None
) -> None:
    output = model.with_name("out.safetensors")
    assert run(["noise", str(model), "-q", "-o", str(output), *FACTS, *arguments]) == 0
    mechanism = report_at(model.with_name("out.report.json")).mechanism
    assert isinstance(mechanism, WeightNoise)
    assert (mechanism.calibration, mechanism.regime) == (calibration, regime)


def test_the_published_noise_is_shown_beside_the_noise_that_follows(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["noise", str(model), "--dry-run", "--epsilon", "1", *FACTS]) == 0
    stdout = capsys.readouterr().out
    row = next(cells for line in stdout.splitlines() if (cells := line.split())[:1] == ["1"])
    assert float(row[1]) == pytest.approx(0.8446, rel=1e-3)  # 2 lr C steps = 0.2, times 4.223
    assert row[2] == "0.00976053"
    text = " ".join(stdout.split())
    assert "published stddev: what the DP-Weights paper's formula would add" in text
    assert "far larger than the weights" not in text
    assert run(["noise", str(model), "--dry-run", "--epsilon", "0.1", *FACTS]) == 0
    assert "is far larger than the weights (root mean square" in " ".join(capsys.readouterr().out.split())
    assert run(["noise", str(model), "--dry-run", "--json", *FACTS]) == 0
    plan = json.loads(capsys.readouterr().out)["candidates"][0]
    assert plan["published_noise_stddev"] == pytest.approx(0.00976052988, rel=1e-9)
    assert run(["noise", str(model), "--dry-run", *PUBLISHED]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "published stddev" not in text
    assert "far larger than the weights" not in text


def test_base_tensors_stay_identical(model: Path, tmp_path: Path, write_model: Callable[..., Path]) -> None:
    base = write_model(tmp_path / "base.safetensors", {"half": WEIGHTS["half"], "embed": WEIGHTS["embed"] * 2})
    assert run(["noise", str(model), "-q", "--base", str(base), *FACTS]) == 0
    noisy = load_file(model.with_name("m.private.safetensors"))
    assert np.array_equal(noisy["half"], WEIGHTS["half"])
    assert not np.array_equal(noisy["embed"], WEIGHTS["embed"])
    report = report_at(model.with_name("m.private.report.json"))
    assert report.parameters["tensors_untouched"]["half"] == "equal to the public base"


def _sharded(folder: Path, write_model: Callable[..., Path]) -> Path:
    folder.mkdir()
    names = {"embed": "a.safetensors", "half": "b.safetensors", "head": "b.safetensors"}
    for shard in ("a.safetensors", "b.safetensors"):
        write_model(folder / shard, {n: WEIGHTS[n] for n, s in names.items() if s == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "optimizer.pt").write_bytes(b"moments of the gradients")
    return folder


def test_a_sharded_folder(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    folder = _sharded(tmp_path / "model", write_model)
    assert run(["noise", str(folder), "-q", *FACTS]) == 0
    private = tmp_path / "model.private"
    assert sorted(p.name for p in private.iterdir()) == [
        "a.safetensors",
        "b.safetensors",
        "config.json",
        "model.safetensors.index.json",
    ]
    noisy = load_file(private / "a.safetensors"), load_file(private / "b.safetensors")
    assert np.array_equal(noisy[0]["embed"], noisy[1]["head"])  # tied across shards
    report = report_at(tmp_path / "model.private.report.json")
    assert any("optimizer.pt" in o.what for o in report.omissions)
    assert run(["inspect", str(private), "-q"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "because"),
    [
        (["--epsilon", "0", *FACTS], 2, "--epsilon is 0; it must be"),
        (["--epsilon", "nan", *FACTS], 2, "epsilon is nan"),
        (["--epsilon", "1", "--epsilon", "1", *FACTS], 2, "same noise"),
        (["--delta", "1", *FACTS], 2, "--delta is 1; it must be"),
        (["--delta", "0", *FACTS], 2, "--delta is 0; it must be"),
        ([], 2, "epochs, learning_rate, clip_norm, dataset_size, batch_size; each"),
        (["--calibration", "published", "--regime", "convex", *FACTS], 2, "--regime applies to --calibration gaussian"),
        (
            ["--calibration", "dp-weights", "--regime", "convex", *FACTS],
            2,
            "--regime applies to --calibration gaussian",
        ),
        (["--regime", "convex", "--formula", "eq1", *FACTS], 2, "--formula applies to --calibration published"),
        (["--calibration", "gaussian", "--regime", "smooth", *FACTS], 2, "smoothness was not given"),
        (["--optimizer", "lion", *FACTS], 2, "lion"),
        (["--include", "nothing*", *FACTS], 2, "matches no tensor"),
        (["--facts", "absent.json", *FACTS], 3, "absent.json"),
        (["--base", "absent.safetensors", *FACTS], 3, "absent.safetensors"),
        (["--evaluate", "absent.jsonl", *FACTS], 3, "absent.jsonl"),
        (["--dry-run", "--evaluate", "absent.jsonl", *FACTS], 2, "--dry-run"),
        (["--adjacency", "zero-out", *PUBLISHED], 2, "--adjacency applies to"),
        (["--formula", "eq1", *FACTS], 2, "--formula applies to --calibration published only; add that or remove"),
        (["--calibration", "gaussian", "--regime", "convex", "--formula", "eq1", *FACTS], 2, "--formula applies to"),
        (["-o", "/proc/none/x.safetensors", *FACTS], 2, "is not a folder to write x.safetensors into"),
    ],
)
def test_bad_calls_change_nothing(
    model: Path, tmp_path: Path, capsys: Any, arguments: list[str], code: int, because: str
) -> None:
    before = snapshot(tmp_path)
    assert run(["noise", str(model), *arguments]) == code
    error = capsys.readouterr().err
    assert because in error
    assert "Traceback" not in error
    assert snapshot(tmp_path) == before


def test_a_folder_named_by_a_dot(tmp_path: Path, write_model: Callable[..., Path], monkeypatch: Any) -> None:
    folder = _sharded(tmp_path / "model", write_model)
    monkeypatch.chdir(folder)
    assert run(["noise", ".", "-q", *FACTS]) == 0
    assert (tmp_path / "model.private" / "a.safetensors").is_file()
    assert run(["noise", ".", "-q", "-o", "inside", *FACTS]) == 2
    assert not (folder / "inside").exists()


def test_a_file_in_the_way_of_a_folder_is_kept_and_no_report_appears(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    folder = _sharded(tmp_path / "model", write_model)
    (tmp_path / "taken").write_text("mine")
    assert run(["noise", str(folder), "-q", "--force", "-o", str(tmp_path / "taken"), *FACTS]) == 2
    assert (tmp_path / "taken").read_text() == "mine"
    assert not (tmp_path / "taken.report.json").exists()


def test_a_moved_folder_is_checked_where_it_lies(tmp_path: Path, write_model: Callable[..., Path], capsys: Any) -> None:
    folder = _sharded(tmp_path / "model", write_model)
    assert run(["noise", str(folder), "-q", *FACTS]) == 0
    moved = (tmp_path / "model.private").rename(tmp_path / "release")
    assert run(["inspect", str(moved), "-q"]) == 0
    (moved / "config.json").write_text("{}")
    assert run(["inspect", str(moved), "-q"]) == 1
    assert "REFUTED: config.json" in capsys.readouterr().out


def test_a_regime_that_says_nothing_is_named_with_its_reason(model: Path, capsys: Any) -> None:
    assert run(["noise", str(model), "--dry-run", "--optimizer", "adamw", *FACTS]) == 0
    stdout = capsys.readouterr().out
    assert "no guarantee under the regime convex: adamw rescales" in stdout
    assert "not given" not in stdout


def test_zero_out_is_shown_when_asked_for(model: Path, capsys: Any) -> None:
    asked = ["--calibration", "gaussian", "--regime", "nonconvex", "--adjacency", "zero-out", "--epsilon", "8"]
    assert run(["noise", str(model), "--dry-run", *asked, *FACTS]) == 0
    row = next(row for line in capsys.readouterr().out.splitlines() if (row := line.split())[:1] == ["8"])
    assert "8" in row[2:]


def test_output_equal_to_input_is_refused(model: Path, capsys: Any) -> None:
    before = model.read_bytes()
    assert run(["noise", str(model), "--force", "-o", str(model), *FACTS]) == 2
    assert "is the input" in capsys.readouterr().err
    link = model.with_name("link.safetensors")
    link.symlink_to(model)
    assert run(["noise", str(model), "--force", "-o", str(link), *FACTS]) == 2
    assert model.read_bytes() == before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, write_model: Callable[..., Path], capsys: Any, bad: float
) -> None:
    weights = {**WEIGHTS, "spoiled": np.array([1, bad, 2], np.float32)}
    path = write_model(tmp_path / "m.safetensors", weights)
    before = snapshot(tmp_path)
    assert run(["noise", str(path), "-q", *FACTS]) == 3
    assert "'spoiled'" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_malformed_models_are_refused(tmp_path: Path, model: Path, capsys: Any) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model.read_bytes()[:-5])
    pickle = tmp_path / "p.bin"
    pickle.write_bytes(b"\x80\x02}q\x00.")
    for path, because in ((cut, "truncated"), (pickle, "pickle"), (tmp_path / "no", "does not exist"), (tmp_path, "")):
        assert run(["noise", str(path), *FACTS]) == 3
        assert because in capsys.readouterr().err


@pytest.mark.parametrize("inside", [True, False])
def test_weights_written_into_a_model_s_folder_are_said_to_be_no_part_of_it(
    inside: bool, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As this folder is then, audits refuse it, and some loaders read every file of weights in it."""
    if inside:
        (model.parent / "config.json").write_text("{}")
    assert run(["noise", str(model), "--noise-stddev", "0.1"]) == 0
    assert ("is no part of it" in capsys.readouterr().err) == inside
