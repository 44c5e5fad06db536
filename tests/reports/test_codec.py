"""Reports as JSON: whole round trips, one sentence for everything else, a schema that does not drift."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from privctl.domain import events as kinds
from privctl.domain.errors import InputError
from privctl.domain.events import EVENTS, Batches, LaplaceNoise, Ledger, RandomizedResponse, SampledGaussian, SignBits
from privctl.domain.evidence import Bound, Evidence, JointTest
from privctl.domain.guarantee import (
    Adjacency,
    Arithmetic,
    Assumption,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    Risk,
    RiskMeasure,
    Scope,
    Status,
)
from privctl.domain.mechanism import Calibration, ClippedTraining, Formula, Optimizer, Regime, WeightNoise
from privctl.domain.report import Artifact, LogPosition, Omission, ParentReport, PrivacyReport, TensorDigest
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.codec import TAGS, decode, encode, schema
from privctl.storage.json_text import parse_json

GOLDEN = Path(__file__).parents[1] / "golden"

TRAINING = ClippedTraining(
    epochs=10, learning_rate=5e-5, clip_norm=1.0, dataset_size=1000, batch_size=5, optimizer=Optimizer.MOMENTUM,
    steps=2000, momentum=0.9, weight_decay=0.01, smoothness=2.0, strong_convexity=0.5,
)  # fmt: skip

FULL = PrivacyReport(
    step="noise",
    created="2026-01-02T03:04:05+00:00",
    versions={"privctl": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"},
    inputs=(Artifact(role="model", path="../model.safetensors", digest="blake3:" + "0" * 64, bytes=4_294_967_296),),
    outputs=(
        Artifact(
            role="model",
            path="noised é/model.safetensors",
            digest="blake3:" + "1" * 64,
            bytes=17,
            tensors=(
                TensorDigest(name="h.0.weight", dtype="BF16", shape=(2, 3), digest="blake3:" + "2" * 64),
                TensorDigest(name="scalar", dtype="F32", shape=(), digest="blake3:" + "3" * 64),
            ),
        ),
    ),
    parameters={"epsilon": 1.0, "exclude": ["a*", "b"], "facts": {"epochs": 10, "note": None}, "force": False, "n": 3},
    mechanism=WeightNoise(
        training=TRAINING,
        noise_stddev=0.0123456789012345678,
        dimension=124_439_808,
        calibration=Calibration.DP_WEIGHTS,
        formula=Formula.EQUATION_1,
        regime=Regime.NONCONVEX,
        candidate_stddevs=(0.01, 0.0123456789012345678),
        noise_source="AES-256-CTR",
        grid=2.0**-12,
    ),
    guarantees=(
        Guarantee(
            name="published",
            epsilon=1.0,
            delta=1e-6,
            adjacency=Adjacency.REPLACE_ONE,
            accountant="analytic Gaussian",
            status=Status.CLAIMED,
            notion=Notion.APPROXIMATE_DP,
            unit=PrivacyUnit.EXAMPLE,
            scope=Scope.ALL_CANDIDATES,
            sensitivity=2.5e-3,
            noise_multiplier=4.9,
            assumptions=(Assumption(name="clipping", statement="every gradient ≤ C", state=AssumptionState.ASSERTED),),
            note="line one\nline two",
            arithmetic=Arithmetic(coordinates=124_439_808, accuracy=2.0**-48, steps=64.0, epsilon=2e-6),
        ),
        Guarantee(
            name="none follows",
            epsilon=None,
            delta=0.0,
            adjacency=Adjacency.UNSTATED,
            accountant="-",
            status=Status.VOID,
        ),
    ),
    evidence=(
        Evidence(
            method="loss attack",
            quantity="auc",
            estimate=0.53,
            lower=0.5,
            upper=0.56,
            confidence=0.99,
            bound=Bound.LOWER,
            interval="DeLong",
            samples={"members": 500, "non-members": 500},
            details={"threshold": -3.25},
            reason="",
        ),
        Evidence(method="m", quantity="q", estimate=None, reason="too few"),
    ),
    verdicts=(Verdict(subject="published", outcome=Outcome.CONSISTENT, reason="no attack did better"),),
    omissions=(Omission(what="optimizer state", reason="not released"),),
    warnings=("a \u2028 warning", ""),
    parents=(ParentReport(path="train.report.json", digest="blake3:" + "4" * 64),),
)
LEDGER = Ledger(
    events=(
        SampledGaussian(noise_multiplier=1.5, sample_rate=0.01, steps=1000, batches=Batches.SHUFFLED),
        LaplaceNoise(scale=3.0, sample_rate=0.5, steps=2),
        RandomizedResponse(epsilon=0.5, bits=3, sample_rate=0.25, steps=4),
        kinds.SecretMixture(probabilities=(0.1, 0.25), noise_multiplier=2.0, steps=5),
    ),
)
LATER = Guarantee(
    name="what version 0.1.0 could not say yet",
    epsilon=1.0,
    delta=1e-6,
    adjacency=Adjacency.ADD_OR_REMOVE,
    accountant="tight",
    status=Status.REFUTED,
    notion=Notion.SECRET_PROTECTION,
    unit=PrivacyUnit.SECRET,
    risks=(Risk(measure=RiskMeasure.POSTERIOR, bound=0.25, at=0.01),),
    follows=306.25,
    floor=300.5,
)
SIGNS = SignBits(groups=2, fire_probability=0.07, sample_rate=0.005, steps=1000)
MINIMAL = PrivacyReport(step="inspect", created="2026-01-02T03:04:05+00:00", versions={})


def refused(data: Any) -> str:
    """The sentence with which a report is refused, given as text or as what it holds."""
    with pytest.raises(InputError) as caught:
        decode(data if isinstance(data, str) else json.dumps(data), "r.json")
    message = str(caught.value)
    assert message.startswith("r.json")
    assert "\n" not in message
    assert len(message) < 500
    return message


def full() -> Any:
    return json.loads(encode(FULL))


JUDGED = Verdict(subject="published", outcome=Outcome.REFUTED, reason="only claimed", status=Status.CLAIMED)
LOGGED = LogPosition(path="../m.audits.jsonl", entry=2, digest="blake3:" + "5" * 64)
OTHERS = [
    replace(FULL, mechanism=mechanism, guarantees=(LATER,), verdicts=(JUDGED,), log=LOGGED)
    for mechanism in (TRAINING, LEDGER, SIGNS)
]


@pytest.mark.parametrize("report", [FULL, MINIMAL, *OTHERS])
def test_round_trip(report: PrivacyReport) -> None:
    text = encode(report)
    assert decode(text, "r.json") == report
    assert encode(decode(text, "r.json")) == text
    assert text.endswith("}\n")
    text.encode("utf-8")


def test_every_field_of_the_domain_is_in_the_round_trip() -> None:
    """A field added to the domain must be given here a value that is not its default."""
    from dataclasses import MISSING, fields, is_dataclass

    seen, given = set(), set()

    def look(value: Any) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        if is_dataclass(value) and not isinstance(value, type):
            for f in fields(value):
                default = f.default if f.default_factory is MISSING else f.default_factory()
                name = f"{type(value).__name__}.{f.name}"
                seen.add(name)
                if getattr(value, f.name) != default:
                    given.add(name)
                look(getattr(value, f.name))

    test = JointTest(p_value=0.004, level=0.05, compared=6, relabellings=999, critical=2.4, detectable=0.56)
    tested = replace(FULL, evidence=(replace(FULL.evidence[0], test=test),))
    assert decode(encode(tested), "report") == tested
    look((tested, *OTHERS[1:]))
    # Optimizer constants that only Adam has, and what is one-valued or empty on purpose.
    assert seen - given == {
        "PrivacyReport.schema_version", "ClippedTraining.beta1", "ClippedTraining.beta2",
    }  # fmt: skip


def test_numbers_that_are_not_finite_are_not_written() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            encode(replace(MINIMAL, parameters={"x": bad}))


CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "unknown key": (("extra",), 1, "report has the unknown key 'extra'"),
    "unknown key below": (("guarantees", 0, "eps"), 1, r"report\.guarantees\[0\] has the unknown key 'eps'"),
    "unknown key in a mechanism": (("mechanism", "training", "lr"), 1, "report.mechanism.training .*'lr'"),
    "text for a number": (("guarantees", 0, "delta"), "small", r"delta is 'small'; expected a finite number"),
    "boolean for a number": (("guarantees", 0, "delta"), True, "expected a finite number"),
    "number for text": (("step",), 3, "report.step is 3; expected a string"),
    "fraction for a count": (("mechanism", "training", "epochs"), 1.5, "epochs is 1.5; expected a whole number"),
    "boolean for a count": (("inputs", 0, "bytes"), True, "bytes is True; expected a whole number"),
    "object for a list": (("inputs",), {}, "report.inputs is {}; expected a list"),
    "list for an object": (("versions",), [], r"report.versions is \[\]; expected an object"),
    "text for an object": (("mechanism", "training"), "x", "training"),
    "null for a string": (("step",), None, "report.step is None"),
    "null in a list": (("warnings", 0), None, r"report.warnings\[0\] is None"),
    "unknown member": (("guarantees", 0, "status"), "certain", "status is 'certain'; expected one of proved, "),
    "list for a member": (("guarantees", 0, "status"), ["proved"], "expected one of proved"),
    "wrong case": (("verdicts", 0, "outcome"), "proved", "expected one of PROVED"),
    "unknown tag": (("mechanism", "type"), "os.system", "report.mechanism.type is 'os.system'; expected one of"),
    "tag of another": (("mechanism", "training", "type"), "weight-noise", "expected 'clipped-training'"),
    "tag no text": (("mechanism", "type"), {}, "report.mechanism.type"),
    "value for a mechanism": (("mechanism",), 7, "report.mechanism.type is None; expected one of"),
    "out of range": (("guarantees", 0, "delta"), 2, r"guarantees\[0\]: delta is 2"),
    "negative epsilon": (("guarantees", 0, "epsilon"), -1, "epsilon is -1"),
    "contradiction": (("mechanism", "training", "batch_size"), 5000, "batch_size 5000 exceeds dataset_size 1000"),
    "count beyond all bounds": (("mechanism", "training", "epochs"), 10**400, "training"),
    "number beyond all bounds": (("guarantees", 0, "epsilon"), 10**400, "expected a finite number"),
    "size beyond all bounds": (("mechanism", "training", "dataset_size"), 10**4000, "training"),
}


@pytest.mark.parametrize(("where", "value", "cause"), CHANGES.values(), ids=list(CHANGES))
def test_changed_reports(where: tuple[Any, ...], value: Any, cause: str) -> None:
    data = part = full()
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    message = refused(data)
    with pytest.raises(InputError, match=cause):
        decode(json.dumps(data), "r.json")
    assert message


@pytest.mark.parametrize(
    "where",
    [
        ("step",),
        ("created",),
        ("versions",),
        ("guarantees", 0, "delta"),
        ("mechanism", "training"),
        ("inputs", 0, "digest"),
    ],
)
def test_missing_keys(where: tuple[Any, ...]) -> None:
    data = part = full()
    for key in where[:-1]:
        part = part[key]
    del part[where[-1]]
    assert f"lacks the key {where[-1]!r}" in refused(data)


def test_a_missing_tag() -> None:
    data = full()
    del data["mechanism"]["type"]
    assert "report.mechanism.type is None; expected one of clipped-training, weight-noise" in refused(data)
    data = full()
    del data["mechanism"]["training"]["type"]
    assert "expected 'clipped-training'" in refused(data)


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5, [], 10**400])
def test_other_schema_versions(version: Any) -> None:
    assert "schema_version" in refused({**full(), "schema_version": version})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "is empty, and no privctl report"),
        ("\n", "is empty, and no privctl report"),
        ("{", "not valid JSON"),
        ("[]", "not a privctl report"),
        ("null", "not a privctl report"),
        ("{}", "no schema_version"),
        ('{"schema_version": 1}', "lacks the key"),
        ('{"schema_version": 1, "schema_version": 1}', "'schema_version' twice"),
        ('{"schema_version": NaN}', "NaN"),
        ('{"schema_version": 1e999}', "not a finite number"),
        ('{"schema_version": ' + "9" * 5000 + "}", "too long"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
        ('{"' + "k" * 100_000 + '": 1, "' + "k" * 100_000 + '": 1}', "twice"),
        ('{"schema_version": "\\udc80"}', "surrogate"),
    ],
)
def test_text_that_is_no_report(text: str, cause: str) -> None:
    assert cause in refused(text)


def test_real_surrogate_pairs_are_characters() -> None:
    assert parse_json('"\\ud83d\\ude00"', "f") == "\U0001f600"


@pytest.mark.parametrize("depth", [70, 300, 900, 5000, 100_000])
def test_parameters_nested_too_deeply(depth: int) -> None:
    """``parameters`` may hold anything, but not to any depth: what is read must be writable."""
    text = encode(MINIMAL).replace('"parameters": {}', '"parameters": {"x": ' + "[" * depth + "]" * depth + "}")
    assert "nested too deeply" in refused(text)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity", '"\\ud800"', "9" * 5000])
def test_parameters_that_could_not_be_written_again(value: str) -> None:
    refused(encode(MINIMAL).replace('"parameters": {}', '"parameters": {"x": ' + value + "}"))


JUNK: list[Any] = [
    None, True, 0, -1, 2, 10**30, 10**400, 0.5, -1e300, "", "x", "proved", "PROVED", "weight-noise", [], {}, [[]],
    [0], [None], {"type": "weight-noise"}, {"type": "clipped-training"}, {"x": 1}, {"x": {"y": []}},
]  # fmt: skip


def replaced(value: Any, generator: random.Random) -> Any:
    """``value`` with one random part replaced by junk, dropped, doubled or renamed."""
    if not isinstance(value, (dict, list)) or not value or generator.random() < 0.1:
        return generator.choice(JUNK)
    if isinstance(value, list):
        at = generator.randrange(len(value))
        return [*value[:at], replaced(value[at], generator), *value[at + generator.choice([0, 1, 1, 1]) :]]
    copy, key = dict(value), generator.choice(list(value))
    if generator.random() < 0.1:
        item = copy.pop(key)
        if generator.random() < 0.5:
            copy[generator.choice(["type", "new", "steps", *value])] = item
        return copy
    copy[key] = replaced(copy[key], generator)
    return copy


def test_replaced_parts_raise_nothing_but_input_faults() -> None:
    generator, whole, refusals = random.Random(0), full(), 0
    for _ in range(1500):
        text = json.dumps(replaced(whole, generator))
        try:
            report = decode(text, "r.json")
        except InputError as fault:
            refusals += 1
            assert "r.json" in str(fault)
            continue
        assert decode(encode(report), "r.json") == report, "what was accepted can be written"
    assert 750 < refusals < 1500


def test_the_schema_file_is_the_one_generated(root: Path) -> None:
    """Regenerate with ``python -m tests.schema`` after a change of the domain."""
    assert json.loads((root / "privctl" / "schemas" / "report-1.json").read_text()) == schema()


def test_the_schema_accepts_reports_and_refuses_others() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    for report in (FULL, MINIMAL, *OTHERS):
        validator.validate(json.loads(encode(report)))
    for where, value in (("extra", 1), ("schema_version", 2), ("mechanism", {"type": "other"}), ("step", 1)):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**full(), where: value})


def test_every_tag_is_in_the_schema() -> None:
    tagged = {d["properties"]["type"]["const"] for d in schema()["$defs"].values() if "type" in d["properties"]}
    assert tagged == {*TAGS, *EVENTS}


def _before_grids(report: PrivacyReport) -> PrivacyReport:
    """As version 0.1.0 wrote it, which rounded nothing onto a grid."""
    assert isinstance(report.mechanism, WeightNoise)
    mechanism = replace(report.mechanism, grid=None)
    return replace(
        report, mechanism=mechanism, guarantees=tuple(replace(g, arithmetic=None) for g in report.guarantees)
    )


def test_the_golden_report_stays_readable() -> None:
    """Written by version 0.1.0; a later version must read it and find the same in it. Never edit the file."""
    report = decode((GOLDEN / "report-1.json").read_text(encoding="utf-8"), "report-1.json")
    assert report == _before_grids(FULL)
    jsonschema.validate(json.loads((GOLDEN / "report-1.json").read_text()), schema())
