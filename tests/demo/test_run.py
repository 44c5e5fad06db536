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
from privctl.demo.decide import POLICY_NAME, judge_models, models_to_judge, write_page
from privctl.demo.model import PRIVATE_EPSILON
from privctl.demo.run import (
    ANY_LOSS_EPSILON,
    EPSILONS,
    DemoModel,
    guarantee_for_any_loss,
    guarantee_under,
    run_demo,
)
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.mechanism import Regime
from privctl.domain.progress import unseen
from privctl.reports.audit_log import read_log
from privctl.reports.files import read_report
from privctl.show.text.demo import gate_text
from privctl.storage.digest import file_digest
from tests.forked import Forked


@contextmanager
def silent(_: str, __: float, ___: str) -> Iterator[object]:
    yield lambda _: None


@pytest.fixture(scope="module")
def chapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoModel, ...]:
    return run_demo(tmp_path_factory.mktemp("demo"), 0, silent, notes=24)  # type: ignore[arg-type]


def test_one_chapter_a_model(chapters: tuple[DemoModel, ...]) -> None:
    assert [c.target.epsilon for c in chapters if c.target] == [*EPSILONS, ANY_LOSS_EPSILON]
    assert all(c.model.is_dir() for c in chapters)
    assert all(0 <= (c.auc.estimate or -1) <= 1 for c in chapters)
    assert chapters[-1].noise_stddev is None
    noise = [c.noise_stddev for c in chapters if c.noise_stddev is not None]
    assert noise == sorted(noise)
    assert len(noise) == len(chapters) - 1
    assert math.isfinite(chapters[0].perplexity or math.inf)


def test_the_nonconvex_bound_rests_on_rounding_in_the_training_alone(chapters: tuple[DemoModel, ...]) -> None:
    for chapter in chapters[1:-1]:
        assert not any(g.status is Status.PROVED for g in chapter.guarantees)
        for guarantee in chapter.guarantees:
            asserted = {a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED}
            if guarantee.name != "published":
                assert (asserted == {"training-rounding"}) == (guarantee.name == "nonconvex")
    last = guarantee_under(chapters[-2], Regime.NONCONVEX)
    assert last is not None
    assert last.epsilon == pytest.approx(ANY_LOSS_EPSILON, rel=1e-9)


def test_every_chain_is_intact(chapters: tuple[DemoModel, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for chapter in chapters:
        assert run(["inspect", str(chapter.model), "-q"]) == 0
    assert "retrain at" in capsys.readouterr().out


def test_every_audit_is_in_a_log(chapters: tuple[DemoModel, ...]) -> None:
    for chapter in chapters:
        report = chapter.model.with_name(chapter.model.name + ".audit.report.json")
        (logged,) = read_log(chapter.model.with_name(chapter.model.name + ".audits.jsonl")).audits
        assert logged.report == file_digest(report)
        position = read_report(report).log
        assert position is not None
        assert position.digest == logged.begun.digest


@pytest.mark.slow
def test_every_report_passes_verification(chapters: tuple[DemoModel, ...]) -> None:
    found = check(chapters[0].model.parent)
    assert (found.exit_code, found.failed, found.reports) == (0, (), 14)
    assert (found.proved, found.claims_refuted) == (4 * 8 + 4 + 1, 4)


def test_every_report_reads_back(chapters: tuple[DemoModel, ...]) -> None:
    reports = [read_report(path) for path in chapters[0].model.parent.glob("*.report.json")]
    assert sorted(r.step for r in reports) == ["audit"] * 7 + ["noise"] * 5 + ["retrain"] * 2


def test_the_private_training_keeps_its_budget(chapters: tuple[DemoModel, ...]) -> None:
    guarantee = guarantee_for_any_loss(chapters[-1])
    assert guarantee is not None
    assert guarantee.epsilon is not None
    assert 0.9 * PRIVATE_EPSILON < guarantee.epsilon <= PRIVATE_EPSILON
    assert guarantee.delta == guarantee_under(chapters[1], Regime.NONCONVEX).delta  # type: ignore[union-attr]
    assert guarantee.status in (Status.PROVED, Status.CONDITIONAL)


def test_the_gate_passes_the_private_model_and_refuses_the_claim(
    chapters: tuple[DemoModel, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = chapters[0].model.parent
    private, claiming = models_to_judge(chapters)
    passed, refused = judge_models(folder, (private, claiming), unseen)
    assert private.name in passed.models[0]
    assert refused.outcome is GateOutcome.FAIL
    # So few records make delta large and intervals wide: apart from that, nothing stands in the private model's way.
    for model, stopped in ((private, set()), (claiming, {"max_epsilon"})):
        policy = ["--policy", str(folder / POLICY_NAME), "--max-auc", "0.999", "--at-delta", "0.01"]
        run(["gate", str(model), *policy, "--json", "-q"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        counted = {f["rule"] for f in findings if f["outcome"] != "pass"} - {"forbid_outcomes"}
        assert counted == stopped
    text = gate_text((passed, refused), folder / POLICY_NAME)
    assert "noised-eps1: FAIL" in text
    assert "max_epsilon" in text


def test_the_page_holds_every_model(chapters: tuple[DemoModel, ...]) -> None:
    text = write_page(chapters[0].model.parent, chapters, unseen).read_text()
    for chapter in chapters:
        assert f"<h3>{chapter.model.name}</h3>" in text


def test_noisy_models_load_and_generate(chapters: tuple[DemoModel, ...]) -> None:
    network = AutoModelForCausalLM.from_pretrained(chapters[1].model)
    tokenizer = AutoTokenizer.from_pretrained(chapters[1].model)
    tokens = tokenizer("Edda Norrvik,", return_tensors="pt", add_special_tokens=False)
    generated = network.generate(**tokens, max_new_tokens=5, do_sample=False)
    assert generated.shape[1] > tokens["input_ids"].shape[1]


def test_members_and_nonmembers_do_not_overlap_by_name(chapters: tuple[DemoModel, ...]) -> None:
    folder = chapters[0].model.parent
    sets = [
        {json.loads(line)["text"] for line in (folder / name).read_text().splitlines()}
        for name in ("members.jsonl", "nonmembers.jsonl")
    ]
    assert sets[0]
    assert not sets[0] & sets[1]


def test_the_example_goes_on_from_here(chapters: tuple[DemoModel, ...], root: Path, forked: Forked) -> None:
    folder = chapters[0].model.parent
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
