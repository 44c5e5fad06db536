"""Several entries of a genuine report changed together, to agree with each other and not with what was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from privctl.domain.gate import GateOutcome
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.train.methods.ferret.masks import Masks
from tests.few import few
from tests.verify.kinds import Gate, Kind, Kinds, verified
from verify.audits.split.drawn import check_unseen
from verify.checks import findings
from verify.methods.ferret import MOST_GROUPS, MOST_STEPS, publish_counts
from verify.run import read

Report = dict[str, Any]


def fewer_answers(report: Report) -> None:
    """Only the steps in which one group answered: the bounds as stated hold for them all the more."""
    events = report["mechanism"]["events"]
    report["mechanism"]["events"] = [event for event in events if event["bits"] == 1]
    (kept,) = report["mechanism"]["events"]
    report["parameters"] |= {"fired": kept["steps"], "fired_steps": kept["steps"]}
    del report["parameters"]["fired_by_group"]


def other_sizes(report: Report) -> None:
    """As many answers in as many steps, with other numbers of groups in a step."""
    events = report["mechanism"]["events"]
    by_bits = {event["bits"]: event for event in events}
    by_bits[1]["steps"] -= 1
    by_bits[2]["steps"] += 2
    by_bits[3]["steps"] -= 1
    report["mechanism"]["events"] = [event for event in events if event["steps"]]


def without_seed(report: Report) -> None:
    fewer_answers(report)
    del report["parameters"]["public_seed"]


def without_measurements(report: Report) -> None:
    parameters = report["parameters"]
    parameters["measurements_begun"] = 0
    report["mechanism"]["events"] = report["mechanism"]["events"][:1]
    (guarantee, *_) = report["guarantees"]
    guarantee |= {"noise_multiplier": parameters["noise_multiplier"]}
    guarantee["assumptions"] = [
        assumption for assumption in guarantee["assumptions"] if assumption["name"] != "measurements"
    ]
    report["guarantees"] = [guarantee]


def a_measurement_left_out(report: Report) -> None:
    """The bounds as stated hold for what is left all the more."""
    report["mechanism"]["events"][1]["steps"] -= 1


def measured_on_its_own_data(report: Report) -> None:
    """As a training was that took a copy of its data for public records."""
    without_measurements(report)
    parameters = report["parameters"]
    for name in [name for name in parameters if name.startswith(("measure_n", "measure_r", "measurements_"))]:
        del parameters[name]
    reason = "the records on which it is measured how much quantizing a layer hurts are public: none depends on a "
    premise = {"name": "public measurements", "statement": f"{reason}private one", "state": "asserted"}
    report["guarantees"][0]["assumptions"].append(premise)
    (data,) = [artifact["digest"] for artifact in report["inputs"] if artifact["role"] == "data"]
    parameters |= {"sensitivity": "public", "measured_public_records": 3, "measured_public_digest": data}


def with_another_model(report: Report) -> None:
    """Weights of a training without noise, beside those that the report is of."""
    report["outputs"].append(_other_weights(report))


def _other_weights(report: Report) -> Report:
    (weights,) = [artifact for artifact in report["outputs"] if artifact["role"] == "model"]
    return {**weights, "path": "clipped/model.safetensors"}


def with_a_plan(report: Report) -> None:
    """A plan of secrets that is not at hand, by which no record is drawn often: no bound on secrets, and less noise."""
    plan = {"digest": "blake3:" + "0" * 64, "largest_probability": 0.001, "noise_multiplier": 0.1}
    report["parameters"] |= {"plan": plan, "secrets": "plan.safetensors"}
    read = {"role": "plan", "path": "plan.safetensors", "digest": plan["digest"], "bytes": 1, "tensors": []}
    report["inputs"].append(read)
    for event in report["mechanism"]["events"]:
        event["sample_rate"] = 0.001
    (guarantee,) = report["guarantees"]
    statement = (
        "the plan is public and the same with and without the record: neighbours are compared at the same "
        "probabilities of the other records, number of steps and noise"
    )
    kept = [assumption for assumption in guarantee["assumptions"] if assumption["name"] != "number of examples"]
    guarantee["assumptions"] = [*kept, {"name": "plan", "statement": statement, "state": "asserted"}]


def with_secrets(report: Report) -> None:
    report["parameters"]["secrets"] = "plan.safetensors"


def with_a_file_of_canaries(report: Report) -> None:
    report["parameters"]["gradient_canaries_file"] = "blake3:" + "0" * 64


def with_canaries_and_a_plan(report: Report) -> None:
    with_a_plan(report)
    report["parameters"]["gradient_canaries"] = 20
    with_a_file_of_canaries(report)


def with_a_base_in_few_bits(report: Report) -> None:
    report["parameters"]["base_bits"] = 4


def with_a_conversion(report: Report) -> None:
    report["parameters"]["converted"] = "batch-norm"


_FORGERIES: dict[str, tuple[str, Callable[[Report], None], str]] = {
    "fewer answers": ("ferret responses", fewer_answers, "by the coins of the public seed it is"),
    "other sizes": ("ferret responses", other_sizes, "how many groups the ledger has in a step"),
    "no seed": ("ferret responses", without_seed, "it states no public seed"),
    "no measurements": ("dpquant", without_measurements, "for which 2 measurements begin, and it states 0"),
    "a measurement left out": ("dpquant", a_measurement_left_out, "number of measurements in the ledger"),
    "private records as public": ("dpquant", measured_on_its_own_data, "measured on the training data itself"),
    "plan put away": ("dp-sgd", with_a_plan, "0.001, which is less than 0.2, the mean of its probabilities"),
    "plan left out": ("dp-sgd", with_secrets, "of which no parameter says what it holds"),
    "canaries left out": (
        "dp-sgd",
        with_a_file_of_canaries,
        "gradient_canaries and gradient_canaries_file go together",
    ),
    "canaries at many rates": ("dp-sgd", with_canaries_and_a_plan, "it mixed in canary gradients, and a plan says"),
    "base in few bits": ("dp-sgd", with_a_base_in_few_bits, "only the base of an adapter is held in fewer bits"),
    "nothing to convert": ("dp-sgd", with_a_conversion, "no tensor holds the statistics of batches"),
    "two models": ("dp-sgd", with_another_model, "2 files of weights, and a retrain step writes one"),
}


@pytest.mark.parametrize("name", _FORGERIES)
def test_entries_that_agree_with_each_other_alone_do_not_pass(kinds: Kinds, name: str) -> None:
    of, change, word = _FORGERIES[name]
    kind = kinds[of]
    report = json.loads(kind.path.read_text())
    change(report)
    found, outcome = _judged(kind, report)
    assert found.exit_code is ExitCode.REFUTED
    decisive = [verdict for verdict in found.verdicts if verdict.decisive and verdict.outcome is Outcome.REFUTED]
    assert {verdict.subject for verdict in decisive} <= {"parameters", "report", "model.safetensors", "warnings"}
    assert any(word in verdict.reason for verdict in decisive)
    assert outcome is GateOutcome.FAIL


def _judged(kind: Kind, report: Report) -> tuple[Any, GateOutcome]:
    report_path = kind.path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(report))
    try:
        return verified(report_path), Gate(kind).judged(report_path).outcome
    finally:
        report_path.unlink()


@pytest.mark.parametrize(("groups", "chance"), [(1, 0.5), (7, 0.3), (28, 2.0**-9), (3, 1.0)])
def test_coins_are_those_of_the_training(groups: int, chance: float) -> None:
    seed = bytes(range(16))
    masks = Masks(seed=seed, groups=groups, fire_probability=chance, steps=90)
    found = publish_counts(seed.hex(), groups, chance, 90)
    assert found is not None
    assert found.by_group == masks.counts
    assert dict(found.together) == masks.sizes


def test_coins_that_all_fall_on_one_side_are_not_tossed() -> None:
    """As by default with several directions, of which a long training has more than would be tossed."""
    found = publish_counts("00", 3000, 1.0, MOST_STEPS + 1)
    assert found is not None
    assert (set(found.by_group), dict(found.together)) == ({MOST_STEPS + 1}, {3000: MOST_STEPS + 1})
    assert publish_counts("00", MOST_GROUPS + 1, 1.0, 2) is None


def test_coins_that_are_too_many_leave_a_report_open(kinds: Kinds) -> None:
    kind = kinds["ferret responses"]
    report = json.loads(kind.path.read_text())
    for steps, seed in ((MOST_STEPS + 1, report["parameters"]["public_seed"]), (30, "no number")):
        report["parameters"] |= {"steps": steps, "public_seed": seed}
        report_path = kind.path.with_name("mutant.report.json")
        report_path.write_text(json.dumps(report))
        found = [
            (v.outcome, v.reason) for v in findings(report_path, read(report_path), []) if v.subject == "parameters"
        ]
        report_path.unlink()
        opened = any(o is Outcome.INCONCLUSIVE and "more than are tossed again" in reason for o, reason in found)
        refuted = any(o is Outcome.REFUTED and "a number that no retrain step has" in reason for o, reason in found)
        assert (opened, refuted) == (steps > MOST_STEPS, seed == "no number")


@pytest.mark.parametrize("role", ["nonmembers", "heldout"])
@pytest.mark.parametrize("step", ["retrain", "external-training", "secrets-plan"])
@pytest.mark.parametrize("learned", ["data", "public"])
def test_records_trained_on_are_none_to_compare_with(role: str, step: str, learned: str) -> None:
    fields = {"created": "2030-01-09T00:00:00Z", "versions": {"privctl": "0.1.0"}}
    data = Artifact(role=learned, path="records.jsonl", digest="blake3:" + "d" * 64, bytes=9)
    other = Artifact(role="data", path="more.jsonl", digest="blake3:" + "e" * 64, bytes=9)
    before = PrivacyReport(step=step, inputs=(other, data), **fields)
    for taken, refuted in ((data, step != "secrets-plan"), (Artifact(role=role, path="c", digest="x", bytes=1), False)):
        looked = Artifact(role=role, path="held-out.jsonl", digest=taken.digest, bytes=9)
        verdicts = list(check_unseen(Path("a"), PrivacyReport(step="audit", inputs=(looked,), **fields), [before]))
        assert [verdict.outcome for verdict in verdicts] == [Outcome.REFUTED] * refuted


def without_role(report: Report, role: str) -> None:
    """As of an audit that read these records from a pipe, which has no digest."""
    report["inputs"] = [item for item in report["inputs"] if item["role"] != role]
    report["parameters"]["asked"]["files"].pop(role)


@pytest.mark.parametrize(
    ("of", "role"),
    few(
        [("audit", "members"), ("audit", "nonmembers"), ("audit", "train"), ("extraction of cut batches", "train")],
        0,
        1,
        2,
    ),
)
def test_an_audit_names_the_records_it_is_about(kinds: Kinds, of: str, role: str) -> None:
    report = json.loads(kinds[of].path.read_text())
    without_role(report, role)
    report_path = kinds[of].path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(report))
    reasons = [verdict.reason for verdict in findings(report_path, read(report_path), []) if verdict.subject == "audit"]
    report_path.unlink()
    assert f"its inputs name no {role}, so that nothing shows which records it is about" in reasons
