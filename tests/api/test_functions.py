"""The commands as functions: their arguments are the options, nothing is printed, errors are exceptions."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import privctl
from privctl.api.arguments import range_of
from privctl.cli import root, run
from privctl.cli.groups import GroupWithCommand
from privctl.cli.numbers import Number, Whole
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.events import EVENTS
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import Status
from privctl.domain.mechanism import WeightNoise
from privctl.domain.verdict import Outcome
from privctl.gate.settings import KEYS
from privctl.train.methods import METHODS
from privctl.train.settings.method_settings import GROUPS
from tests.audits.tiny import WORDS, save_model
from tests.bytecode import search_path
from tests.cli.noised import WEIGHTS
from tests.conftest import WriteModel

FACTS = {"epochs": 10, "learning_rate": 5e-5, "clip_norm": 1.0, "dataset_size": 1000, "batch_size": 5}
#: Options about output on a terminal, which functions do not have, and arguments that only functions have.
OF_TERMINALS = {"as_json", "quiet", "verbose", "debug", "plot", "form", "init"}
OF_FUNCTIONS = {"progress", "notify", "on_records", "on_epoch", "method"}


def command(*names: str) -> click.Command:
    found: click.Command = root
    for name in names:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return found.alone if isinstance(found, GroupWithCommand) else found


def default_of(parameter: click.Parameter) -> Any:
    """The default as a function's signature states it."""
    bare = click.Command("bare", params=[parameter])
    parameter.required, asked = False, parameter.required
    try:
        default = bare.make_context("bare", []).params[parameter.name]
    finally:
        parameter.required = asked
    return default


#: Function -> its command.
COMMANDS = {
    "noise": ("noise",), "account": ("account",), "audit": ("audit",), "verify": ("verify",),
    "audit_scores": ("audit", "scores"), "report": ("report",),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_arguments_are_the_options(name: str) -> None:
    function = inspect.signature(getattr(privctl.api, name)).parameters
    options = {p.name: p for p in command(*COMMANDS[name]).params if p.name not in OF_TERMINALS}
    if name == "audit_scores":
        del options["seed"]  # hidden, and without effect
    own = {option.parameter for kind in EVENTS.values() for option in kind.options}
    of_mechanism = own if name == "account" else set()
    named = {each for each, p in function.items() if p.kind is not p.VAR_KEYWORD} - OF_FUNCTIONS
    if name == "account":
        assert of_mechanism <= set(options)
    assert named == set(options) - (of_mechanism - named)
    for each in named:
        if function[each].default is not inspect.Parameter.empty:
            assert function[each].default == default_of(options[each]), each


def test_the_arguments_of_retrain_are_the_options_of_its_methods() -> None:
    function = inspect.signature(privctl.retrain).parameters
    named = {each for each, p in function.items() if p.kind is not p.VAR_KEYWORD} - OF_FUNCTIONS
    shared = {option for group in GROUPS.values() for option in group}
    for method in METHODS:
        options = {p.name: p for p in command("retrain", method).params if p.name not in OF_TERMINALS}
        for name in named & set(options) - {"clip_norm"}:
            if function[name].default is not inspect.Parameter.empty:
                assert function[name].default == default_of(options[name]), name
        assert named - set(options) <= shared


def test_numbers_have_the_ranges_of_their_options() -> None:
    """Each with the same range on both sides, and none without one."""
    for name, of in COMMANDS.items():
        function = inspect.signature(getattr(privctl.api, name)).parameters
        for p in command(*of).params:
            if p.name in function and isinstance(p.type, Number | Whole):
                assert range_of(name, p.name) == p.type.within, (name, p.name)
    for method in METHODS:
        of_method = {p.name: p for p in command("retrain", method).params}
        for name, p in of_method.items():
            if name is not None and isinstance(p.type, Number | Whole):
                assert range_of("retrain", name) == p.type.within, (method, name)


LIGHT = """
import sys, privctl
heavy = {"torch", "numpy", "scipy", "transformers", "click", "jinja2"} & set(sys.modules)
assert not heavy, heavy
assert set(privctl.__all__) <= set(dir(privctl))
privctl.account, privctl.verify, privctl.noise, privctl.gate, privctl.audit, privctl.audit_scores, privctl.retrain
assert "torch" not in sys.modules
import privctl.noise.facts
assert callable(privctl.noise) and callable(privctl.gate)
try:
    privctl.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""


#: A loop of one's own needs neither privctl's loaders of records nor the tests on synthetic ones.
OWN_LOOP = """
import sys, privctl
privctl.make_private
unused = [name for name in sys.modules if name.startswith(("privctl.models.tasks", "transformers.feature_extraction"))]
assert not unused, unused
"""

#: Only a training in the user's own loop: its report is printed as those of the commands are.
PRINTED = """
import privctl
privctl.from_opacus
from privctl.domain.report import PrivacyReport
shown = str(PrivacyReport(step="external-training", created="2030-01-01T00:00:00Z", versions={}))
assert shown.startswith("report of privctl external-training"), shown
"""


@pytest.mark.parametrize("program", [LIGHT, OWN_LOOP, PRINTED], ids=["light", "own loop", "printed"])
def test_importing_loads_no_engine_and_shows_reports(program: str, root_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": search_path(root_folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_package_that_is_called_says_what_it_takes() -> None:
    assert inspect.signature(privctl.noise) == inspect.signature(privctl.api.noise)
    assert inspect.signature(privctl.gate) == inspect.signature(privctl.api.gate)


@pytest.fixture
def root_folder() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path: Path, write_model: WriteModel) -> Path:
    return write_model(tmp_path / "model.safetensors", WEIGHTS)


def test_noise_verify_and_gate(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    messages: list[str] = []
    reports = privctl.noise(model, epsilon=[1, 10], calibration="published", **FACTS, notify=messages.append)
    assert [report.parameters["epsilon"] for report in reports] == [1, 10]
    assert {g.status for g in reports[0].guarantees if g.name == "published"} == {Status.CLAIMED}
    written = sorted(path for path in model.parent.glob("*.safetensors") if path != model)
    assert len(written) == 2
    found = privctl.verify(written[0])
    assert found.exit_code is ExitCode.OK
    assert found.verdicts
    strict = privctl.gate(written[0], max_epsilon=1, require="proved", policy=None)
    assert strict.outcome is GateOutcome.FAIL
    assert capfd.readouterr() == ("", "")


def test_a_dry_run_of_noise_writes_nothing(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    planned = privctl.noise(model, epsilon=[1, 10], **FACTS, dry_run=True)
    assert os.listdir(model.parent) == [model.name]
    reports = privctl.noise(model, epsilon=[1, 10], **FACTS)
    mechanisms = [report.mechanism for report in reports]
    assert [c.stddev for c in planned] == [noise.noise_stddev for noise in mechanisms if isinstance(noise, WeightNoise)]
    assert [c.guarantees for c in planned] == [report.guarantees for report in reports]
    assert all(candidate.path.exists() for candidate in planned)
    with pytest.raises(CommandError, match="so --evaluate has nothing to measure"):
        privctl.noise(model, **FACTS, evaluate=model, dry_run=True)
    assert capfd.readouterr() == ("", "")


def test_a_verification_is_written_where_it_is_asked_for(model: Path) -> None:
    (report,) = privctl.noise(model, noise_stddev=0.1)
    own = next(model.parent.glob("*.report.json"))
    found = privctl.verify(own, output=model.with_name("verify.report.json"))
    assert not report.guarantees
    again = privctl.verify(model.with_name("verify.report.json"))
    assert again.exit_code is ExitCode.OK
    assert [v.subject for v in found.verdicts]
    with pytest.raises(CommandError, match="nothing edits"):
        privctl.verify(own, output=own)


def test_a_page_is_what_the_command_writes(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    privctl.noise(model, epsilon=1, **FACTS)
    own, page = model.with_name("model.private.report.json"), model.with_name("page.md")
    assert privctl.report(own, output=page) == page
    assert privctl.report([own]) == model.with_name("model.private.html")
    assert capfd.readouterr() == ("", "")
    assert run(["report", str(own), "-o", "-", "--format", "markdown"]) == 0
    assert capfd.readouterr().out == page.read_text()
    for more, message in (
        ({"output": page}, "exists; give --force"),
        ({"output": model.with_name("p.png")}, "would hold html"),
        ({"output": own}, "is one of the reports"),
        ({"kind": "pdf"}, "--format is 'pdf'"),
        ({"output": "-"}, "is for the command line"),
        ({"title": ""}, "--title has 0 characters"),
    ):
        with pytest.raises(CommandError, match=message):
            privctl.report(own, **more)  # type: ignore[arg-type]


def test_account_finds_noise_and_epsilon(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = privctl.account(epsilon=1, delta=1e-5, sample_rate=0.01, steps=1000, no_peers=True)
    # the docstring of calibrate.noise_multiplier_for, checked there against another accountant
    assert plan.parameters["found"]["noise multiplier"] == pytest.approx(1.41463, abs=5e-5)
    report_path = tmp_path / "plan.report.json"
    again = privctl.account(mechanism="laplace", scale=2, delta=1e-5, output=report_path)
    assert again.guarantees[0].epsilon == pytest.approx(0.5, abs=1e-4)
    assert privctl.verify(report_path).exit_code is ExitCode.OK
    secret = privctl.account(mechanism="secret", posterior=0.1, priors=0.001, records="0.01x20", delta=1e-5, steps=100)
    assert secret.guarantees
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: privctl.account(epsilon=1), "--delta is missing"),
        (lambda: privctl.account(epsilon=-1, delta=1e-5), "--epsilon is -1"),
        (lambda: privctl.account(epsilon="1", delta=1e-5), "--epsilon is '1'; it must be a number"),  # type: ignore[arg-type]
        (lambda: privctl.account(epsilon=1, delta=1e-5, sale=2), "did you mean scale"),
        (lambda: privctl.account(epsilon=1, delta=1e-5, scale=2), "--scale does not apply to --mechanism gaussian"),
        (lambda: privctl.account(epsilon=1, delta=1e-5, priors=[2]), "--prior is 2"),
        (lambda: privctl.account(noise_multiplier=1, delta=1e-5, steps=10.5), "--steps is 10.5; it must be a whole"),
        (lambda: privctl.account(noise_multiplier=1, delta=1e-5, steps=10.0), "--steps is 10.0; it must be a whole"),
        (lambda: privctl.account(noise_multiplie=1, delta=1e-5), "did you mean noise_multiplier?"),
        (lambda: privctl.account(epsilon=1, delta=1e-5, mechanism="unheard"), "--mechanism unheard is not known"),
        (lambda: privctl.retrain("sgd", "m", data="d", output="o"), "no training method 'sgd'"),
        (lambda: privctl.retrain("plain", "m", data="d", output="o", epsilon=1), "--epsilon is no option of plain"),
        (lambda: privctl.retrain("dpquant", "m", data="d", output="o", epsilon=1), "dpquant needs --format"),
        (lambda: privctl.retrain("dp-sgd", "m", data="d", output="o", batch_size=0), "--batch-size is 0"),
        (lambda: privctl.audit(), "there is nothing to audit"),
        (lambda: privctl.audit("m", members="a", nonmembers="b", top_k=0), "--top-k is 0"),
        (lambda: privctl.audit("m", from_scores="s.csv"), "--from-scores audits no model"),
        (lambda: privctl.gate(), "there are no reports"),
        (lambda: privctl.audit(object(), members="a", nonmembers="b"), "model is a value of type object; give a path"),  # type: ignore[arg-type]
        (lambda: privctl.retrain("dp-sgd", {}, data="d", output="o"), "model is a value of type dict; give a path"),  # type: ignore[arg-type]
        (
            lambda: privctl.retrain("dp-sgd", "m", data=["a\nb"], output="o"),
            "a text that is not a path is given where data",
        ),
        (
            lambda: privctl.audit_split([{"text": "a"}], output="o"),
            "a value of type dict is given where data is expected",
        ),  # type: ignore[list-item]
        (lambda: privctl.audit_split(3, output="o"), "a value of type int is given where data is expected"),  # type: ignore[arg-type]
        (lambda: privctl.gate("r.report.json", max_epsilom=1), "did you mean max_epsilon"),
        (lambda: privctl.gate("r.report.json", max_epsilon=-1), "--max-epsilon is -1"),
    ],
)
def test_what_cannot_be_carried_out_is_an_exception(
    call: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_no_report_is_an_exception(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.report\.json"):
        privctl.verify(tmp_path / "absent.report.json")


def test_retrain_and_audit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start = save_model(tmp_path / "start")
    drawn = random.Random(0)
    for name in ("members", "others"):
        lines = [json.dumps({"text": " ".join(drawn.choices(WORDS, k=12))}) for _ in range(24)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    epochs: list[Any] = []
    capfd.readouterr()
    report = privctl.retrain(
        "dp-sgd",
        start,
        data=tmp_path / "members.jsonl",
        held_out=tmp_path / "others.jsonl",
        output=tmp_path / "private",
        batch_size=12,
        epochs=1,
        epsilon=8,
        schedule="linear",
        on_epoch=epochs.append,
    )
    (guarantee,) = report.guarantees
    assert guarantee.epsilon == pytest.approx(8, rel=1e-3)
    assert guarantee.epsilon <= 8
    assert len(epochs) == 1
    assert privctl.verify(tmp_path / "private").exit_code is ExitCode.OK
    audit = privctl.audit(
        tmp_path / "private", members=tmp_path / "members.jsonl", nonmembers=tmp_path / "others.jsonl", attacks="loss"
    )
    assert next(e.quantity for e in audit.evidence if e.method == "loss") == "AUC"
    assert audit.log is not None
    assert privctl.verify(tmp_path / "private.audit.report.json").exit_code is ExitCode.OK
    judged = privctl.gate(tmp_path / "private", max_epsilon=8.5, required_steps=["audit"])
    assert judged.outcome is GateOutcome.PASS, judged.findings
    assert capfd.readouterr().out == ""


def test_audits_of_scores_refute_a_claim(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{x},1" for x in rng.normal(4, 1, 400)] + [f"{x},0" for x in rng.normal(0, 1, 400)]
    scores = tmp_path / "scores.csv"
    scores.write_text("score,member\n" + "\n".join(rows) + "\n")
    refuted = privctl.audit(from_scores=scores, claim=(0.1, 1e-5))
    assert any(v.outcome is Outcome.REFUTED for v in refuted.verdicts)
    kept = privctl.audit(from_scores=scores, claim=(50.0, 1e-5), force=True)
    assert not any(v.outcome is Outcome.REFUTED for v in kept.verdicts)


def test_scores_of_records_are_judged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i},{x},{rng.normal()},{i % 2}" for i, x in enumerate(rng.normal(2 * (np.arange(400) % 2), 1))]
    scores = tmp_path / "per-record.csv"
    scores.write_text("name,loss,coin,in\n" + "\n".join(rows) + "\n")
    report = privctl.audit_scores(
        scores, score_column=["loss", "coin"], member_column="in", id_column="name", output=tmp_path / "a.report.json"
    )
    membership, coin = (e for e in report.evidence if e.quantity == "AUC")
    # Phi(2 / sqrt 2) for two normal distributions that lie 2 apart
    assert membership.lower is not None
    assert membership.upper is not None
    assert membership.lower < 0.921 < membership.upper
    assert coin.lower is not None
    assert coin.lower < 0.5
    assert privctl.verify(tmp_path / "a.report.json").exit_code is ExitCode.OK
    with pytest.raises(CommandError, match="a.report.json exists; give --force"):
        privctl.audit_scores(scores, score_column="loss", member_column="in", id_column="name",
                             output=tmp_path / "a.report.json")  # fmt: skip
    with pytest.raises(CommandError, match="--claim needs scores of many models"):
        privctl.audit_scores(scores, claim=(1.0, 1e-5))
    with pytest.raises(CommandError, match="--least-auc is 2"):
        privctl.audit_scores(scores, least_auc=2)
    models = tmp_path / "models.csv"
    models.write_text("score,member\n" + "".join(f"{x},1\n{x - 4},0\n" for x in rng.normal(4, 1, 200)))
    refuted = privctl.audit_scores(models, models=True, claim=(0.1, 1e-5))
    assert any(v.outcome is Outcome.REFUTED for v in refuted.verdicts)
    assert capfd.readouterr() == ("", "")


def test_every_key_of_a_policy_is_a_setting(model: Path) -> None:
    """As the values that a policy file may hold, which a flag spells in its own way."""
    privctl.noise(model, noise_stddev=0.1)
    own = next(model.parent.glob("*.report.json"))
    values: dict[str, Any] = {
        "max_epsilon": 2.5e-7,
        "require": ["proved", "conditional"],
        "min_power": {"auc": 0.6, "epsilon": 4},
        "recompute": False,
        "required_steps": ("noise",),
    }
    assert values.keys() <= KEYS.keys()
    judged = privctl.gate(own, **values)
    applied = {setting.key: setting.value for setting in judged.settings}
    assert applied.keys() >= values.keys()
    assert "2.5e-07" in applied["max_epsilon"]
