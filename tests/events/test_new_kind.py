"""A new kind of event takes its class, a module for accounting, one for verifying, and a row each: nothing else."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld

import privctl.accounting.events
import privctl.cli.account
import verify.events
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.domain.events import EVENTS, Ledger, SampledGaussian
from privctl.domain.guarantee import Notion
from privctl.domain.report import PrivacyReport
from privctl.reports.codec import decode, decode_events, schema
from privctl.show.gather.bounds import bounds_of
from tests.events import geometric_accounting, geometric_verification
from tests.events.geometric_event import GeometricNoise

EVENT = GeometricNoise(epsilon=0.5, sample_rate=0.1, steps=50)
PLAN = ["account", "--mechanism", "geometric", "--delta", "1e-5", "--sample-rate", "0.1", "--steps", "50"]


@pytest.fixture
def geometric(tmp_path: Path) -> Iterator[Path]:
    """The new kind in its three tables, and a folder for reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EVENTS, GeometricNoise.tag, GeometricNoise)
        patch.setitem(privctl.accounting.events.ROWS, GeometricNoise, geometric_accounting.ROW)
        patch.setitem(verify.events.ROWS, GeometricNoise, geometric_verification.ROW)
        importlib.reload(privctl.cli.account)  # its options are made when it is imported
        yield tmp_path
    importlib.reload(privctl.cli.account)


def others_epsilon(*, pessimistic: bool, delta: float = 1e-5) -> float:
    law = dp_pld.from_discrete_laplace_mechanism(
        EVENT.epsilon,
        sampling_prob=EVENT.sample_rate,
        value_discretization_interval=1e-5,
        pessimistic_estimate=pessimistic,
    )
    found: float = law.self_compose(EVENT.steps).get_epsilon_for_delta(delta)
    return found


def written(folder: Path, *arguments: str) -> PrivacyReport:
    report_path = folder / "plan.report.json"
    assert run([*arguments, "-o", str(report_path), "--force", "-q"]) == 0
    return decode(report_path.read_text(), str(report_path))


def changed(path: Path, guarantee: int = 0, **values: Any) -> None:
    data = json.loads(path.read_text())
    data["guarantees"][guarantee].update(values)
    path.write_text(json.dumps(data))


def test_its_epsilon_is_that_of_another_accountant(geometric: Path) -> None:
    whole = Ledger(events=(EVENT,))
    assert epsilon_floor(whole, 1e-5) <= epsilon_bound(whole, 1e-5) <= others_epsilon(pessimistic=True) * (1 + 1e-4)
    assert epsilon_bound(whole, 1e-5) >= others_epsilon(pessimistic=False) * (1 - 1e-4)


def test_it_is_planned_verified_and_shown(geometric: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, page, curve = (geometric / name for name in ("plan.report.json", "plan.html", "plan.svg"))
    report = written(geometric, *PLAN, "--count-epsilon", "0.5", "--plot", str(curve))
    assert report.mechanism == Ledger(events=(EVENT,))
    tight, renyi = report.guarantees
    assert tight.epsilon == epsilon_bound(report.mechanism, 1e-5)
    assert renyi.epsilon is not None
    assert tight.epsilon < renyi.epsilon < 2 * tight.epsilon
    assert {a.statement for a in tight.assumptions} > {EVENT.contribution}
    assert b"GeometricNoise" in curve.read_bytes()
    capsys.readouterr()
    assert run(["verify", str(place), "--simulate", "--seconds", "0.2"]) == 0
    stdout = capsys.readouterr().out
    assert "privacy loss distribution, simulated" in stdout
    assert run(["report", str(place), "-o", str(page), "-q"]) == 0
    assert "geometric" in page.read_text()


def test_its_noise_is_found_for_a_target(geometric: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = written(geometric, *PLAN, "--epsilon", "1")
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, GeometricNoise)
    assert report.parameters["found"] == {"count epsilon": event.epsilon}
    assert report.guarantees[0].epsilon == pytest.approx(1, rel=1e-3)
    assert run(["verify", str(geometric / "plan.report.json"), "-q"]) == 0
    assert run([*PLAN, "--scale", "1"]) == 2
    assert "--scale does not apply to --mechanism geometric" in capsys.readouterr().err


def test_it_composes_with_others_in_a_ledger(geometric: Path) -> None:
    ledger = geometric / "ledger.json"
    ledger.write_text(
        '[{"type": "geometric", "epsilon": 0.5, "sample_rate": 0.1, "steps": 50},'
        ' {"type": "sampled-gaussian", "noise_multiplier": 2, "sample_rate": 0.1, "steps": 50}]'
    )
    report = written(geometric, "account", "--ledger", str(ledger), "--delta", "1e-5")
    gaussian = SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=50)
    assert report.mechanism == Ledger(events=(EVENT, gaussian))
    assert report.guarantees[0].epsilon == epsilon_bound(report.mechanism, 1e-5)
    assert run(["verify", str(geometric / "plan.report.json"), "-q"]) == 0


@pytest.mark.forged("a number, a premise and a parameter of the new kind are changed")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": 1.38, "follows": 1.38}, "it says that 1.38 follows, but epsilon is at least 1.38"),
        ({"adjacency": "replace-one"}, "its neighbours are replace-one"),
        ({"unit": "secret"}, "it protects one secret"),
    ],
)
def test_a_false_report_of_it_is_refuted(
    geometric: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], says: str
) -> None:
    written(geometric, *PLAN, "--count-epsilon", "0.5")
    report_path = geometric / "plan.report.json"
    changed(report_path, **change)
    capsys.readouterr()
    assert run(["verify", str(report_path)]) == 1
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.forged("an assumption says what no row lists")
def test_a_statement_that_no_row_lists_does_not_pass(geometric: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = written(geometric, *PLAN, "--count-epsilon", "0.5")
    report_path = geometric / "plan.report.json"
    stated = report.guarantees[0].assumptions
    other = [replace(each, statement="one example changes a count by two at most") for each in stated[:1]]
    changed(
        report_path,
        assumptions=[{"name": a.name, "statement": a.statement, "state": a.state} for a in (*other, stated[1])],
    )
    capsys.readouterr()
    assert run(["verify", str(report_path)]) != 0
    assert "which is not that assumption" in " ".join(capsys.readouterr().out.split())


def test_a_page_draws_its_curve(geometric: Path) -> None:
    report = written(geometric, *PLAN, "--count-epsilon", "0.5")
    (curve,) = bounds_of(replace(report, step="retrain", guarantees=report.guarantees[:1]))
    assert curve.source == "the report's ledger, composed again"
    assert report.guarantees[0].notion is Notion.APPROXIMATE_DP


def test_the_schema_has_it(geometric: Path) -> None:
    written(geometric, *PLAN, "--count-epsilon", "0.5")
    jsonschema.Draft202012Validator(schema()).validate(json.loads((geometric / "plan.report.json").read_text()))


def test_without_its_rows_it_is_not_known(
    geometric: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(geometric, *PLAN, "--count-epsilon", "0.5")
    report_path = geometric / "plan.report.json"
    monkeypatch.delitem(verify.events.ROWS, GeometricNoise)
    capsys.readouterr()
    assert run(["verify", str(report_path)]) == 3
    assert "verify does not know events of the kind geometric" in capsys.readouterr().err
    monkeypatch.delitem(privctl.accounting.events.ROWS, GeometricNoise)
    with pytest.raises(ValueError, match="no accountant knows events of the kind geometric"):
        epsilon_bound(Ledger(events=(EVENT,)), 1e-5)
    monkeypatch.delitem(EVENTS, GeometricNoise.tag)
    with pytest.raises(InputError, match="'geometric'; expected one of sampled-gaussian, banded-gaussian, buffered-"):
        decode_events('[{"type": "geometric", "epsilon": 0.5}]', "ledger.json")
    assert run(["verify", str(report_path)]) == 3


def test_every_kind_has_its_rows() -> None:
    composing = {kind for kind in EVENTS.values() if kind.composes}
    assert composing == privctl.accounting.events.ROWS.keys() == verify.events.ROWS.keys()
    planned = {kind: row.mechanism for kind, row in verify.events.planned_kinds()}
    assert planned == {kind: kind.mechanism for kind in EVENTS.values()}
    assert [EVENTS[kind.tag] for kind in EVENTS.values()] == list(EVENTS.values())
