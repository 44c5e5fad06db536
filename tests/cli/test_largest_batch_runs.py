"""``retrain dp-sgd --largest-batch``: trained, resumed, verified, forged, and refused where it does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.events import Ledger, SampledGaussian, TruncatedGaussian
from privctl.domain.progress import unseen
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods import method_named
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session
from privctl.train.steps.sampling import TruncatedPoisson
from tests.cli.short_runs import dp_sgd, half_the_noise, prepared, verified_after
from verify.simulate.run import simulate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECORDS, LARGEST, STEPS = 30, 6, 8
OPTIONS = ["--batch-size", "6", "--steps", str(STEPS), "--device", "cpu"]
CUT = ["--largest-batch", str(LARGEST)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("cut"), RECORDS)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The report of a run that was stopped after its first step, and resumed."""
    drawn: dict[int, NDArray[np.int64]] = {}
    real = TruncatedPoisson.batch

    def watched(self: TruncatedPoisson, step: int) -> NDArray[np.int64]:
        drawn[step] = real(self, step)
        return drawn[step]

    request = RetrainRequest(
        method=method_named("dp-sgd"),
        settings=DpSgdSettings(largest_batch=LARGEST),
        model=ModelRequest(path=folder / "start"),
        data=DataRequest(train=folder / "train.jsonl"),
        budget=BudgetRequest(epsilon=6.0),
        output=folder / "out",
        batch_size=6,
        steps=STEPS,
        device="cpu",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TruncatedPoisson, "batch", watched)
        with pytest.raises(RunInterruptedError):
            run_training(prepare(request), Session(progress=unseen, interrupts=nullcontext(lambda: True)))
        resume = [*dp_sgd(folder, folder / "out", *OPTIONS), "--epsilon", "6", "-q", "--resume"]
        assert run(resume) == 2  # begun with batches that are cut
        assert run([*resume, "--largest-batch", str(LARGEST + 1)]) == 2
        assert run([*resume, *CUT]) == 0
    assert sorted(drawn) == list(range(STEPS))
    assert max(map(len, drawn.values())) <= LARGEST
    return folder / "out.report.json"


def test_a_run_is_accounted_for_as_it_was_and_verified(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = read_report(trained)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, TruncatedGaussian)
    assert (event.largest_batch, event.examples, event.sample_rate, event.steps) == (LARGEST, RECORDS, 6 / 30, STEPS)
    assert report.parameters["batches"] == "truncated-poisson"
    assert report.parameters["largest_batch"] == LARGEST
    guarantee = report.guarantees[0]
    assert guarantee.epsilon is not None
    assert 5.9 < guarantee.epsilon <= 6
    plain = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=STEPS)
    assert epsilon_bound(Ledger(events=(plain,)), guarantee.delta) < 0.9 * guarantee.epsilon
    assert "truncated-poisson batches" in {assumption.name for assumption in guarantee.assumptions}
    assert run(["verify", str(trained), "-q", "--data", str(folder / "train.jsonl")]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_its_price_is_told_beforehand(
    folder: Path, tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*dp_sgd(folder, tmp_path / "a", *OPTIONS, *CUT), "--epsilon", "6", "--dry-run"]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    stated = re.search(
        r"which ([\d.]+) % of the draws exceed, epsilon ([\d.]+) takes .* of ([\d.]+); .* ([\d.]+)", printed
    )
    assert stated is not None
    share, epsilon, noise, alone = (float(each.rstrip(".")) for each in stated.groups())
    assert share == 39  # 1 - CDF of Bin(30, 0.2) at 6: 0.393 (any table)
    report = read_report(trained)
    assert noise == pytest.approx(report.parameters["noise_multiplier"], rel=1e-3)
    one = SampledGaussian(noise_multiplier=alone, sample_rate=0.2, steps=STEPS)
    assert epsilon_bound(Ledger(events=(one,)), report.guarantees[0].delta) == pytest.approx(epsilon, rel=0.02)


def _event(report: Any) -> Any:
    return report["mechanism"]["events"][0]


def _plain(report: Any) -> None:
    """Accounted for as if nothing were ever cut."""
    event = _event(report)
    event.update(type="sampled-gaussian", batches="poisson")
    del event["largest_batch"], event["examples"]


def _plain_throughout(report: Any) -> None:
    _plain(report)
    report["parameters"].pop("largest_batch")


def _another_kind(report: Any) -> None:
    event = _event(report)
    event.update(type="laplace", scale=event.pop("noise_multiplier"))
    del event["largest_batch"], event["examples"]


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "half of the noise": half_the_noise,
    "accounted for as plain Poisson": _plain,
    "accounted for as plain Poisson, and no size said": _plain_throughout,
    "another kind of step": _another_kind,
    "a larger batch in the ledger": lambda report: _event(report).update(largest_batch=LARGEST + 1),
    "a larger batch in the parameters": lambda report: report["parameters"].update(largest_batch=LARGEST + 1),
    "no largest batch in the parameters": lambda report: report["parameters"].pop("largest_batch"),
    "more examples in the ledger": lambda report: _event(report).update(examples=RECORDS * 10),
    "other batches in the parameters": lambda report: report["parameters"].update(batches="poisson"),
    "users with several records": lambda report: report["parameters"].update(unit="who", max_records_per_user=3),
}


@pytest.mark.forged("each is a lie about batches or noise")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, FORGERIES[name]) == 1
    capsys.readouterr()


@pytest.mark.forged("the ledger holds half of the noise that its epsilon is for")
def test_half_of_the_noise_shows_in_a_simulation(trained: Path) -> None:
    report = read_report(trained)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, TruncatedGaussian)
    genuine = replace(event, noise_multiplier=2.0)
    loose = replace(report.guarantees[0], epsilon=epsilon_bound(Ledger(events=(genuine,)), 1e-2), delta=1e-2)
    for noise, outcome in ((2.0, Outcome.CONSISTENT), (1.0, Outcome.REFUTED)):
        ledger = Ledger(events=(replace(genuine, noise_multiplier=noise),))
        changed = replace(report, mechanism=ledger, guarantees=(loose,))
        found = simulate(changed, seed=1, seconds=0.0)
        assert found is not None
        assert {judged.verdict.outcome for judged in found.judged} == {outcome}
        assert {judged.verdict.subject for judged in found.judged} >= {f"a toy training of {STEPS} steps"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--batches", "balls-and-bins"), "remove it, or --batches balls-and-bins"),
        (("--bands", "2"), "remove it, or --bands"),
        (("--buffers", "2"), "remove it, or --buffers"),
        (("--unit", "text", "--max-records-per-user", "3"), "remove it, or --max-records-per-user"),
        (("--search", "clip-norm=0.5,1"), "remove it, or --search"),
        (("--largest-batch", "5"), "--largest-batch is 5, below the expected size"),
        (("--largest-batch", "0"), "largest-batch"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    more: tuple[str, ...], sentence: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*dp_sgd(folder, tmp_path / "a", *OPTIONS, *CUT, *more), "--epsilon", "6", "-q"]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_clip_norm_may_follow_the_gradients_of_such_batches(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that pushes another out moves sum and count together by twice what one record does."""
    follow = ["--target-unclipped-quantile", "0.5", "--noise-multiplier", "1"]
    assert run([*dp_sgd(folder, tmp_path / "a", *OPTIONS, *CUT), *follow, "-q"]) == 0
    report = read_report(tmp_path / "a.report.json")
    assert isinstance(report.mechanism, Ledger)
    assert isinstance(report.mechanism.events[0], TruncatedGaussian)
    assert run(["verify", str(tmp_path / "a.report.json"), "-q"]) == 0
    capsys.readouterr()
