from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from audits import ATTACKS
from audits.scores.causal import CausalScorer
from privctl.cli import run
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode
from privctl.storage.digest import file_digest
from tests.audits.tiny import save_model, save_tokenizer, sentences, write_jsonl
from tests.conftest import ROOT
from tests.few import few
from tests.forked import Forked


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has learnt its members by heart, and the two files."""
    folder = tmp_path_factory.mktemp("trained")
    members, nonmembers = sentences(60, seed=1), sentences(120, seed=2)
    write_jsonl(folder / "members.jsonl", members)
    write_jsonl(folder / "nonmembers.jsonl", nonmembers)
    save_model(folder / "model")
    network = AutoModelForCausalLM.from_pretrained(folder / "model")
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    ids = [torch.tensor([int(word[1:]) + 3 for word in text.split()]) for text in members]
    batches = [
        torch.nn.utils.rnn.pad_sequence(ids[i : i + 6], batch_first=True, padding_value=-100) for i in range(0, 60, 6)
    ]
    for _ in range(32):
        for labels in batches:
            optimizer.zero_grad()
            rows = labels.clamp(min=0)
            network(input_ids=rows, attention_mask=(labels >= 0).long(), labels=labels).loss.backward()
            optimizer.step()
    network.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "place"))


def audit(folder: Path, *more: str, model: str = "model") -> int:
    files = ["--members", str(folder / "members.jsonl"), "--nonmembers", str(folder / "nonmembers.jsonl")]
    cache = ["--cache", str(folder / "cache")]
    return run(["audit", str(folder / model), *files, *cache, "--device", "cpu", *more])


def report_of(path: Path) -> PrivacyReport:
    return decode(path.read_text(), path.name)


def test_a_memorised_set_is_found(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit(folder) == 0
    out, err = capfd.readouterr()
    verdict, *_, table = out.split("\n\n")
    heading, _, first, *_ = table.splitlines()
    printed = out
    out = " ".join(out.split())  # as it was before lines were folded
    assert heading.split("  ")[0] == "finding"
    assert first.split()[0] in ("loss", "min-k", "min-k++", "min-k++-all", "zlib", "quantile")
    assert 'REJECTED: "members cannot be told from non-members": ' in out
    (command,) = (line for line in printed.splitlines() if line.startswith("  privctl "))
    assert (
        command == f"  privctl retrain dp-sgd START --data {folder}/members.jsonl --epsilon 8 -o {folder}/model.dp-sgd"
    )
    for words in (
        "asserts",
        "7 attacks were tried (loss, midpoint, zlib, min-k, min-k++, min-k++-all, quantile). Whether any does better",
        "stronger attack",
        "loss, TPR at 0.1 % FPR (also zlib, min-k, min-k++, min-k++-all, quantile): a false positive rate of 0.001",
        "reference attack: it needs a model given by --reference",
    ):
        assert words in out
    assert "wrote" in err
    assert "Traceback" not in err
    assert " ".join(verdict.split()).startswith(
        "Do not release: an attacker shown a training record and another one tells which is which 100 % of"
    )
    assert out.count("The exit code is 0 nevertheless, because no claim of privacy was refuted.") == 1
    for text in ("train again", "compares with shadow models", "needs at least 1000 non-members", "treat the model as"):
        assert out.count(text) == 1, text

    report = report_of(folder / "model.audit.report.json")
    assert report.step == "audit"
    assert [item.role for item in report.inputs] == [
        "model", "config", "tokenizer", "tokenizer", "companion", "members", "nonmembers",
    ]  # fmt: skip
    for item in (*report.inputs, *report.outputs):
        assert file_digest(folder / item.path) == item.digest
    assert report.parameters["attack"] == ["loss", "midpoint", "zlib", "min-k", "min-k++", "min-k++-all", "quantile"]
    (verdict,) = report.verdicts
    assert verdict.outcome is Outcome.REFUTED
    assert {item.method for item in report.evidence} >= {"blind baseline", "length baseline"}
    assert set(report.versions) == {"privctl", "python", "torch", "transformers", "numpy", "scipy", "tokenizers"}
    area = next(item for item in report.evidence if item.quantity == "AUC")
    assert area.lower is not None
    assert area.lower > 0.8
    assert area.confidence == pytest.approx(1 - 0.05 / 29)
    assert area.samples == {"members": 60, "nonmembers": 120}
    member = load_file(folder / "model.audit.scores.safetensors")["member"]
    assert (member.sum(), len(member)) == (60, 180)


def test_nothing_to_find_is_not_called_private(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_model(folder / "model", seed=9)
    write_jsonl(folder / "members.jsonl", sentences(150, seed=3))
    capfd.readouterr()
    assert audit(folder, "--quiet") == 0
    out, err = capfd.readouterr()
    out = " ".join(out.split())
    assert 'INCONCLUSIVE: "members cannot be told from non-members": no attack found a difference, but' in out
    assert out.startswith("Inconclusive: no attack found a leak, but the audit is small: ")
    assert "Next: audit again with about " in out
    assert "private" not in out
    assert "exit code" not in out
    assert err == ""


def test_json_and_one_attack(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = audit(folder, "--json", "--attack", "loss", "-o", str(folder / "x.report.json"), "--max-length", "8")
    assert code == 0
    printed = capfd.readouterr().out
    assert printed == (folder / "x.report.json").read_text()
    report = decode(printed, "stdout")
    assert {item.method for item in report.evidence} == {"loss", "blind baseline", "length baseline"}
    assert report.evidence[0].confidence == pytest.approx(1 - 0.05 / 6)
    assert report.parameters["max_length"] == 8
    assert report.outputs[0].path == "x.scores.safetensors"
    assert any("cut to their first 8 tokens" in line for line in report.warnings)


def test_a_single_file_and_its_parent(folder: Path) -> None:
    assert audit(folder, "--attack", "loss", "-o", str(folder / "model" / "p.report.json")) == 0
    parent = report_of(folder / "model" / "p.report.json")
    weights = load_file(folder / "model" / "model.safetensors")
    for pointer in ("p.report.json", "gone.report.json"):
        save_file(weights, folder / "model" / "noisy.safetensors", metadata={"privctl.report": pointer})
        assert audit(folder, "-f", "--attack", "loss", model="model/noisy.safetensors") == 0
        report = report_of(folder / "model" / "noisy.audit.report.json")
        doubts = [line for line in report.warnings if "the model names" in line]
        if pointer == "gone.report.json":
            assert report.parents == ()
            assert "gone.report.json is not a file" in doubts[0]
        else:
            (entry,) = report.parents
            assert (entry.path, entry.digest) == (pointer, file_digest(folder / "model" / pointer))
            assert "about other weights" in doubts[0]
            assert parent.outputs[0].digest != report.inputs[0].digest


def test_repeats_and_overlap_are_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shared = sentences(3, seed=2)
    write_jsonl(folder / "members.jsonl", [*sentences(10, seed=1), *shared, sentences(10, seed=1)[0], "w1"])
    assert audit(folder, "--attack", "loss") == 0
    out = capfd.readouterr().out
    assert "left out: 3 members, occurring among members and non-members alike" in out
    assert "left out: 2 members, repeated, while others occur in both files" in out
    assert "left out: 1 member, of too few tokens" in out
    omissions = {(item.what, item.reason) for item in report_of(folder / "model.audit.report.json").omissions}
    assert ("3 nonmembers", "occurring among members and non-members alike") in omissions


@pytest.mark.slow
def test_the_same_call_gives_the_same_report(folder: Path) -> None:
    reports = []
    for _ in range(2):
        assert audit(folder, "-f", "--seed", "5", "--attack", "loss", "--attack", "quantile") == 0
        data = json.loads((folder / "model.audit.report.json").read_text())
        reports.append({key: value for key, value in data.items() if key not in ("created", "log")})
    assert reports[0] == reports[1]


def test_swapped_files_are_pointed_out(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "members.jsonl").rename(folder / "a")
    (folder / "nonmembers.jsonl").rename(folder / "members.jsonl")
    (folder / "a").rename(folder / "nonmembers.jsonl")
    assert audit(folder, "--attack", "loss") == 0
    assert "check that the two files were not swapped" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "members.jsonl holds no records"),
        ('{"text": "w1 w2"}\n{"text": ', "members.jsonl line 2 is not valid JSON"),
        ('{"text": "w1"}\n', "members.jsonl has no record that can be scored: 1 left out (of too few tokens"),
    ],
)
def test_bad_data_ends_in_one_sentence(
    folder: Path, content: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "members.jsonl").write_text(content)
    assert audit(folder) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("privctl: ")
    assert len(err.splitlines()) == 1
    assert not list(folder.glob("*.audit.*"))


def test_a_pipe_of_which_no_digest_would_stand_in_the_report_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "members.jsonl").unlink()
    os.mkfifo(folder / "members.jsonl")
    assert audit(folder) == 2
    assert "is a device or a pipe, which can be read only once" in capfd.readouterr().err
    assert not list(folder.glob("*.audit.*"))


def test_a_model_that_gives_nan_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    assert audit(folder, "-q") == 3
    assert "gives NaN or infinite scores" in capfd.readouterr().err


def test_outputs_are_not_replaced_unasked(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.audit.report.json").write_text("mine")
    assert audit(folder) == 2
    assert "give --force to replace it" in capfd.readouterr().err
    assert (folder / "model.audit.report.json").read_text() == "mine"
    assert audit(folder, "--force", "-o", str(folder / "members.jsonl")) == 2
    assert "is an input of this audit" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--attack", "unheard-of"], 2),
        (["--max-length", "1"], 2),
        (["--max-length", "65"], 2),
        (["--seed", "-1"], 2),
        (["--device", "cuda:99"], 2),
    ],
)
def test_settings_that_cannot_be(folder: Path, arguments: list[str], code: int) -> None:
    assert audit(folder, *arguments) == code


def test_one_file_given_twice(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["--members", str(folder / "members.jsonl"), "--nonmembers", str(folder / "members.jsonl")]
    assert run(["audit", str(folder / "model"), *files]) == 2
    assert "are the same file" in capfd.readouterr().err


def test_a_missing_tokenizer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model" / "tokenizer.json").unlink()
    assert audit(folder) == 3
    assert "has no tokenizer" in capfd.readouterr().err


def test_help_shows_every_attack(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "membership", "--help"]) == 0
    out = capfd.readouterr().out
    assert ", ".join(ATTACKS) in " ".join(out.split())
    assert "Example:" in out


def test_a_reference_model_is_one_more_attack_and_a_control(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_model(folder / "other", seed=5)
    chosen = ["--attack", "loss", "--attack", "reference"]
    assert audit(folder, "--reference", str(folder / "other"), *chosen) == 0
    report = report_of(folder / "model.audit.report.json")
    methods = {item.method: item for item in report.evidence if item.quantity == "AUC"}
    assert methods["reference"].estimate > 0.9
    assert methods["reference control"].lower < 0.5
    assert {item.role for item in report.inputs} >= {"reference model", "reference config", "reference tokenizer"}
    save_tokenizer(folder / "other", words=["w1"])
    assert audit(folder, "-f", "--reference", str(folder / "other"), "--attack", "reference") == 0
    assert audit(folder, "-f", "--attack", "reference") == 2
    assert "--attack reference cannot be run: it needs a model given by --reference" in capfd.readouterr().err


@pytest.mark.slow
def test_data_that_differ_by_themselves_confound(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_jsonl(folder / "nonmembers.jsonl", [f"{text} w9 w9 w9 w9" for text in sentences(300, seed=2)])
    write_jsonl(folder / "members.jsonl", sentences(300, seed=1))
    assert audit(folder, "--attack", "loss") == 0
    out = " ".join(capfd.readouterr().out.split())
    assert 'INCONCLUSIVE: "members cannot be told from non-members": confounded' in out
    assert ("audit again with --group-by FIELD" in out, "exit code" in out) == (True, False)


def test_a_second_audit_costs_no_pass_and_one_weight_misses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    passes: list[int] = []
    real = CausalScorer.score

    def counted(self: CausalScorer, rows: Any, advance: Any = lambda _: None) -> Any:
        passes.append(len(rows))
        return real(self, rows, advance)

    monkeypatch.setattr(CausalScorer, "score", counted)
    assert audit(folder, "--attack", "loss") == 0
    assert sum(passes) == 180
    passes.clear()
    assert audit(folder, "-f", "--attack", "min-k") == 0
    assert sum(passes) == 8, "the probes"
    first = (folder / "model.audit.scores.safetensors").read_bytes()
    files = [f for side in ("members", "nonmembers") for f in (f"--{side}", str(folder / f"{side}.jsonl"))]
    assert (
        run(["audit", str(folder / "model"), *files, "--device", "cpu", "-f", "--attack", "min-k", "--no-cache"]) == 0
    )
    assert (folder / "model.audit.scores.safetensors").read_bytes() == first
    passes.clear()
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, path, metadata={"format": "pt"})
    assert audit(folder, "-f", "--attack", "loss") == 0
    assert sum(passes) == 180


def test_a_model_of_zeros_tells_nothing(folder: Path) -> None:
    path = folder / "model" / "model.safetensors"
    save_file({name: torch.zeros_like(t) for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    assert audit(folder, "--attack", "loss", "--attack", "min-k", "--attack", "min-k++", "--attack", "midpoint") == 0
    report = report_of(folder / "model.audit.report.json")
    areas = {item.method: item.estimate for item in report.evidence if item.quantity == "AUC"}
    assert areas["min-k++"] == 0.5
    assert areas["loss"] == 0.5


def shared_call(folder: Path) -> list[str]:
    files = ["--members", str(folder / "members.jsonl"), "--nonmembers", str(folder / "nonmembers.jsonl")]
    return ["audit", str(folder / "model"), *files, "--device", "cpu", "-q", "--attack", "loss", "--json"]


def check_shared(folder: Path, output: str) -> None:
    """What two processes found is what one finds."""
    found = decode(output, "two")
    assert audit(folder, "-f", "--attack", "loss") == 0
    alone = report_of(folder / "model.audit.report.json")
    for ours, theirs in zip(found.evidence, alone.evidence, strict=True):
        assert ours.estimate == pytest.approx(theirs.estimate, abs=1e-4)


def test_two_processes_share_the_scoring(folder: Path, forked: Forked) -> None:
    first, second = forked.together(2, [*shared_call(folder), "--cache", str(folder / "two")])
    assert (first.code, second.code) == (0, 0), first.errors + second.errors
    assert second.out == ""
    check_shared(folder, first.out)


@pytest.mark.parametrize("processes", few([2, 4]))
def test_processes_need_no_cache(processes: int, folder: Path, forked: Forked) -> None:
    extraction = ["--train", str(folder / "members.jsonl"), "--greedy-only"]
    extraction += ["--prefix-tokens", "4", "--suffix-tokens", "3", "--no-cache"]
    first, *others = forked.together(processes, [*shared_call(folder), *extraction])
    assert [each.code for each in (first, *others)] == [0] * processes, first.errors
    assert not any(each.out for each in others)
    found = decode(first.out, "shared")
    assert audit(folder, "-f", "--attack", "loss", *extraction[:-1]) == 0
    alone = report_of(folder / "model.audit.report.json")
    for ours, theirs in zip(found.evidence, alone.evidence, strict=True):
        assert ours.estimate == pytest.approx(theirs.estimate, abs=1e-4)


@pytest.mark.slow
def test_torchrun_starts_them(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "privctl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    call = [*command, *shared_call(folder), "--cache", str(folder / "two")]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_shared(folder, done.stdout)


def test_extraction_from_a_classifier_is_refused_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.audits.other import save, write_data

    train, heldout = (write_data(tmp_path / name, "vit", 4, seed) for seed, name in enumerate(("t", "h")))
    model = save(tmp_path / "m", "vit")
    assert run(["audit", "extraction", str(model), "--train", str(train), "--held-out", str(heldout)]) == 2
    error = capsys.readouterr().err
    assert f"{model} does not say; audit its records with --members and --nonmembers" in " ".join(error.split())
    assert not list(tmp_path.glob("*.report.json"))
