"""``privctl secrets plan`` as a user meets it: what it writes, what it says, mistakes in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.accounting.secrets.fano import curve_posterior, information, noise_multiplier_for, posterior
from privctl.cli import run
from privctl.domain.events import SecretMixture
from privctl.domain.guarantee import Assumption, AssumptionState, Notion, Status
from privctl.reports.codec import decode
from privctl.secrets.plan import sweep, weights
from privctl.secrets.plan.highs import Solution, pdlp
from privctl.secrets.plan.packing import Packing
from privctl.secrets.protection import read_protection
from privctl.show.text.secrets_plan import secrets_plan_text
from privctl.storage.digest import file_digest
from privctl.storage.reader import SafetensorsFile

EXAMPLES, BATCH, STEPS = 60, 6, 200


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return records(tmp_path)


def records(folder: Path) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(f'{{"text": "record {i}"}}\n' for i in range(EXAMPLES)))
    return path


def book(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "secrets.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return usual_book(tmp_path)


def usual_book(folder: Path) -> Path:
    """One secret in two records, one in thirty (much to hold back), one in none."""
    return book(
        folder,
        {"id": "few", "kind": "email", "records": [0, 1], "prior": 0.001, "posterior": 0.02},
        {"id": "many", "kind": "word", "records": list(range(10, 40))},
        {"id": "none", "kind": "word", "records": []},
    )


def plan(data: Path, secrets: Path, *more: str) -> int:
    return run(
        [
            "secrets",
            "plan",
            str(data),
            "--secrets",
            str(secrets),
            "--steps",
            str(STEPS),
            "--batch-size",
            str(BATCH),
            *more,
        ]
    )


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan by each calibration, and what they were made from."""
    folder = tmp_path_factory.mktemp("planned")
    data, secrets = records(folder), usual_book(folder)
    for calibration in ("curve", "fano"):
        output = folder / f"{calibration}.safetensors"
        assert plan(data, secrets, "--cap", "3", "--calibration", calibration, "-o", str(output), "--quiet") == 0
    return folder


@pytest.mark.parametrize("calibration", ["curve", "fano"])
def test_a_plan_meets_every_secret_and_one_of_them_just(planned: Path, calibration: str) -> None:
    data, secrets = planned / "train.jsonl", planned / "secrets.jsonl"
    found = read_protection(planned / f"{calibration}.safetensors")
    assert found.ids == ("few", "many", "none")
    assert found.facts.data == file_digest(data)
    assert found.facts.secrets == file_digest(secrets)
    assert found.facts.calibration == calibration
    assert found.probabilities.sum() == pytest.approx(BATCH)
    ratios = found.bounds / found.posteriors if calibration == "curve" else found.information / found.budgets
    assert ratios.max() == pytest.approx(1, abs=3e-4 if calibration == "curve" else 1e-6)
    assert ratios.max() <= 1
    for j in range(2):
        event = SecretMixture(
            probabilities=tuple(found.of_secret(j).tolist()),
            noise_multiplier=found.facts.noise_multiplier,
            steps=STEPS,
        )
        assert found.information[j] == pytest.approx(information(event), rel=1e-9)
        assert found.posterior_bounds[j] == pytest.approx(posterior(found.information[j], found.priors[j]))
        assert found.curve_bounds[j] == pytest.approx(curve_posterior(event, float(found.priors[j])), rel=1e-4)
        load = found.weights[found.records[found.starts[j] : found.starts[j + 1]]].sum()
        assert load <= 3 * found.budgets[j]
    assert found.information[2] == 0
    assert found.curve_bounds[2] == found.priors[2]
    assert found.curve_bounds[np.argmax(ratios)] < found.posterior_bounds[np.argmax(ratios)]


def test_the_curve_takes_less_noise_and_the_report_says_what_fano_would(planned: Path) -> None:
    noise = {name: read_protection(planned / f"{name}.safetensors").facts for name in ("curve", "fano")}
    curve = noise["curve"]
    assert 0.3 < curve.noise_multiplier / noise["fano"].noise_multiplier < 0.8
    assert curve.fano_noise_multiplier == noise["fano"].noise_multiplier
    assert noise["fano"].fano_noise_multiplier is None
    report = decode((planned / "curve.report.json").read_text(), "report")
    assert report.parameters["caps"][0]["fano_noise_multiplier"] == curve.fano_noise_multiplier
    by_curve, by_fano, _ = report.guarantees
    assert by_curve.name.endswith("trade-off curve")
    assert by_curve.risks[0].bound <= 0.1 < by_fano.risks[0].bound
    assert f"would ask for a noise multiplier of {curve.fano_noise_multiplier:.6g}" in by_fano.note


def test_assumptions_of_several_guarantees_are_printed_once(planned: Path) -> None:
    report = decode((planned / "curve.report.json").read_text(), "report")
    text = " ".join(secrets_plan_text(report, verbose=True).split())
    by_curve, by_fano, one_record = report.guarantees
    assert by_curve.assumptions == by_fano.assumptions
    for assumption in (*by_curve.assumptions, *one_record.assumptions):
        assert text.count(f"{assumption.state}: {assumption.statement}") == 1, assumption
    assert text.count(f"where the assumptions listed under '{by_curve.name}' hold What that leaves") == 1
    # One that rests on more names what it adds.
    more = Assumption(name="more", statement="more is true", state=AssumptionState.ASSERTED)
    longer = replace(by_fano, assumptions=(*by_fano.assumptions, more))
    text = " ".join(secrets_plan_text(replace(report, guarantees=(by_curve, longer))).split())
    assert f"where the assumptions listed under '{by_curve.name}' hold, and: asserted: more is true" in text
    # One that lacks an assumption of the other lists its own.
    shorter = replace(by_fano, assumptions=by_fano.assumptions[1:])
    text = " ".join(secrets_plan_text(replace(report, guarantees=(by_curve, shorter)), verbose=True).split())
    assert text.count(by_curve.assumptions[-1].statement) == 2


def test_without_a_cap_the_noise_is_that_of_the_worst_secret(data: Path, tmp_path: Path) -> None:
    secrets = book(tmp_path, {"id": "a", "kind": "k", "records": [3]}, {"id": "b", "kind": "k", "records": [4, 5, 6]})
    output = tmp_path / "plan.safetensors"
    assert plan(data, secrets, "--calibration", "fano", "-o", str(output), "--quiet") == 0
    found = read_protection(output)
    np.testing.assert_array_equal(found.weights, np.ones(EXAMPLES))
    alone = noise_multiplier_for([BATCH / EXAMPLES] * 3, STEPS, 0.001, 0.1)
    assert found.facts.noise_multiplier == pytest.approx(alone, rel=1e-8)


def test_a_plan_without_a_calibration_of_its_own_is_one_by_fano(data: Path, secrets: Path, tmp_path: Path) -> None:
    """As plans were written before there was a choice."""
    output = tmp_path / "plan.safetensors"
    assert plan(data, secrets, "--calibration", "fano", "-o", str(output), "--quiet") == 0
    raw = output.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    facts = json.loads(header["__metadata__"]["privctl.secrets"])
    assert facts.pop("calibration") == "fano"
    facts.pop("fano_noise_multiplier", None)
    header["__metadata__"]["privctl.secrets"] = json.dumps(facts)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    output.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    assert read_protection(output).facts.calibration == "fano"


def test_the_pairwise_form_takes_more_noise(data: Path, secrets: Path, tmp_path: Path) -> None:
    found = []
    for form in ("reference", "pairwise"):
        output = tmp_path / f"{form}.safetensors"
        more = ("--cap", "3", "--form", form, "--calibration", "fano")
        assert plan(data, secrets, *more, "-o", str(output), "--quiet") == 0
        found.append(read_protection(output).facts.noise_multiplier)
    assert 1.05 * found[0] < found[1] < 2.1 * found[0]


def test_the_report_says_what_it_rests_on(planned: Path) -> None:
    output = planned / "curve.safetensors"
    with SafetensorsFile(output) as file:
        assert file.metadata["privctl.report"] == "curve.report.json"
    report = decode((planned / "curve.report.json").read_text(), "report")
    assert report.step == "secrets-plan"
    assert {entry.role for entry in report.inputs} == {"data", "secrets"}
    assert [entry.digest for entry in report.outputs] == [file_digest(output)]
    by_curve, by_fano, record = report.guarantees
    assert by_fano.notion is by_curve.notion is Notion.SECRET_PROTECTION
    assert by_fano.status is Status.CONDITIONAL
    assert by_curve.risks[0].bound < by_fano.risks[0].bound
    assert record.notion is Notion.APPROXIMATE_DP
    assert any("1 of 3 secrets is in no record" in warning for warning in report.warnings)


@pytest.mark.slow
def test_a_sweep_compares_and_writes_nothing(
    data: Path, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "_SWEEP", 2)  # ten take most of ten seconds
    before = sorted(tmp_path.iterdir())
    assert plan(data, secrets, "--cap", "sweep", "--json", "--quiet") == 0
    assert sorted(tmp_path.iterdir()) == before
    report = decode(capsys.readouterr().out, "report")
    caps = report.parameters["caps"]
    assert caps[0]["cap"] is None
    assert caps[0]["kept"] == 1
    assert len(caps) == 3
    kept, noise = [c["kept"] for c in caps], [c["noise_multiplier"] for c in caps]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < kept[0]
    assert min(noise) < noise[0]


def test_the_table_is_readable(data: Path, secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(data, secrets, "--cap", "none,3", "--quiet") == 0
    stdout = capsys.readouterr().out
    assert "3 secrets in 32 of 60 records" in stdout
    assert "noise multiplier" in stdout
    assert "by Fano" in stdout
    assert max(map(len, stdout.splitlines()[:6])) <= 80
    assert "left out: records that are never drawn" in " ".join(stdout.split())
    assert "gap" not in stdout


def test_what_comes_next_is_said(data: Path, secrets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(data, secrets) == 0
    assert "nothing is written; privctl retrain dp-sgd --secrets needs the plan" in capsys.readouterr().err
    output = tmp_path / "plan.safetensors"
    assert plan(data, secrets, "-o", str(output)) == 0
    call = f"privctl retrain dp-sgd MODEL --data {data} --secrets {output} -o private\n"
    assert f"train with it: {call}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "part"),
    [
        (["--cap", "0"], 2, "--cap is 0"),
        (["--cap", "1e-320"], 2, "finite number of at least 1e-100"),
        (["--cap", "x"], 2, "expected numbers such as 5"),
        (["--cap", "nan"], 2, "--cap is nan"),
        (["--prior", "0.2"], 2, "above the prior"),
        (["--prior", "0"], 2, "prior is 0"),
        (["--posterior", "1"], 2, "posterior is 1"),
        (["--target", "emial=0.01:0.1"], 2, "no secret"),
        (["--target", "word=0.01"], 2, "expected KIND=PRIOR:POSTERIOR"),
        (["--target", "word=0.1:0.01"], 2, "above the prior"),
        (["--target", "word=0.001:0.1", "--target", "word=0.001:0.5"], 2, "the kind 'word' twice"),
        (["--delta", "1"], 2, "--delta is 1"),
        (["--calibration", "curve", "--form", "pairwise"], 2, "cannot be combined with --form pairwise"),
        (["--gap", "0"], 2, "--gap is 0"),
        (["--gap", "0.1", "--solver", "interior"], 2, "remove it, or --solver interior"),
        (["--cap", "0.01", "--batch-size", "40"], 2, "smaller batch or a larger cap"),
        (["--cap", "2,3", "-o", "plan.safetensors"], 2, "plan of a single --cap"),
        (["-o", "plan.json"], 2, "does not end in .safetensors"),
    ],
)
def test_mistakes_get_one_sentence(
    data: Path,
    secrets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    code: int,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert plan(data, secrets, "--quiet", *more) == code
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_book_of_other_data_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = book(tmp_path, {"id": "a", "kind": "k", "records": [3, EXAMPLES]})
    assert plan(data, secrets) == 3
    assert f"'a' into record {EXAMPLES}" in capsys.readouterr().err


def test_secrets_in_no_record_alone_are_nothing_to_protect(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(data, book(tmp_path, {"id": "a", "kind": "k", "records": []})) == 3
    assert "nothing to protect" in capsys.readouterr().err


@pytest.mark.slow
def test_a_secret_in_every_record_and_a_record_of_many_secrets(data: Path, tmp_path: Path) -> None:
    rows = [{"id": f"s{j}", "kind": "k", "records": [7]} for j in range(300)]
    secrets = book(tmp_path, {"id": "all", "kind": "k", "records": list(range(EXAMPLES))}, *rows)
    output = tmp_path / "plan.safetensors"
    assert plan(data, secrets, "--cap", "30", "-o", str(output), "--quiet") == 0
    found = read_protection(output)
    assert (found.bounds <= found.posteriors).all()
    assert found.ids[int(np.argmax(found.bounds / found.posteriors))] == "all"


def test_outputs_are_kept_without_force(data: Path, secrets: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.safetensors"
    output.write_bytes(b"mine")
    by_fano = ("--calibration", "fano", "--quiet")
    assert plan(data, secrets, "-o", str(output)) == 2
    assert output.read_bytes() == b"mine"
    assert plan(data, secrets, "-o", str(output), "--force", *by_fano) == 0
    assert plan(data, secrets, "-o", str(tmp_path / "other.safetensors"), *by_fano) == 0


@pytest.mark.parametrize(("many", "asked", "gap"), [(10**6, (), 1e-4), (1, (), 1e-3), (1, ("--gap", "0.01"), 0.01)])
def test_the_gap_follows_from_the_size_unless_one_is_asked_for(
    many: int, asked: tuple[str, ...], gap: float, data: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = []

    def noted(problem: Packing, gap: float, **more: Any) -> Solution:
        gaps.append(gap)
        return pdlp(problem, gap, **more)

    monkeypatch.setattr(weights, "_MANY", many)
    monkeypatch.setattr(weights, "pdlp", noted)
    by_fano = ("--calibration", "fano", "-q")  # the weights are found before the noise
    assert plan(data, secrets, "--cap", "0.5", "--solver", "first-order", *by_fano, *asked) == 0
    assert gaps == [gap]


def test_a_book_numbers_records_in_the_order_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned in another order, records without the secret would be held back in place of those that hold it."""
    first, second, found = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "book.jsonl"
    first.write_text("".join(f'{{"text": "{"ann@mat.example" if i < 5 else "a cat"}"}}\n' for i in range(20)))
    second.write_text('{"text": "a dog"}\n' * 20)
    assert run(["secrets", "scan", str(first), str(second), "-o", str(found), "-q"]) == 0
    asked = ["--secrets", str(found), "--steps", "4", "--batch-size", "4", "--cap", "1", "-q"]
    assert run(["secrets", "plan", str(second), str(first), *asked]) == 3
    assert "or from the same in another order" in capsys.readouterr().err
    assert run(["secrets", "plan", str(first), str(second), *asked]) == 0
