"""The demonstration in small: every artifact is there, says what holds, and its chain of digests is intact."""

import json
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from privctl.cli import run
from privctl.demo.check import check
from privctl.demo.run import ANY_LOSS_EPSILON, EPSILONS, DemoModel, guarantee_under, run_demo
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.mechanism import Regime
from privctl.reports.audit_log import read_log
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.forked import Forked


@contextmanager
def silent(_: str, __: float, ___: str) -> Iterator[object]:
    yield lambda _: None


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoModel, ...]:
    return run_demo(tmp_path_factory.mktemp("demo"), 0, silent, notes=40)  # type: ignore[arg-type]


def test_one_chapter_a_model(told: tuple[DemoModel, ...]) -> None:
    assert [c.target.epsilon for c in told if c.target] == [*EPSILONS, ANY_LOSS_EPSILON]
    assert all(c.model.is_dir() for c in told)
    assert all(0 <= (c.auc.estimate or -1) <= 1 for c in told)
    noise = [c.noise_stddev for c in told]
    assert noise == sorted(noise)
    assert math.isfinite(told[0].perplexity or math.inf)


def test_the_nonconvex_bound_rests_on_rounding_in_the_training_alone(told: tuple[DemoModel, ...]) -> None:
    for chapter in told[1:]:
        assert not any(g.status is Status.PROVED for g in chapter.guarantees)
        for guarantee in chapter.guarantees:
            asserted = {a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED}
            if guarantee.name != "published":
                assert (asserted == {"training-rounding"}) == (guarantee.name == "nonconvex")
    last = guarantee_under(told[-1], Regime.NONCONVEX)
    assert last is not None
    assert last.epsilon == pytest.approx(ANY_LOSS_EPSILON, rel=1e-9)


def test_every_chain_is_intact(told: tuple[DemoModel, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for chapter in told:
        assert run(["inspect", str(chapter.model), "-q"]) == 0
    assert "retrain at" in capsys.readouterr().out


def test_every_audit_is_in_a_log(told: tuple[DemoModel, ...]) -> None:
    for chapter in told:
        report = chapter.model.with_name(chapter.model.name + ".audit.report.json")
        (logged,) = read_log(chapter.model.with_name(chapter.model.name + ".audits.jsonl")).audits
        assert logged.report == file_digest(report)
        position = read_report(report).log
        assert position is not None
        assert position.digest == logged.begun.digest


def test_every_report_passes_verification(told: tuple[DemoModel, ...]) -> None:
    found = check(told[0].model.parent)
    assert (found.exit_code, found.failed, found.reports) == (0, (), 12)
    assert (found.proved, found.false) == (4 * 8 + 4, 4)


def test_every_report_reads_back(told: tuple[DemoModel, ...]) -> None:
    reports = [read_report(path) for path in told[0].model.parent.glob("model*.report.json")]
    assert sorted(r.step for r in reports) == ["audit"] * 6 + ["noise"] * 5 + ["retrain"]


def test_noisy_models_load_and_generate(told: tuple[DemoModel, ...]) -> None:
    network = AutoModelForCausalLM.from_pretrained(told[1].model)
    tokenizer = AutoTokenizer.from_pretrained(told[1].model)
    tokens = tokenizer("Edda Norrvik,", return_tensors="pt", add_special_tokens=False)
    made = network.generate(**tokens, max_new_tokens=5, do_sample=False)
    assert made.shape[1] > tokens["input_ids"].shape[1]


def test_members_and_nonmembers_do_not_overlap_by_name(told: tuple[DemoModel, ...]) -> None:
    folder = told[0].model.parent
    sets = [
        {json.loads(line)["text"] for line in (folder / name).read_text().splitlines()}
        for name in ("members.jsonl", "nonmembers.jsonl")
    ]
    assert sets[0]
    assert not sets[0] & sets[1]


def test_the_example_goes_on_from_here(told: tuple[DemoModel, ...], root: Path, forked: Forked) -> None:
    folder = told[0].model.parent
    command = ["bash", str(root / "examples" / "choose-a-candidate.sh"), str(folder)]
    environment = {**os.environ, "PRIVCTL": forked.shell()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nonconvex" in done.stdout
    assert "(conditional)" in done.stdout
    assert len(list(folder.glob("candidate-eps*.audit.report.json"))) == 3
    assert "REFUTED" not in (folder / "candidate-eps5.inspection.txt").read_text()


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    assert run(["demo", "-o", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
