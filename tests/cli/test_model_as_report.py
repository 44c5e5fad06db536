"""``verify``, ``gate`` and ``report`` given a model: its reports are those beside it that fit its weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.reports.of_model import reports_of, weight_digests
from tests.gate.genuine import genuine
from tests.work import bytes_read

Capture = pytest.CaptureFixture[str]
MODEL, OWN, AUDIT = "release/model", "release/model.report.json", "release/model.audit.report.json"


@pytest.fixture
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three models of one folder, with their reports and audits."""
    shutil.copytree(genuine(tmp_path_factory), tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def found(model: str) -> list[str]:
    reports = reports_of(Path(model), weight_digests(Path(model)))
    return [os.path.relpath(path) for path in reports.all]


def flip(path: Path) -> None:
    weights = bytearray(path.read_bytes())
    weights[-1] ^= 1
    path.write_bytes(weights)


def test_each_model_has_its_own_and_no_others(here: Path) -> None:
    assert found(MODEL) == [OWN, AUDIT]
    assert found("release/clipped") == ["release/clipped.report.json", "release/clipped.audit.report.json"]
    assert found("release/noised") == ["release/noised.report.json"]
    assert found("release/model/model.safetensors") == [OWN, AUDIT], "its header names one"


def test_a_model_is_verified_by_its_report(here: Path, capsys: Capture) -> None:
    assert run(["verify", MODEL, "-o", "release/model.verify.report.json"]) == 0
    captured = capsys.readouterr()
    assert f"verifying {OWN}, the report of {MODEL}" in captured.err
    assert "dp-sgd" in captured.out
    assert run(["verify", OWN, "-q"]) == 0
    assert capsys.readouterr().out == captured.out
    assert run(["verify", AUDIT, "-q", "-o", "release/second.report.json"]) in (0, 3)
    assert sorted(found(MODEL)) == sorted(
        [OWN, AUDIT, "release/model.verify.report.json", "release/second.report.json"]
    ), "verifications of its audits too"


@pytest.mark.parametrize("copied", [False, True], ids=["renamed", "a copy"])
def test_the_model_given_is_verified_under_another_name(here: Path, capsys: Capture, copied: bool) -> None:
    """The report was found by the weights' digest, and then the files under the old name were checked, or none."""
    delivered = Path("release/delivered")
    (shutil.copytree if copied else shutil.move)(MODEL, delivered)
    assert run(["verify", str(delivered)]) == 0
    captured = capsys.readouterr()
    assert f"verifying {OWN}, the report of {delivered}" in captured.err
    assert "weights" in captured.out, "they were compared with those that the training began with"
    config = delivered / "config.json"
    config.write_text(config.read_text() + " ")
    assert run(["verify", str(delivered), "-q"]) == 1
    assert "config.json: its digest is not the one recorded" in capsys.readouterr().out
    config.unlink()
    assert run(["verify", str(delivered), "-q"]) == 3
    if not copied:
        assert run(["verify", OWN, "-q"]) == 3
        assert "if it has another name now" in " ".join(capsys.readouterr().out.split())


def test_the_gate_takes_a_model_and_checks_its_bytes(here: Path, capsys: Capture) -> None:
    assert run(["gate", MODEL, "--max-epsilon", "3", "--max-auc", "0.7", "--require-model", "true"]) == 0
    captured = capsys.readouterr()
    assert "the model given is the one" in captured.out
    assert f"the reports of {MODEL}: {OWN}, {AUDIT}" in captured.err
    assert run(["gate", MODEL, "--max-epsilon", "2.9", "-q"]) == 1
    assert run(["gate", MODEL, OWN, "--max-epsilon", "3", "-q"]) == 0, "named twice, counted once"
    assert "the same report" not in capsys.readouterr().out
    assert run(["gate", MODEL, "release/clipped", "--max-epsilon", "3"]) == 2
    assert "release/model and release/clipped are two models; judge one at a time" in capsys.readouterr().err


def test_a_page_of_a_model_is_that_of_its_reports(here: Path, capsys: Capture) -> None:
    assert run(["report", MODEL, "--format", "markdown", "-o", "-", "-q"]) == 0
    by_model = capsys.readouterr().out
    assert run(["report", OWN, AUDIT, "--format", "markdown", "-o", "-", "-q"]) == 0
    assert capsys.readouterr().out == by_model
    assert run(["report", MODEL, "-q"]) == 0
    assert Path("release/model.html").is_file()


def test_a_model_s_reports_are_signed_and_checked(here: Path, capsys: Capture) -> None:
    assert run(["sign", "--new-key", "ci", "-q"]) == 0
    assert run(["sign", MODEL, "--key", "ci.key"]) == 0
    assert f"the reports of {MODEL}: {OWN}, {AUDIT}" in capsys.readouterr().err
    assert all(Path(path.replace(".report.json", ".dsse.json")).is_file() for path in (OWN, AUDIT))
    assert run(["sign", MODEL, "--check", "ci.pub", "-q"]) == 0
    assert capsys.readouterr().out.count("signed by ci.pub") == 2
    flip(Path(MODEL) / "model.safetensors")
    assert run(["sign", MODEL, "--key", "ci.key", "-f"]) == 3, "changed weights have no report to sign"


def test_an_audit_of_the_weights_before_is_named_and_left_out(here: Path, capsys: Capture) -> None:
    shutil.rmtree(MODEL)
    shutil.move("release/noised", MODEL)
    made_again = Path("release/noised.report.json").read_text().replace('"path": "noised/', '"path": "model/')
    Path("release/noised.report.json").unlink()
    Path(OWN).write_text(made_again)
    assert found(MODEL) == [OWN]
    assert run(["gate", MODEL, "--max-auc", "0.7"]) != 0
    stderr = capsys.readouterr().err
    assert f"the reports of {MODEL}: {OWN}\n" in stderr
    assert f"left out, because the weights have changed since: {AUDIT}; run what wrote them again" in stderr


def test_no_page_is_made_of_changed_weights(here: Path, capsys: Capture) -> None:
    flip(here / MODEL / "model.safetensors")
    before = sorted(here.rglob("*"))
    assert run(["report", MODEL]) == 3
    error = capsys.readouterr().err
    assert f"no report beside {MODEL} was written with these weights" in error
    assert "model.report.json is about other weights" in error
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("model", [MODEL, f"{MODEL}/model.safetensors"])
def test_changed_weights_are_refuted_by_the_report_of_their_name(here: Path, capsys: Capture, model: str) -> None:
    flip(here / MODEL / "model.safetensors")
    assert run(["verify", OWN, "-q"]) == 1
    by_report = capsys.readouterr().out
    assert run(["verify", model]) == 1
    captured = capsys.readouterr()
    assert captured.out == by_report
    changed = f"{OWN} names the files of {model}, but the digest of its weights is another"
    assert changed in captured.err
    assert run(["gate", OWN, "--model", MODEL, "--max-epsilon", "3", "-q"]) == 1
    assert run(["gate", model, "--max-epsilon", "3"]) == 1
    assert changed in capsys.readouterr().err


def test_a_report_whose_digests_fit_is_taken_before_one_of_the_name(here: Path, capsys: Capture) -> None:
    shutil.rmtree(MODEL)
    shutil.move("release/noised", MODEL)
    shutil.move("release/noised.report.json", "release/moved.report.json")
    assert run(["verify", MODEL]) == 0, "the files that it names are there under another name"
    stderr = capsys.readouterr().err
    assert f"verifying release/moved.report.json, the report of {MODEL}" in stderr
    assert "is another" not in stderr


@pytest.mark.parametrize(
    ("call", "times"),
    [
        # The weights of a trained model are held against where its training began, which is another pass.
        (["verify", MODEL], 2),
        (["verify", OWN], 2),
        (["verify", "release/noised"], 1),
        (["gate", MODEL, "--max-epsilon", "3"], 1),
        (["gate", MODEL, "--model", MODEL, "--max-epsilon", "3"], 1),
        (["gate", "release/noised", "--max-epsilon", "3"], 1),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_the_weights_are_read_once(here: Path, call: list[str], times: int) -> None:
    path = Path("release/noised" if "release/noised" in call else MODEL) / "model.safetensors"
    read = bytes_read(lambda: run([*call, "-q"]))
    assert round(read[str(path.absolute())] / path.stat().st_size) == times


def test_another_models_report_in_its_place_is_not_taken(here: Path) -> None:
    shutil.copyfile("release/clipped.report.json", OWN)
    with pytest.raises(InputError, match=r"no report beside release/model was written with these weights"):
        found(MODEL)


def test_two_reports_that_claim_the_model_are_for_the_user_to_choose(here: Path, capsys: Capture) -> None:
    shutil.copyfile(OWN, "release/copy.report.json")
    assert found(MODEL) == [OWN, AUDIT], "a copy is the same report"
    other = json.loads(Path(OWN).read_text())
    other["guarantees"][0]["epsilon"] = 0.1
    Path("release/better.report.json").write_text(json.dumps(other))
    assert run(["verify", MODEL]) == 3
    message = "2 reports say that they made release/model (better.report.json, model.report.json); give the one"
    assert message in capsys.readouterr().err


def test_a_damaged_report_is_named(here: Path, capsys: Capture) -> None:
    Path(OWN).write_text("{}")
    assert run(["verify", MODEL]) == 3
    assert OWN in capsys.readouterr().err


def test_where_there_is_nothing_to_find(here: Path, capsys: Capture) -> None:
    Path("empty").mkdir()
    assert run(["verify", "empty"]) == 3
    assert "empty is neither a report nor a model: empty holds neither model.safetensors nor" in capsys.readouterr().err
    Path("lonely/folder").mkdir(parents=True)
    shutil.copy("release/model/model.safetensors", "lonely/folder/model.safetensors")
    assert run(["verify", "lonely/folder"]) == 3
    error = capsys.readouterr().err
    assert "give the report that was written with it, NAME.report.json" in error
    assert "nothing is known of what the model reveals, so treat it as you treat its training data" in error
    shutil.copy(AUDIT, "lonely/folder.audit.report.json")
    assert run(["gate", "lonely/folder", "--max-auc", "0.7"]) == 3
    assert "lonely/folder.audit.report.json only examined them; give the report" in capsys.readouterr().err
    assert run(["verify", "lonely/folder"]) == 3
    assert "or if there is none, give that audit by name" in capsys.readouterr().err
    assert run(["verify", "nowhere.safetensors"]) == 3
    assert "nowhere.safetensors" in capsys.readouterr().err


def test_a_page_of_a_model_that_was_only_audited(here: Path, capsys: Capture) -> None:
    """Whoever audits somebody else's model has no report of how it was made; one about other weights still stops it."""
    Path("lonely/folder").mkdir(parents=True)
    shutil.copy("release/clipped/model.safetensors", "lonely/folder/model.safetensors")
    assert run(["report", "lonely/folder", "-o", "page.md"]) == 3
    shutil.copy("release/clipped.audit.report.json", "lonely/folder.audit.report.json")
    capsys.readouterr()
    assert run(["report", "lonely/folder", "-o", "page.md"]) == 0
    stderr = capsys.readouterr().err
    assert (
        "nothing beside lonely/folder says how it was made; what examined it: lonely/folder.audit.report.json" in stderr
    )
    assert "It is not known how this model was made" in Path("page.md").read_text()
    shutil.copy(OWN, "lonely/folder.report.json")
    assert run(["report", "lonely/folder", "-o", "other.md"]) == 3
    assert "folder.report.json is about other weights" in capsys.readouterr().err
    assert not Path("other.md").exists()


def test_a_pipe_among_the_reports_hangs_nothing(here: Path) -> None:
    os.mkfifo("release/pipe.report.json")
    assert found(MODEL) == [OWN, AUDIT]


def test_a_folder_of_models_names_one(here: Path, capsys: Capture) -> None:
    assert run(["inspect", "release"]) == 3
    assert "give a .safetensors file, or a folder that holds one, such as release/clipped" in capsys.readouterr().err


def test_reports_of_another_model_under_its_name_are_named_and_left_out(here: Path, capsys: Capture) -> None:
    shutil.copytree("release/noised", "release/copy")
    shutil.copyfile(AUDIT, "release/copy.audit.report.json")
    shutil.copyfile("release/clipped.report.json", "release/copy.report.json")
    assert run(["gate", "release/copy", "--max-auc", "0.7"]) != 0
    stderr = capsys.readouterr().err
    left = "release/copy.report.json, release/copy.audit.report.json"
    assert "the reports of release/copy: release/noised.report.json\n" in stderr
    assert f"left out, not about this model: {left}" in stderr
    assert run(["gate", MODEL, "--max-auc", "0.7"]) == 0
    assert "left out" not in capsys.readouterr().err
