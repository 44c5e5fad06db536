from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.canaries.audit import CanaryAudit, CanaryRequest
from audits.canaries.manifest import Manifest, commitment_of, encode_manifest, read_manifest
from audits.canaries.rows import SecretRow, _indistinguishable, canary_rows, secret_rows, secret_sums
from audits.findings import Findings
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Bound, Evidence
from privctl.models.language import LanguageModel, load_model
from tests.audits.canaries.small import judged, new_model, planted, train
from tests.few import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with canaries at 1, 10 and 100 copies, a model that learnt them, and one that never saw them."""
    folder = tmp_path_factory.mktemp("canaries")
    planted(folder, count=45, copies=(1, 10, 100), templates=("pin {digits:4}",))
    train(new_model(folder / "knows"), folder / "planted.jsonl", epochs=4)
    train(new_model(folder / "never"), folder / "data.jsonl", epochs=4)
    return folder


@pytest.fixture(scope="module")
def knows(folder: Path) -> LanguageModel:
    return load_model(folder / "knows", device="cpu")


@pytest.fixture(scope="module")
def never(folder: Path) -> LanguageModel:
    return load_model(folder / "never", device="cpu")


def audit(model: LanguageModel, manifest: Path, alpha: float = 0.05, **settings: Any) -> Findings:
    return judged(model, CanaryAudit(model, CanaryRequest(manifest=manifest, **settings)), alpha)


def of(found: Findings, method: str, quantity: str) -> Evidence:
    (each,) = [e for e in found.evidence if method in e.method and quantity == e.quantity]
    return each


def median(found: Findings, side: str) -> float:
    value = of(found, "exposure", f"median bits, {side}").estimate
    assert value is not None
    return value


@pytest.mark.parametrize("settings", [{}, {"references": 300}])
def test_exposure_grows_with_copies(folder: Path, knows: LanguageModel, settings: dict[str, Any]) -> None:
    found = audit(knows, folder / "m.json", **settings)
    manifest = read_manifest(folder / "m.json")
    one, ten, hundred, none = (
        median(found, side) for side in ("included, 1 copy", "included, 10 copies", "included, 100 copies", "left out")
    )
    assert none < one < ten <= hundred
    assert ten > 5
    leaked = of(found, "exposure", "mean bits, included").details
    assert leaked["detected"] == 1
    assert leaked["p_value"] < 1e-9
    control = of(found, "exposure", "mean bits, left out (control)")
    assert control.details["p_value"] > 1e-4
    many = of(found, "Steinke", "epsilon of groups of 100")
    assert many.lower is not None
    assert many.lower > 0.5
    assert many.details["epsilon_of_one_record_at_delta_0"] < many.lower / 50
    assert many.lower <= many.details["ceiling"] + 1e-6
    assert many.bound is Bound.LOWER
    curve = of(found, "Mahloujifar", "mu of groups of 100")
    assert curve.lower is not None
    assert curve.lower > 0.2
    assert of(found, "Steinke", "epsilon").samples == {"canaries": 15, "guesses": 15}
    spent = sum(1 - e.confidence for e in found.evidence if e.details.get("level") or e.interval == "Clopper-Pearson")
    spent += sum(1 - e.confidence for e in found.evidence if "Steinke" in e.method)
    assert spent == pytest.approx(0.05)

    arrays = found.arrays
    included = np.array([canary.included for canary in manifest.canaries])
    assert (arrays["canary.included"] == included).all()
    assert arrays["canary.copies"].tolist() == [1, 10, 100] * 15
    assert arrays["canary.scored"].all()
    assert np.isfinite(arrays["canary.nll"]).all()
    disclosed = of(found, "completion", "disclosed, included, 100 copies").details["disclosed"]
    hundred_copies = included & (arrays["canary.copies"] == 100)
    assert (arrays["canary.completion"][hundred_copies] == 1).sum() == disclosed
    assert of(found, "completion", "disclosed, left out").estimate == 0
    deviation = of(found, "exposure", "mean bits, included").details["deviation"]
    assert deviation == pytest.approx(statistics.stdev(arrays["canary.exposure"][included].tolist()))
    assert any("taken to be so" in line for line in found.warnings)
    assert any("complete no more than one" in line for line in found.warnings)
    if settings:
        (beyond,) = [e for e in found.evidence if "extrapolated" in e.method]
        assert beyond.estimate is not None
        assert math.log2(301) < beyond.estimate <= math.log2(10**4)
        assert beyond.reason
        # None of 300 references reaches it: 1 - 0.1^(1/300) = 0.0076460. One set of references has the whole error.
        assert beyond.lower == pytest.approx(-math.log2(0.0076460), abs=1e-4)
        assert beyond.upper == pytest.approx(math.log2(10**4))
    else:
        assert found.parameters["canary_exact_groups"] == 1
        assert not any("extrapolated" in e.method for e in found.evidence)


def test_random_ranks_estimate_the_exact_ones(folder: Path, knows: LanguageModel) -> None:
    exact = audit(knows, folder / "m.json").arrays
    sampled = audit(knows, folder / "m.json", references=2000).arrays
    assert exact["canary.nll"] == pytest.approx(sampled["canary.nll"], abs=1e-4)
    low = exact["canary.exposure"] < 4
    assert low.sum() > 10
    assert exact["canary.exposure"][low] == pytest.approx(sampled["canary.exposure"][low], abs=0.6)


def test_a_model_that_saw_no_canary(folder: Path, never: LanguageModel) -> None:
    found = audit(never, folder / "m.json")
    exposure = found.arrays["canary.exposure"]
    assert exposure.mean() == pytest.approx(1 / math.log(2), abs=4 * 1.44 / math.sqrt(45))
    assert of(found, "exposure", "mean bits, included").details["detected"] == 0
    bound = of(found, "Steinke", "epsilon")
    assert bound.estimate is not None
    assert bound.estimate < 0.7


def test_the_same_audit_gives_the_same_numbers(folder: Path, knows: LanguageModel) -> None:
    first, second = (audit(knows, folder / "m.json", references=100, seed=3) for _ in range(2))
    assert first.evidence == second.evidence
    other = audit(knows, folder / "m.json", references=100, seed=4)
    assert (first.arrays["canary.exposure"] != other.arrays["canary.exposure"]).any()


@pytest.mark.parametrize("settings", [{}, {"references": 50}])
def test_weights_of_zero(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    model = load_model(new_model(tmp_path / "zero", scale=0), device="cpu")
    found = audit(model, folder / "m.json", **settings)
    assert found.arrays["canary.exposure"].tolist() == [0] * 45
    assert found.arrays["canary.score"].tolist() == [0] * 45
    assert not any(np.isnan(array).any() for array in found.arrays.values() if array.dtype.kind == "f")
    for item in found.evidence:
        if item.bound is Bound.LOWER:
            assert item.lower == 0
    assert of(found, "exposure", "mean bits, included").details["p_value"] == 1
    assert of(found, "completion", "disclosed, left out").details["undecided"] > 0


def test_weights_of_nan(folder: Path, tmp_path: Path) -> None:
    model = load_model(new_model(tmp_path / "nan", scale=math.nan), device="cpu")
    found = audit(model, folder / "m.json", references=20)
    assert not found.arrays["canary.scored"].any()
    assert found.omissions[0].what == "45 canaries"
    assert of(found, "exposure", "mean bits, included").estimate is None
    assert of(found, "Steinke", "epsilon").lower == 0


def spoiled(manifest: Manifest, folder: Path, *, commit: bool = True, **changes: Any) -> Path:
    manifest = replace(manifest, **changes)
    if commit:
        manifest = replace(manifest, commitment=commitment_of(manifest))
    (folder / "m.json").write_bytes(encode_manifest(manifest))
    return folder / "m.json"


@pytest.mark.parametrize(
    "fault", few(["edited", "duplicate", "unfair", "other data", "other commitment", "one left out is there"], 0, 3, 4)
)
def test_an_invalid_planting_gives_no_bound(folder: Path, knows: LanguageModel, tmp_path: Path, fault: str) -> None:
    manifest = read_manifest(folder / "m.json")
    first, second, *rest = manifest.canaries
    settings: dict[str, Any] = {"references": 20}
    path = folder / "m.json"
    if fault == "edited":
        path = spoiled(manifest, tmp_path, commit=False, delta=0.5)
    elif fault == "duplicate":
        path = spoiled(manifest, tmp_path, canaries=(first, replace(second, secret=first.secret), *rest))
    elif fault == "unfair":
        path = spoiled(manifest, tmp_path, canaries=tuple(replace(c, included=True) for c in manifest.canaries))
    elif fault == "other data":
        settings["trained_on"] = ("blake3:00",)
    elif fault == "other commitment":
        settings["commitment"] = "blake3:00"
    else:
        left_out = next(canary for canary in manifest.canaries if not canary.included)
        settings["planted"] = tmp_path / "planted.jsonl"
        settings["planted"].write_bytes((folder / "planted.jsonl").read_bytes() + manifest.line(left_out))
    assert (
        audit(knows, folder / "m.json", references=20, planted=folder / "planted.jsonl").evidence[2].lower is not None
    )
    found = audit(knows, path, **settings)
    limits = [e for e in found.evidence if "one run" in e.method]
    assert len(limits) == 4
    for limit in limits:
        assert (limit.estimate, limit.lower, limit.bound) == (None, None, Bound.NONE)
        assert limit.reason.startswith("not a bound: ")
    assert any(line.startswith("no bound follows") for line in found.warnings)


def test_prefixes_of_their_own_and_words(folder: Path, knows: LanguageModel, tmp_path: Path) -> None:
    settings = {"prefix_from": folder / "data.jsonl", "tokenizer": folder / "knows", "templates": (), "length": 3}
    manifest = planted(tmp_path, count=20, **settings)
    found = audit(knows, tmp_path / "m.json", references=30)
    assert found.parameters["canary_groups"] == 20
    assert found.arrays["canary.among"].tolist() == [31] * 20
    assert len(manifest.formats[0].alphabet) > 60
    assert not found.omissions
    assert not any("complete no more than one" in line for line in found.warnings)


def test_a_canary_that_does_not_fit_is_listed_and_counts(folder: Path, knows: LanguageModel, tmp_path: Path) -> None:
    planted(tmp_path, count=20, templates=("pin {digits:80}", "pin {digits:4}"))
    found = audit(knows, tmp_path / "m.json", references=30)
    assert [(omission.what, omission.reason) for omission in found.omissions] == [
        ("10 canaries", "longer than the 64 tokens that the model reads")
    ]
    assert found.arrays["canary.scored"].sum() == 10
    assert of(found, "Steinke", "epsilon").samples["canaries"] == 20


def test_secrets_that_a_tokenizer_does_not_tell_apart_are_not_completed(
    folder: Path, knows: LanguageModel, tmp_path: Path
) -> None:
    """Of letters this tokenizer knows none: whatever comes out stands for all such secrets."""
    manifest = planted(tmp_path, count=20, templates=("pin {letters:4}", "pin {digits:4}"))
    found = audit(knows, tmp_path / "m.json", references=30)
    assert [(omission.what, omission.reason) for omission in found.omissions] == [
        ("10 canaries", "whose secret holds what the tokenizer does not know")
    ]
    assert found.arrays["canary.scored"].tolist() == [canary.secret.isdigit() for canary in manifest.canaries]
    rows, _ = canary_rows(knows, manifest)
    first, other, *_ = (i for i, row in enumerate(rows) if row is not None)
    assert _indistinguishable(manifest, [*rows[:first], rows[other], *rows[first + 1 :]]) == sorted((first, other))
    assert _indistinguishable(manifest, rows) == []


def test_settings_that_cannot_be(folder: Path, knows: LanguageModel, tmp_path: Path) -> None:
    planted(tmp_path, templates=("pin {digits:7}",))
    with pytest.raises(CommandError, match=r"--exact would enumerate 2\^23\.3 secrets"):
        CanaryAudit(knows, CanaryRequest(manifest=tmp_path / "m.json", exact=True))
    for settings in ({"references": 3}, {"delta": 1.0}, {"delta": -0.1}):
        with pytest.raises(CommandError):
            CanaryRequest(manifest=tmp_path / "m.json", **settings)


def test_the_secret_s_tokens_and_no_others_count(knows: LanguageModel) -> None:
    (row,) = secret_rows(knows, "pin ", ["1234"], " waa wak")
    assert [knows.tokenizer.decode([i]) for i in row.ids] == ["pin", "1", "2", "3", "4"]
    assert row.start == 1
    values = np.arange(8, dtype=np.float32)
    rows = [SecretRow(ids=np.arange(5), start=1), SecretRow(ids=np.arange(5), start=3)]
    assert secret_sums(values, rows).tolist() == [0 + 1 + 2 + 3, 6 + 7]


def test_formats_with_one_prefix_have_references_of_their_own(never: LanguageModel, tmp_path: Path) -> None:
    """Digits among those of another alphabet would look rare, or common, to a model that saw neither."""
    manifest = planted(tmp_path, count=80, templates=("pin {hex:6}", "pin {digits:6}"))
    part = CanaryAudit(never, CanaryRequest(manifest=tmp_path / "m.json", references=63, exact=False))
    judged(never, part)
    for (form, _), some in part._work.references.items():
        texts = {never.tokenizer.decode(row.ids[row.start :]).replace(" ", "") for row in some}
        assert all(text.isdigit() for text in texts) is (len(manifest.formats[form].alphabet) == 10), texts
