"""The noise between two checkpoints: genuine noise passes in every format, and planted faults are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.storage.digest import file_digest
from privctl.storage.reader import SafetensorsFile
from tests.verify.reports import noise as noise_report
from verify.checkpoint_noise.measure import CheckpointNoise, complaints, measure
from verify.checkpoint_noise.values import deviates
from verify.run import read, verify

SIGMA = 0.01
SHAPE = (60, 50)
RNG = np.random.default_rng(8)

Weights = dict[str, np.ndarray]


def half(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, ties to even, as its bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def wide(stored: np.ndarray) -> np.ndarray:
    return (stored.astype(np.uint32) << 16).view(np.float32) if stored.dtype == np.uint16 else stored.astype(np.float64)


def weights(kinds: tuple[str, ...] = ("float32",) * 5) -> Weights:
    found = {}
    for i, kind in enumerate(kinds):
        values = RNG.standard_normal(SHAPE) * 0.3
        found[f"layer{i}"] = half(values) if kind == "bfloat16" else values.astype(kind)
    return found


def noised(before: Weights, noise: Mapping[str, np.ndarray]) -> Weights:
    after = {}
    for name, stored in before.items():
        total = wide(stored) + noise.get(name, 0)
        after[name] = half(total) if stored.dtype == np.uint16 else total.astype(stored.dtype)
    return after


def genuine(before: Weights) -> dict[str, np.ndarray]:
    return {name: RNG.standard_normal(SHAPE) * SIGMA for name in before}


@pytest.fixture
def compare(tmp_path: Path, write_model: Callable[..., Path]) -> Callable[..., list[str]]:
    def found(before: Weights, after: Weights, untouched: tuple[str, ...] = (), tied: Any = ()) -> list[str]:
        paths = write_model(tmp_path / "a.safetensors", before), write_model(tmp_path / "b.safetensors", after)
        with SafetensorsFile(paths[0]) as old, SafetensorsFile(paths[1]) as new:
            measured: CheckpointNoise = measure(old, new, SIGMA, untouched)
        assert measured.after.file_digest == file_digest(paths[1])
        assert measured.before is None or measured.before.file_digest == file_digest(paths[0])
        return complaints([measured], SIGMA, tied)

    return found


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_genuine_noise_passes_in_every_format(kind: str, compare: Callable[..., list[str]]) -> None:
    before = weights((kind,) * 6)
    assert compare(before, noised(before, genuine(before))) == []


def test_false_alarms_are_as_rare_as_the_level(compare: Callable[..., list[str]]) -> None:
    before = weights(("float32", "bfloat16"))
    assert [found for _ in range(40) for found in compare(before, noised(before, genuine(before)))] == []


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda noise: noise * 0, "got no noise"),
        (lambda noise: noise / 2, "times the 0.01 reported"),
        (lambda noise: noise * 1.15, "times the 0.01 reported"),
        (lambda noise: noise + 0.002, "which is not 0"),
        (lambda noise: RNG.uniform(-1, 1, noise.shape) * SIGMA * 3**0.5, "not Gaussian"),
        (lambda noise: np.where(np.arange(noise.size).reshape(noise.shape) % 2, noise * 2**0.5, 0), "not Gaussian"),
    ],
)
def test_a_faulty_tensor_is_named(
    kind: str, fault: Callable[[np.ndarray], np.ndarray], says: str, compare: Callable[..., list[str]]
) -> None:
    before = weights((kind,) * 4)
    noise = genuine(before)
    noise["layer2"] = fault(noise["layer2"])
    found = compare(before, noised(before, noise))
    assert found
    assert all("'layer2'" in sentence for sentence in found)
    assert any(says in sentence for sentence in found), found


def test_reused_noise_is_found_unless_the_tensors_are_tied(compare: Callable[..., list[str]]) -> None:
    before = weights()
    noise = genuine(before)
    noise["layer4"] = noise["layer1"]
    (found,) = compare(before, noised(before, noise))
    assert "'layer1" in found
    assert "'layer4" in found
    assert "same noise" in found
    assert compare(before, noised(before, noise), tied=[["layer1", "layer4"]]) == []
    noise["layer4"] = -noise["layer1"]
    assert compare(before, noised(before, noise))


def test_many_small_tensors_with_too_little_noise_are_seen_together(compare: Callable[..., list[str]]) -> None:
    before = {f"bias{i}": RNG.standard_normal(12).astype(np.float32) for i in range(200)}
    after = {name: (b + 0.8 * SIGMA * RNG.standard_normal(12)).astype(np.float32) for name, b in before.items()}
    (found,) = compare(before, after)
    assert found.startswith("all tensors together: the noise is 0.8")


def test_tensors_that_were_to_stay_and_tensors_that_are_new(compare: Callable[..., list[str]]) -> None:
    before = weights()
    after = noised(before, genuine(before))
    assert compare(before, after, untouched=("layer0",)) == ["tensor 'layer0' was to stay as it was, but changed"]
    after["other"] = after["layer0"]
    assert any("'other' is not in the parent" in sentence for sentence in compare(before, after))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_noise_that_rounding_swallows_whole_is_no_fault(kind: str, compare: Callable[..., list[str]]) -> None:
    """Weights of 256 have neighbours a tenth or more away: noise of 0.01 changes none of them."""
    large = np.full(SHAPE, 256.0)
    before = {"norm": half(large) if kind == "bfloat16" else large.astype(kind)}
    after = noised(before, genuine(before))
    assert np.array_equal(before["norm"], after["norm"])
    assert compare(before, after) == []


def test_rounding_is_undone_exactly() -> None:
    """Where rounding hides most of the noise, deviates are still N(0, 1)."""
    before = half(RNG.standard_normal(20_000))
    sigma = 2.0**-9  # below half the distance of neighbours near 1
    after = half(wide(before) + RNG.standard_normal(20_000) * sigma)
    assert np.mean(before == after) > 0.5
    found = deviates(before, after, "BF16", sigma, RNG.random(20_000))
    assert abs(found.mean()) < 0.03
    assert abs(found.std() - 1) < 0.03
    wrong = deviates(before, after, "BF16", 2 * sigma, RNG.random(20_000))
    assert wrong.std() < 0.85


def test_a_real_report_with_the_parent_at_hand(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    path = noise_report(tmp_path, write_model)
    found = verify(path, read(path))
    assert found.exit_code is ExitCode.OK
    (evidence,) = found.evidence
    assert evidence.estimate == pytest.approx(evidence.details["reported"], rel=0.05)
    assert evidence.samples == {"weights": 7200, "tensors": 3, "weights changed": 7200}
    # Somebody changes the model and its report together, so that only the noise can show it.
    with SafetensorsFile(tmp_path / "m.safetensors") as old:
        stored = {t.name: np.frombuffer(old.read(t), "<i8" if t.dtype == "I64" else "<f4") for t in old.tensors}
    (tmp_path / "m.safetensors").unlink()
    assert verify(path, read(path)).exit_code is ExitCode.OK  # nothing to compare with is no fault
    assert any(o.what == "measuring the noise" for o in verify(path, read(path)).omissions)
    write_model(tmp_path / "m.safetensors", stored)
    assert verify(path, read(path)).exit_code is ExitCode.REFUTED  # not the same shapes, nor bytes


def test_a_changed_weight_is_named(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    path = noise_report(tmp_path, write_model)
    model = tmp_path / "m.noised.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(bytes(content))
    assert run(["verify", str(path), "-q"]) == ExitCode.REFUTED
    reasons = [v.reason for v in verify(path, read(path)).verdicts]
    assert any("changed: " in reason for reason in reasons)
