"""Noise that is not there: facts that ask for less noise than the stored weights can hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.verdict import Outcome
from privctl.noise.grain import LEAST_CHANGED, Grain, GrainOfTensors, grain_of, grains_of
from privctl.noise.weight_noise import WeightNoiser
from privctl.randomness import NoiseSource
from privctl.storage.reader import open_checkpoint
from privctl.storage.stream import pieces
from tests.few import few
from verify.run import read, verify

KINDS = ("F64", "F32", "F16", "BF16")
SHAPE = (127, 64)
#: ``--epsilon 1`` on these gives noise of 1.7e-12 or so, and of 1.7e-21 for what F64 can hold.
TINY = {"F64": "1e-21", "F32": "1e-12", "F16": "1e-12", "BF16": "1e-12"}
WriteModel = Callable[..., Path]


def bits(values: np.ndarray, kind: str) -> np.ndarray:
    """The weights as ``write_model`` takes them; BF16 as its bits."""
    if kind == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"F64": np.float64, "F32": np.float32, "F16": np.float16}[kind])


def model(path: Path, write_model: WriteModel, kind: str, scale: float = 0.05) -> Path:
    rng = np.random.default_rng(5)
    return write_model(path, {f"layer{i}": bits(rng.standard_normal(SHAPE) * scale, kind) for i in range(4)})


def command(path: Path, rate: str, *more: str) -> list[str]:
    facts = ["--epochs", "2", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5", "--learning-rate", rate]
    chosen = ["--calibration", "gaussian", "--regime", "convex", "--delta", "1e-4"]
    return ["noise", str(path), "-q", *facts, *chosen, *more]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--epsilon", "1", "--epsilon", "0.5")])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_below_the_spacing_of_the_weights_is_refused(
    kind: str, more: tuple[str, ...], tmp_path: Path, write_model: WriteModel, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "m.safetensors", write_model, kind)
    before = path.read_bytes()
    assert run(command(path, TINY[kind], *more)) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert not captured.out
    assert f"{kind} numbers of the size of these weights lie" in captured.err
    assert "lower epsilon" in captured.err
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", few(KINDS, 0, 3))
def test_what_the_sentence_asks_for_is_enough(
    kind: str, tmp_path: Path, write_model: WriteModel, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "m.safetensors", write_model, kind)
    assert run(command(path, TINY[kind])) == ExitCode.BAD_INPUT
    stderr = capsys.readouterr().err
    noise, least = (float(stderr.split("standard deviation ")[1].split(",")[0]),
                    float(stderr.split("of at least ")[1].split(":")[0]))  # fmt: skip
    rate = float(TINY[kind]) * least / noise
    assert run(command(path, f"{0.8 * rate:.4g}")) == ExitCode.BAD_INPUT
    assert run(command(path, f"{1.1 * rate:.4g}")) == ExitCode.OK
    assert run(["verify", str(tmp_path / "m.private.report.json"), "-q"]) == ExitCode.OK, capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_honest_noise_passes_and_verifies_in_every_format(
    kind: str, tmp_path: Path, write_model: WriteModel, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "m.safetensors", write_model, kind)
    facts = ["--epochs", "10", "--learning-rate", "5e-5", "--clip-norm", "1"]
    assert (
        run(
            [
                "noise",
                str(path),
                "-q",
                *facts,
                "--dataset-size",
                "1000",
                "--batch-size",
                "5",
                "--calibration",
                "published",
            ]
        )
        == ExitCode.OK
    )
    assert "as training left them" not in capsys.readouterr().out
    assert run(["verify", str(tmp_path / "m.noised.report.json"), "-q"]) == ExitCode.OK


def test_a_tensor_coarser_than_the_noise_is_named(
    tmp_path: Path, write_model: WriteModel, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(6)
    layer, norm = rng.standard_normal(SHAPE) * 0.05, 40 + rng.standard_normal(500)
    path = write_model(tmp_path / "m.safetensors", {"layer": bits(layer, "BF16"), "norm": bits(norm, "BF16")})
    facts = ["--epochs", "10", "--learning-rate", "5e-5", "--clip-norm", "1"]
    facts += ["--dataset-size", "1000", "--batch-size", "5", "--calibration", "published"]
    call = ["noise", str(path), "-q", *facts]
    warning = "most weights are released as training left them in 1 tensor, where noise of standard deviation"
    for arguments in ([*call, "--dry-run"], call):
        assert run(arguments) == ExitCode.OK
        stdout = " ".join(capsys.readouterr().out.split())
        assert warning in stdout
        assert "smaller than the spacing of the stored numbers: norm" in stdout
    report = read(tmp_path / "m.noised.report.json")
    assert [line for line in report.warnings if warning in line]
    found = verify(tmp_path / "m.noised.report.json", report)
    (verdict,) = [v for v in found.verdicts if v.subject == "noise"]
    assert verdict.outcome is Outcome.CONSISTENT
    assert "in 'norm' most weights did not change" in verdict.reason


@pytest.mark.forged("made with the check of noise taken out")
@pytest.mark.parametrize("kind", KINDS)
def test_verify_refutes_noise_that_is_not_there(
    kind: str, tmp_path: Path, write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path / "m.safetensors", write_model, kind)
    monkeypatch.setattr("privctl.noise.privatize.check_grain", lambda _, candidates, *__: [""] * len(candidates))
    assert run(command(path, TINY[kind])) == ExitCode.OK
    report = tmp_path / "m.private.report.json"

    def reasons() -> list[str]:
        found = verify(report, read(report))
        assert found.exit_code is ExitCode.REFUTED
        return [v.reason for v in found.verdicts if v.subject == "noise" and v.outcome is Outcome.REFUTED]

    assert any("weights differ from the input's" in reason for reason in reasons())
    path.unlink()
    (without,) = reasons()
    assert "% of weights of this size" in without, "a recipient does not have the weights before noise"


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_weights_in_eight_bits_take_no_noise(
    kind: str, tmp_path: Path, write_raw: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    header = f'{{"a":{{"dtype":"{kind}","shape":[64],"data_offsets":[0,64]}}}}'
    path = write_raw(tmp_path / "m.safetensors", header, bytes(range(64)))
    assert run(command(path, "0.1")) == ExitCode.BAD_INPUT
    assert f"is {kind}, which cannot take noise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ratio", "changed"),
    # 2 Phi(-ratio / 2), from tables of the normal distribution
    [(0.5, 0.8025873), (1, 0.6170751), (2, 0.3173105), (4, 0.0455003)],
)
def test_the_expected_share_is_that_of_tables_and_of_rounding(ratio: float, changed: float) -> None:
    grain = Grain({-9: 10}, ("F16",))
    stddev = 2.0**-9 / ratio
    assert grain.changed_share(stddev) == pytest.approx(changed, abs=1e-7)
    noise = np.random.default_rng(0).standard_normal(200_000) * stddev
    assert np.mean(np.rint(noise * 2**9) != 0) == pytest.approx(changed, abs=0.005)


def test_the_least_noise_is_that_which_changes_enough() -> None:
    grain = Grain({-30: 50, -20: 30, -12: 20}, ("F32",))
    assert grain.changed_share(grain.least_stddev) >= LEAST_CHANGED > grain.changed_share(0.98 * grain.least_stddev)
    assert grain.median == 2.0**-30


@pytest.mark.parametrize("kind", KINDS)
def test_spacings_are_those_of_the_released_weights(kind: str, tmp_path: Path, write_model: WriteModel) -> None:
    path = model(tmp_path / "m.safetensors", write_model, kind, scale=3.0)
    streams = {f"layer{i}": i for i in range(4)}
    with open_checkpoint(path) as checkpoint:
        noiser = WeightNoiser(NoiseSource(1), [0.5, 1.0], streams)
        grain = grain_of(checkpoint, noiser, streams)
        released = []
        for file, tensor in checkpoint.tensors():
            values = np.frombuffer(file.read(tensor), {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind])
            wide = (values.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else values
            sums = np.array(wide, np.float64 if kind == "F64" else np.float32)
            NoiseSource(1).release_nested([2 * streams[tensor.name]], 0, sums, [0.5], [sums])
            released.append(sums.astype(np.float32 if kind == "BF16" else wide.dtype))
    apart = np.spacing(np.abs(np.concatenate(released))).astype(np.float64) * (2.0**16 if kind == "BF16" else 1)
    if kind in ("F64", "F32"):
        assert grain.median == np.median(apart)
    total = sum(grain.counts.values())
    for exponent, count in grain.counts.items():
        share = np.mean(apart == math.ldexp(1.0, exponent))
        # half formats round once more, which moves a few weights across a power of two
        assert count / total == pytest.approx(share, abs=0.0 if kind in ("F64", "F32") else 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_have_the_same_spacings_in_passing(kind: str, tmp_path: Path, write_model: WriteModel) -> None:
    rng, elements = np.random.default_rng(5), {"long": 600_000, "short": 77, "without": 5}
    path = write_model(
        tmp_path / "m.safetensors", {name: bits(rng.standard_normal(n) * 3.0, kind) for name, n in elements.items()}
    )
    streams = {"long": 0, "short": 1}
    with open_checkpoint(path) as checkpoint:
        noiser = WeightNoiser(NoiseSource(1), [0.5, 1.0], streams)
        passing = GrainOfTensors(noiser)
        for file in checkpoint.files:
            for piece in reversed(list(pieces(file.tensors))):
                data = file.read(piece.tensor, piece.start, piece.size)
                passing(piece, [memoryview(data), memoryview(bytearray(piece.size))])
        expected = grains_of(checkpoint, noiser, streams)
        assert list(passing.of(checkpoint).items()) == list(expected.items())
        assert set(expected) == set(streams)
        other = grains_of(checkpoint, WeightNoiser(NoiseSource(2), [0.5, 1.0], streams), streams)
        assert other != expected, "the spacings are those of the noise drawn"
