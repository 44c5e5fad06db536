"""Policies: where they are read from, who wins, and every sentence for one that makes no sense."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.gate import FileLine
from privctl.domain.guarantee import Notion, Scope
from privctl.gate.checks import RULES
from privctl.gate.policy import OWN, PROJECT, Policy, read_policy
from privctl.gate.settings import KEYS
from privctl.gate.starter import STARTER

#: A value of every key, as TOML and as a flag's text.
VALUES: dict[str, tuple[str, str]] = {
    "max_epsilon": ("4", "4"),
    "at_delta": ("1e-6", "1e-6"),
    "require": ('["proved"]', "proved"),
    "accepted_assumptions": ('["vocabulary", "starting weights"]', "vocabulary, starting weights"),
    "notions": ('["approximate-dp", "mutual-information"]', "approximate-dp,mutual-information"),
    "units": ('["secret"]', "secret"),
    "protects": ('"patient"', "patient"),
    "adjacencies": ('["replace-one"]', "replace-one"),
    "scope": ('"all-candidates"', "all-candidates"),
    "max_posterior": ("0.1", "0.1"),
    "max_auc": ("0.6", "0.6"),
    "max_tpr": ("0.05", "0.05"),
    "at_fpr": ("0.001", "0.001"),
    "max_exposure": ("12", "12"),
    "max_disclosed": ("0", "0"),
    "max_extracted": ("0.01", "0.01"),
    "max_epsilon_lower_bound": ("0", "0"),
    "min_confidence": ("0.9", "0.9"),
    "min_power": ("{ auc = 0.6, epsilon = 4 }", "auc=0.6, epsilon=4"),
    "min_accuracy": ("0.8", "0.8"),
    "max_loss": ("3.5", "3.5"),
    "required_steps": ('["audit", "verify"]', "audit,verify"),
    "max_age_days": ("30", "30"),
    "forbid_outcomes": ('["REFUTED", "INCONCLUSIVE"]', "REFUTED,INCONCLUSIVE"),
    "require_model": ("true", "true"),
    "recompute": ("false", "false"),
    "require_signer": ('["a.pub", "b.pub"]', "a.pub,b.pub"),
    "require_audit_log": ('["a.audits.jsonl", "b.audits.jsonl"]', "a.audits.jsonl,b.audits.jsonl"),
    "audit_log_head": ('["kept"]', "kept"),
}
WAIVER = '[[waiver]]\nid = "W"\nrule = "max_auc"\nreason = "known"\nexpires = 2030-01-31\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(
    text: str | None = None, flags: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Policy:
    if text is not None:
        Path(OWN).write_text(text)
    return read_policy(None, flags or {}, environment or {}, RULES)


@pytest.mark.parametrize("name", KEYS)
def test_a_key_reads_alike_from_a_file_and_from_text(name: str) -> None:
    toml, text = VALUES[name]
    needed = {} if KEYS[name].demand else {"max_epsilon": "1"}
    if name == "audit_log_head":
        needed["require_audit_log"] = "a.audits.jsonl"
    more = "".join(f"{key} = {value if key == 'max_epsilon' else repr(value)}\n" for key, value in needed.items())
    from_file = getattr(read(f"{more}{name} = {toml}\n"), name)
    Path(OWN).unlink()
    flags = {name: text} | needed
    assert getattr(read(flags=flags), name) == from_file
    variables = {f"PRIVCTL_GATE_{key.upper()}": value for key, value in flags.items()}
    assert getattr(read(environment=variables), name) == from_file
    assert from_file not in (None, (), {})


def test_flag_beats_variable_beats_file_beats_default() -> None:
    text = "max_epsilon = 1\nmax_auc = 0.6\nmax_tpr = 0.1\n"
    found = read(
        text, {"max_epsilon": "3"}, {"PRIVCTL_GATE_MAX_EPSILON": "2", "PRIVCTL_GATE_MAX_AUC": "0.7", "HOME": "x"}
    )
    assert (found.max_epsilon, found.max_auc, found.max_tpr, found.at_delta) == (3, 0.7, 0.1, 1e-5)
    assert [(s.key, s.source) for s in found.settings] == [
        ("max_epsilon", "--max-epsilon"),
        ("max_auc", "PRIVCTL_GATE_MAX_AUC"),
        ("max_tpr", f"{OWN}:3"),
    ]
    assert found.places == {"max_tpr": FileLine(path=OWN, line=3)}


def test_pyproject_holds_a_table() -> None:
    Path(PROJECT).write_text('[project]\nname = "x"\n[tool.privctl.gate]\nrequire = "proved"\nmax_epsilon = 2\n')
    found = read()
    assert (found.max_epsilon, found.require) == (2, ("proved",))
    assert found.places["max_epsilon"].line == 5
    assert read_policy(Path(PROJECT), {}, {}, RULES) == found
    with pytest.raises(CommandError, match="two policies"):
        read("max_epsilon = 3\n")
    assert read_policy(Path(OWN), {}, {}, RULES).max_epsilon == 3


def test_waivers_in_a_project() -> None:
    inside = WAIVER.replace("[[waiver]]", "[[tool.privctl.gate.waiver]]")
    Path(PROJECT).write_text(f"[tool.privctl.gate]\nmax_auc = 0.6\n{inside}")
    (waiver,) = read().waivers
    assert (waiver.name, waiver.rule, waiver.reason, waiver.expires) == ("W", "max_auc", "known", date(2030, 1, 31))


def test_a_project_without_a_table_is_no_policy() -> None:
    Path(PROJECT).write_text("[tool.other]\n")
    with pytest.raises(CommandError, match=r"no policy was found.*--init"):
        read()
    with pytest.raises(CommandError, match="has no table"):
        read_policy(Path(PROJECT), {}, {}, RULES)
    Path(PROJECT).write_text("[tool]\nprivctl = 3\n")
    with pytest.raises(CommandError, match="has something other than a table"):
        read()


@pytest.mark.parametrize("text", ["", "at_delta = 1e-6\n", "require_model = false\n", WAIVER])
def test_a_policy_that_asks_nothing_is_none(text: str) -> None:
    with pytest.raises(CommandError, match="demands nothing"):
        read(text)


def test_the_starter_is_a_policy_that_names_every_key() -> None:
    found = read(STARTER)
    assert (found.max_epsilon, found.required_steps, found.require_model) == (8, ("audit",), True)
    for name in KEYS:
        # min_confidence is for those who know why.
        assert re.search(rf"^(# )?{name} = ", STARTER, re.MULTILINE) or name == "min_confidence", name
    uncommented = re.sub(r"^# (?=\w+ = |\[\[)", "", STARTER, flags=re.MULTILINE)
    (waiver,) = read(uncommented).waivers
    assert waiver.expires == date(2030, 1, 31)
    assert read(uncommented).scope is Scope.ALL_CANDIDATES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_epsilom = 1\n", "unknown key 'max_epsilom'; did you mean max_epsilon?"),
        ("zzz = 1\n", "known are max_epsilon"),
        ("max_epsilon = -1\n", "is -1; expected a number above 0 and at most 10000"),
        ("max_epsilon = 0\n", "above 0"),
        ("max_epsilon = inf\n", "is inf"),
        ("max_epsilon = nan\n", "is nan"),
        ("max_epsilon = 1e300\n", "at most 10000"),
        (f"max_epsilon = {'9' * 400}\n", "at most 10000"),
        (f"max_epsilon = {'9' * 5000}\n", "too many digits"),
        ("max_epsilon = true\n", "is True"),
        ('max_epsilon = "8"\n', "is '8'"),
        ("max_epsilon = [8]\n", r"is \[8\]"),
        ("max_epsilon = 1\nat_delta = 1\n", "at_delta .* is 1; .* below 1"),
        ("max_epsilon = 1\nat_delta = -1e-5\n", "at least 0"),
        ("max_auc = 1\n", "below 1"),
        ("max_auc = 0.4\n", "at least 0.5"),
        ("max_tpr = 0\n", "above 0"),
        ('require = ["prooved"]\nmax_epsilon = 1\n', "did you mean proved"),
        ('require = ["void"]\nmax_epsilon = 1\n', "unknown name 'void'"),
        ("require = []\nmax_epsilon = 1\n", r"is \[\]"),
        ('scope = ["this-model"]\nmax_epsilon = 1\n', "expected one of"),
        ('required_steps = ["audt"]\n', "did you mean audit"),
        ('forbid_outcomes = ["CONSISTENT"]\n', "contains the unknown name"),
        ("min_power = { acu = 0.6 }\n", "did you mean auc"),
        ("min_power = { auc = 0.3 }\n", "an entry auc that is 0.3"),
        ("min_power = 3\n", "expected a table"),
        ("require_model = 1\n", "expected true or false"),
        ("max_epsilon = \n", "not valid TOML"),
        ("max_epsilon = 1\nmax_epsilon = 2\n", "not valid TOML"),
        ("x = " + "[" * 100_000, "nested too deeply|not valid TOML"),
        ("max_age_days = -1\n", "at least 0"),
        ("waiver = 3\nmax_auc = 0.6\n", "list of tables"),
        ("max_auc = 0.6\n" + WAIVER.replace('reason = "known"\n', ""), "lacks 'reason' in entry 1"),
        ("max_auc = 0.6\n" + WAIVER.replace('"known"', '" "'), "has reason ' '"),
        ("max_auc = 0.6\n" + WAIVER.replace("expires = 2030-01-31\n", ""), "lacks 'expires'"),
        ("max_auc = 0.6\n" + WAIVER.replace("2030-01-31", '"soon"'), "expires 'soon'"),
        ("max_auc = 0.6\n" + WAIVER.replace("2030-01-31", "2030-01-31T00:00:00Z"), "expected a date"),
        ("max_auc = 0.6\n" + WAIVER.replace("max_auc", "max_acu"), "did you mean max_auc"),
        ("max_auc = 0.6\n" + WAIVER.replace('"max_auc"', '"chain"'), "would waive chain"),
        ("max_auc = 0.6\n" + WAIVER.replace('"max_auc"', '"contradiction"'), "can be trusted"),
        ("max_auc = 0.6\n" + WAIVER + 'until = "x"\n', "unknown key 'until'"),
        ("max_auc = 0.6\n" + WAIVER + WAIVER, "two entries with the id 'W'"),
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says) as caught:
        read(text)
    assert OWN in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "1e400", "1,2", "0x10"])
def test_text_of_a_flag_is_held_to_the_same(text: str) -> None:
    with pytest.raises(CommandError, match="^--max-epsilon is "):
        read(flags={"max_epsilon": text})
    with pytest.raises(CommandError, match="^PRIVCTL_GATE_MAX_EPSILON is "):
        read(environment={"PRIVCTL_GATE_MAX_EPSILON": text})


def test_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(CommandError, match="did you mean max_epsilon"):
        read("max_epsilon = 1\n", environment={"PRIVCTL_GATE_MAX_EPSILOM": "1"})


@pytest.mark.parametrize("other", ["PRIVCTL_GATE_max_epsilon", "PRIVCTL_GATE_Max_Epsilon"])
def test_one_key_is_not_set_by_two_variables(other: str) -> None:
    """The order of an environment would decide which limit holds."""
    for pair in ((other, "PRIVCTL_GATE_MAX_EPSILON"), ("PRIVCTL_GATE_MAX_EPSILON", other)):
        with pytest.raises(CommandError, match="two variables set max_epsilon"):
            read(environment=dict.fromkeys(pair, "8"))


@pytest.mark.parametrize("text", ["auc=0.6,auc=0.7", "auc", "=", "auc=x"])
def test_text_of_powers(text: str) -> None:
    with pytest.raises(CommandError, match="^--min-power "):
        read(flags={"min_power": text})


def test_refuted_is_forbidden_whatever_the_policy_says() -> None:
    asked = read('max_auc = 0.6\nforbid_outcomes = "INCONCLUSIVE"\n')
    assert asked.forbid_outcomes == ("REFUTED", "INCONCLUSIVE")


def test_a_policy_that_only_names_outcomes_asks_nothing() -> None:
    """A model without a single report of an audit or a guarantee would meet it."""
    with pytest.raises(CommandError, match="demands nothing of a model"):
        read('forbid_outcomes = ["REFUTED", "INCONCLUSIVE"]\n')


def test_a_name_is_counted_once() -> None:
    assert read('notions = ["approximate-dp", "approximate-dp"]\nmax_epsilon = 1\n').notions == (Notion.APPROXIMATE_DP,)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    (tmp_path / "bytes").write_bytes(b"x = '\xff'\n")
    for name, says in (
        ("folder", "regular file"),
        ("loop", "cannot be read"),
        ("pipe", "regular file"),
        ("huge", "more than 1 MiB"),
        ("bytes", "not UTF-8"),
        ("none", "does not exist"),
    ):
        with pytest.raises(CommandError, match=says):
            read_policy(tmp_path / name, {}, {}, RULES)


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ('# max_auc\n"max_auc" = 0.6\n', "max_auc", 2),
        ("max_auc=0.6\n", "max_auc", 1),
        ("max_epsilon = 1\n\n[min_power]\nauc = 0.6\n", "min_power", 3),
        ("max_epsilon = 1\nmin_power.auc = 0.6\n", "min_power", 2),
    ],
)
def test_the_line_of_a_key(text: str, name: str, line: int) -> None:
    assert read(text).places[name].line == line
