"""Entries that no step writes for its mechanism, method or program, and numbers with which nothing can be computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privctl.domain.errors import ExitCode
from privctl.domain.gate import GateOutcome
from privctl.domain.verdict import Outcome
from tests.verify.kinds import Gate, Kind, Kinds, one_further
from verify.losses.cells import edges_of
from verify.run import Verification, read, verify

Report = dict[str, Any]
Change = Callable[[Report], object]


def first(**changed: object) -> Change:
    return lambda report: report["guarantees"][0].update(changed)


def parameters(**changed: object) -> Change:
    return lambda report: report["parameters"].update(changed)


def role(was: str, now: str) -> Change:
    def change(report: Report) -> None:
        for artifact in (*report["inputs"], *report["outputs"]):
            if artifact["role"] == was:
                artifact["role"] = now

    return change


def statement(name: str, was: str, now: str) -> Change:
    def change(report: Report) -> None:
        (found,) = [item for item in report["guarantees"][0]["assumptions"] if item["name"] == name]
        assert was in found["statement"]
        found["statement"] = found["statement"].replace(was, now)

    return change


def judged(kind: Kind, change: Change) -> tuple[Verification, GateOutcome | None]:
    """The verification of a kind's report with a change, and the outcome of a gate where one judges the kind."""
    data = json.loads(kind.path.read_text())
    change(data)
    path = kind.path.with_name("mutant.report.json")
    path.write_text(json.dumps(data))
    found = verify(path, read(path))
    outcome = None if kind.policy is None else Gate(kind).judged(path).outcome
    path.unlink()
    return found, outcome


def cheaper_measurements(report: Report) -> None:
    whole, stated = report["guarantees"][0]["epsilon"], report["parameters"]
    stated["epsilon_without_measurements"] = 0.999 * whole
    stated["epsilon_share_of_measurements"] = 1 - stated["epsilon_without_measurements"] / whole


def _of_plan(report: Report, name: str) -> None:
    stated = report["parameters"]["plan"]
    stated[name] = 0.5 * stated[name] if stated[name] else 1


VERDICT = {"subject": "dp-sgd", "outcome": "PROVED", "reason": "somebody proved it"}
FIGURE = {"method": "loss", "quantity": "AUC", "estimate": 0.5, "lower": 0.48, "upper": 0.52, "bound": "two-sided"}
LOSS = {
    "method": "measured after the epoch", "quantity": "held-out loss, nats", "estimate": 0.1, "bound": "none",
    "samples": {"examples": 100},
}  # fmt: skip
PLACE = {"path": "audits.log", "entry": 1, "digest": "blake3:" + "0" * 64}


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("dp-sgd", first(sensitivity=0.5), "states `sensitivity`, which does not apply"),
        ("opacus", first(noise_multiplier=9.0), "states `noise_multiplier`, which does not apply"),
        ("dpquant", first(noise_multiplier=9.0), "states `noise_multiplier`, which does not apply"),
        ("ledger", first(noise_multiplier=9.0), "states `noise_multiplier`, which does not apply"),
        ("noise", first(noise_multiplier=9.0), "states `noise_multiplier`, which does not apply"),
        *(
            ("planned", partial(_of_plan, name=name), f"parameter {name} is")
            for name in ("cap", "kept_fraction", "records_never_drawn", "expected_epochs")
        ),
        ("planned", parameters(secrets="stricter.safetensors"), "is said to have followed the plan"),
        ("dp-sgd", lambda report: report["evidence"].append(FIGURE), "does not measure 'AUC' by 'loss'"),
        ("noise", lambda report: report["evidence"].append(FIGURE), "does not measure 'AUC' by 'loss'"),
        ("own loop", lambda report: report["evidence"].append(LOSS), "does not measure 'held-out loss, nats'"),
        ("dp-sgd", lambda report: report.update(verdicts=[VERDICT]), "judges nothing, but it states 1 verdict"),
        ("noise", lambda report: report.update(log=PLACE), "names a place in a log of audits"),
        ("dp-sgd", role("data", "scores"), "which is no role of a file that a training reads"),
        ("dp-sgd", role("start-config.json", "another"), "which is no role of a file that a training reads"),
        ("dp-zo", role("numbers", "another"), "which is no role of a file that a training writes"),
    ],
)
def test_what_no_step_of_this_kind_states_is_refuted(kinds: Kinds, name: str, change: Change, word: str) -> None:
    found, outcome = judged(kinds[name], change)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts)
    assert outcome in (None, GateOutcome.FAIL)


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("own loop", parameters(clip_norm=0.0), "parameter clip_norm is 0"),
        ("own loop", parameters(clip_norm=None), "do not say to which norm"),
        ("own loop", parameters(clipping="none at all"), "parameter clipping is none at all"),
        ("own loop", parameters(optimizer="SGD, audited"), "parameter optimizer is SGD, audited"),
        ("own loop", parameters(epochs=100.0), "parameter epochs is stated"),
        ("opacus", parameters(noise_multiplier=9.0), "parameter noise_multiplier is stated"),
        ("opacus", parameters(sample_rate=1e-4), "parameter sample_rate is stated"),
        ("from elsewhere", parameters(examples=10), "parameter examples is stated"),
        ("dp-sgd", parameters(clipping="none at all"), "no clipping named none at all"),
        ("dp-sgd", parameters(updates=-1), "parameter updates is -1"),
        ("dp-sgd", parameters(long="tail"), "no long named tail"),
        ("dp-sgd", parameters(resize=[8, 8]), "no height and width of its images"),
        ("dpquant", parameters(format="fp64"), "no format named fp64"),
        ("dpquant", parameters(scales="one a tensor"), "no scales named one a tensor"),
        ("dpquant", parameters(luq_levels=0), "parameter luq_levels is 0"),
        ("dpquant", parameters(last_chances=[0.5]), "a probability for each layer"),
        ("dpquant", parameters(low_precision_share=[1.5, 0.5]), "1.5 is stated as the probability"),
        ("dpquant", lambda r: r["parameters"]["layer_schedule"][0]["quantized"].append("x"), "none of layer_names"),
        ("dpquant", parameters(low_precision_share=[0.1, 0.1]), "low_precision_share of epoch 0 is 0.1"),
        ("dpquant", parameters(measure_noise_source="AES-256-CTR keystream under a key made from a given seed"),
         "the noise of measurements is said to come from"),
        ("dpquant", parameters(measure_clip=-0.01), "parameter measure_clip is -0.01"),
        ("dpquant", parameters(epsilon_share_of_measurements=0.001), "epsilon_share_of_measurements is 0.001"),
        ("dpquant", cheaper_measurements, "epsilon_without_measurements is "),
        ("ferret published", parameters(steps_begun=9), "parameter steps_begun is 9"),
        ("ferret published", parameters(released_numbers=9), "parameter released_numbers is 9"),
        ("ferret published", parameters(group_sizes=[5]), "group_sizes does not state"),
        ("ferret published", parameters(batches="another"), "no batches named another"),
        ("ferret published", parameters(noise_multiplier=9.0), "parameter noise_multiplier is stated"),
        ("ferret published", parameters(noise_source="a cipher"), "parameter noise_source is stated"),
        ("ferret published", parameters(publish="value"), "publishes signs"),
        ("ferret published", parameters(silent="another"), "no silent named another"),
        ("ferret published", parameters(groups="many"), "no way to make groups"),
        ("ferret published", parameters(derivatives_by={"by hand": 4}), "which is no way of privctl"),
        ("ledger", parameters(epsilon=0.1), "parameter epsilon is 0.1, which says nothing of a plan of a ledger"),
        ("ledger", parameters(found={"noise multiplier": 9.0}), "a ledger states everything"),
        ("plan", parameters(epochs=9.0), "go together"),
        ("plan of laplace", parameters(noise_multiplier=9.0), "says nothing of a plan of laplace"),
        ("plan of laplace", parameters(found={"noise": 9.0}), "which is no number of laplace events"),
    ],
)  # fmt: skip
def test_a_setting_that_no_run_of_this_kind_has_is_refuted(kinds: Kinds, name: str, change: Change, word: str) -> None:
    found, _ = judged(kinds[name], change)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.subject == "parameters")


@pytest.mark.slow
def test_noised_releases_draw_their_batches_by_coins(kinds: Kinds) -> None:
    found, _ = judged(kinds["ferret gaussian"], parameters(batches="shuffled"))
    assert found.exit_code is ExitCode.REFUTED
    assert any("the release gaussian draws by coins" in verdict.reason for verdict in found.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda report: report["parameters"]["search"].update(settings=""), "names no setting that was searched"),
        (parameters(updates=100), "100 updates were made in"),
        (role("held-out", "start-notes"), "names no held-out records by which it was chosen"),
    ],
)
def test_what_no_search_states_is_refuted(tmp_path: Path, change: Change, word: str) -> None:
    found, outcome = judged(one_further(tmp_path, "search"), change)
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts if verdict.subject == "parameters")
    assert outcome is GateOutcome.FAIL


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("dp-sgd", first(note=""), "as it must here, 'for the floats that are written"),
        ("opacus", first(note=""), "as it must here, 'for noise in real arithmetic"),
        ("noise", first(note=""), "as published; it does not follow from the paper's"),
        ("plan of signs", first(note=""), "as it must here, 'an average over the data"),
        ("own loop", statement("rounding of sums", "0.000976562", "70.000976562"), "a margin that clipping does not"),
    ],
)
def test_what_a_number_does_not_cover_stays_beside_it(kinds: Kinds, name: str, change: Change, word: str) -> None:
    found, outcome = judged(kinds[name], change)
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any(word in verdict.reason for verdict in found.verdicts)
    assert outcome in (None, GateOutcome.INCONCLUSIVE, GateOutcome.FAIL)


@pytest.mark.parametrize("name", ["dp-sgd", "own loop", "opacus"])
def test_fewer_examples_than_none_are_refuted_and_end_no_check(kinds: Kinds, name: str) -> None:
    found, outcome = judged(kinds[name], parameters(examples=-60))
    assert found.exit_code is ExitCode.REFUTED
    assert outcome is GateOutcome.FAIL


def test_a_shift_beyond_floats_ends_no_verification(kinds: Kinds) -> None:
    def change(report: Report) -> None:
        (tight,) = [g for g in report["guarantees"] if g["name"] == "privacy loss distribution"]
        tight["noise_multiplier"] = 1e-300

    found, _ = judged(kinds["plan"], change)
    assert found.exit_code is ExitCode.REFUTED
    (bound,) = [j.verdict for j in found.guarantees if j.guarantee.name == "privacy loss distribution"]
    assert bound.outcome is Outcome.INCONCLUSIVE
    assert bound.reason == "no independent bound: a record shifts the noise by 1e+300 of its standard deviations"


@pytest.mark.filterwarnings("error")
def test_losses_too_small_for_floats_are_named() -> None:
    with pytest.raises(OverflowError, match="too small to be told apart by floats"):
        edges_of(np.ones_like, -1.0, 1.0, 0.0, 1.0)
