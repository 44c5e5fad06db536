"""An audit's first sentence, and the command that it ends on."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import audits.canaries.verdict
import audits.extraction.audit
import audits.membership.verdict
from audits.claims import EpsilonClaim
from audits.membership.attack import Settings
from audits.membership.baseline import Baseline
from audits.statistics.power import detectable_auc
from privctl.cli import root
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import write_report
from privctl.show.decision import Decision, conclusion
from privctl.show.gather.next_step import next_step
from privctl.show.leaks import CANARIES, EXTRACTION, MEMBERSHIP, SECRETS
from privctl.storage.digest import file_digest
from tests.show.made import trained
from tests.show.test_leaks import measured, report, share

NO_BASELINE = Baseline(evidence=(), scores=np.zeros(0))


def extraction(found: int, held_out: int | None, count: int = 300) -> PrivacyReport:
    """An audit of extraction with the verdict that audits give."""
    items = [share("extraction", "rate on training text", found, count, None, extracted=found, texts=count)]
    if held_out is not None:
        margin = 0.03 + (count < 300) * 0.1
        items.append(
            Evidence(
                method="extraction", quantity="rate beyond held-out text", estimate=(found - held_out) / count,
                lower=(found - held_out) / count - margin, upper=1.0,
                details={"chance": 0.0, "training_extracted": found, "training_texts": count,
                         "held_out_extracted": held_out, "held_out_texts": count, "detectable": 0.008},
            )
        )  # fmt: skip
    return report(*items, verdicts=(audits.extraction.audit.verdict(items),))


def membership(shift: float, count: int = 400) -> PrivacyReport:
    items = [measured(shift, count)]
    return report(*items, verdicts=(audits.membership.verdict.verdict(items, NO_BASELINE),))


def test_records_that_come_out_forbid_a_release() -> None:
    found = conclusion(extraction(55, 0))
    assert found.decision is Decision.WITHHOLD
    assert found.sentence == "Do not release: 55 of 300 training records can be extracted word for word."


def test_an_area_is_said_as_a_share_of_right_guesses() -> None:
    concluded = conclusion(membership(3.3))
    assert concluded.decision is Decision.WITHHOLD
    area = membership(3.3).evidence[0].estimate
    assert area is not None
    assert "an attacker shown a training record and another one tells which is which 9" in concluded.sentence
    assert concluded.sentence.endswith("; by guessing, 50 %).")


def test_a_rate_is_said_as_records_recognized() -> None:
    item = share("lira", "TPR at 0.1 % FPR", 30, 100, 0.004)
    sentence = conclusion(report(item, subject=MEMBERSHIP)).sentence
    assert "an attacker recognizes 30 % of the training records (at least " in sentence
    assert sentence.endswith(" at 0.1 % false alarms among these records, which are at most 0.4 % among others.")


def test_a_refuted_claim_forbids_a_release_without_any_leak() -> None:
    found = report(subject="(1, 1e-05)-DP, as claimed")
    assert (
        conclusion(found).sentence
        == "Do not release: the claim of (1, 1e-05)-DP is refuted: it promises more privacy than there is."
    )
    of_report = report(subject="(8, 1e-05)-DP, stated in m.report.json")
    assert "the claim of (8, 1e-05)-DP (stated in m.report.json) is refuted" in conclusion(of_report).sentence
    of_curve = report(subject="(dp-sgd): the mechanism stated in m.report.json")
    assert "the claim (dp-sgd): the mechanism stated in m.report.json is refuted" in conclusion(of_curve).sentence


def test_a_mechanism_that_could_not_be_tested_is_said_without_figures() -> None:
    judged = Verdict(
        subject="(noise multiplier 0.8, 21 steps): the mechanism stated in m.report.json",
        outcome=Outcome.INCONCLUSIVE,
        reason="the guesses do not refute its trade-off curve (p = 1, level 0.025); if there had been half the noise",
    )
    sentence = conclusion(report(verdicts=(judged,))).sentence
    assert sentence == "Inconclusive: the audit is too small to test the mechanism stated in m.report.json."


@pytest.mark.parametrize("count", [60, 2])
def test_a_claim_that_could_not_be_tested_is_said_without_figures(count: int) -> None:
    bound = Evidence(
        method="one run", quantity="epsilon", estimate=0.0, lower=0.0, bound=Bound.LOWER, confidence=0.95,
        samples={"canaries": count},
        details={"delta": 1e-5, "copies": 1.0, "sets": 1, "guesses 1": count, "correct 1": count // 2},
    )  # fmt: skip
    judged = audits.canaries.verdict._claim(EpsilonClaim(epsilon=3.0, delta=1e-5), bound, "plant more (")
    assert judged.outcome is Outcome.INCONCLUSIVE
    sentence = conclusion(report(verdicts=(judged,))).sentence
    assert sentence == "Inconclusive: the audit is too small to test the claim of (3, 1e-05)-DP."


@pytest.mark.parametrize(
    ("lower", "sentence"),
    [(0.58, "Do not release: the model was trained on the data"), (0.51, "A small leak: the model was trained on the")],
)
def test_of_a_whole_file_the_answer_is_whether_it_was_trained_on(lower: float, sentence: str) -> None:
    item = replace(measured(0.0), method="fused", estimate=0.6, lower=lower, upper=0.65)
    of_file = replace(report(item, subject=MEMBERSHIP), parameters={"attack": ["fused"]})
    assert conclusion(of_file).sentence.startswith(sentence)
    several = replace(of_file, parameters={"attack": ["loss", "fused"]})
    assert "the model was trained on" not in conclusion(several).sentence


def test_of_users_all_records_of_one_are_shown() -> None:
    item = replace(measured(0.0), estimate=0.9, lower=0.8, upper=0.95)
    of_users = replace(report(item, subject=MEMBERSHIP), parameters={"group_by": "user"})
    assert (
        "an attacker shown all records of two values of 'user' tells which was trained on 90 %"
        in conclusion(of_users).sentence
    )


def test_a_difference_within_the_margins_is_small() -> None:
    item = replace(measured(0.0), estimate=0.55, lower=0.51, upper=0.59)
    found = report(item, subject=MEMBERSHIP)
    assert conclusion(found).decision is Decision.SLIGHT
    assert conclusion(found).sentence.startswith("A small leak: training records can be told from others")


def test_what_the_audit_was_too_small_for_is_inconclusive() -> None:
    found = membership(0.0, 60)
    assert found.verdicts[0].outcome is Outcome.INCONCLUSIVE
    concluded = conclusion(found)
    assert concluded.decision is Decision.INCONCLUSIVE
    reach = 100 * found.evidence[0].details["detectable"]
    assert (
        f"it could have detected is an attacker who tells a training record from another {reach:.3g} %"
        in concluded.sentence
    )


@pytest.mark.parametrize(
    ("swapped", "confounded", "reason"),
    [(True, "", "the files may have been swapped"), (False, "blind baseline", "the two files differ even without")],
)
def test_why_files_that_cannot_be_compared_decide_nothing(swapped: bool, confounded: str, reason: str) -> None:
    items = [measured(-3.3 if swapped else 3.3)]
    blind = [replace(measured(3.3), method=confounded)] if confounded else []
    judged = audits.membership.verdict.verdict(items, Baseline(evidence=tuple(blind), scores=np.zeros(0)))
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert reason in conclusion(report(*items, *blind, verdicts=(judged,))).sentence


def fused() -> Evidence:
    """The AUC of an attack that learned from the files which side is which."""
    return replace(measured(3.3), method="fused")


@pytest.mark.parametrize(("shift", "swapped"), [(-3.3, True), (0.0, False), (3.3, False)])
def test_a_leak_seen_backwards_asks_whether_the_files_were_swapped(shift: float, swapped: bool, tmp_path: Path) -> None:
    found = replace(report(measured(shift), fused(), subject=MEMBERSHIP), inputs=inputs("members", "nonmembers"))
    concluded = conclusion(found)
    assert concluded.decision is Decision.WITHHOLD
    assert concluded.sentence.endswith("the files may have been swapped.") is swapped
    words = parsed(next_step(found, tmp_path / "model.audit.report.json").command)
    if swapped:
        sides = [Path(words[words.index(flag) + 1]).name for flag in ("--members", "--nonmembers")]
        assert sides == ["nonmembers.jsonl", "members.jsonl"]
    else:
        assert words[1] == "retrain"


def test_an_audit_that_could_see_nothing_says_so() -> None:
    unseeing = replace(measured(0.0), details={"chance": 0.5})
    assert unseeing.sees is None
    judged = Verdict(subject=MEMBERSHIP, outcome=Outcome.INCONCLUSIVE, reason="no attack found a difference")
    sentence = conclusion(report(unseeing, verdicts=(judged,))).sentence
    assert sentence == "Inconclusive: no attack found a leak, but with so few records any leak would have been missed."


def test_without_held_out_text_it_is_asked_for() -> None:
    sentence = conclusion(extraction(31, None)).sentence
    assert sentence == (
        "Inconclusive: 31 of 300 training texts come out word for word, but no held-out text was given to compare with."
    )


def test_nothing_found_says_what_would_have_been() -> None:
    found = membership(0.0, 4000)
    assert found.verdicts[0].outcome is Outcome.CONSISTENT
    concluded = conclusion(found)
    assert concluded.decision is Decision.NOTHING
    reach = 100 * found.evidence[0].details["detectable"]
    assert (
        f"could have detected an attacker who tells a training record from another {reach:.3g} %" in concluded.sentence
    )
    assert concluded.sentence.endswith("This is no proof of privacy.")
    small = extraction(0, 0)
    assert small.verdicts[0].outcome is Outcome.CONSISTENT
    assert "could have detected the verbatim extraction of 0.8 % of the training records" in conclusion(small).sentence


@pytest.mark.parametrize("subject", [MEMBERSHIP, EXTRACTION, CANARIES, SECRETS, "(1, 0)-DP, as claimed"])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_verdict_has_a_sentence(subject: str, outcome: Outcome) -> None:
    sentence = conclusion(report(subject=subject, outcome=outcome)).sentence
    assert sentence.endswith(".")
    assert conclusion(report()).decision is Decision.UNTESTED


def inputs(*roles: str) -> tuple[Artifact, ...]:
    paths = {"model": "model/model.safetensors", **{role: f"{role}.jsonl" for role in roles}}
    return tuple(Artifact(role=role, path=path, digest="blake3:0", bytes=1) for role, path in paths.items())


def parsed(command: str) -> list[str]:
    """The words of ``command``, which the command line must take."""
    words = shlex.split(command)
    assert words[0] == "privctl"
    context, args = root.make_context("privctl", words[1:]), words[1:]
    while args:
        name, found, args = context.command.resolve_command(context, args)  # type: ignore[attr-defined]
        context = found.make_context(name, list(args), parent=context)
        args = [*context._protected_args, *context.args]
    return words


def test_a_leak_is_answered_by_private_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report_path = tmp_path / "model.audit.report.json"
    leaky = replace(extraction(55, 0), inputs=inputs("members", "nonmembers"), parameters={"task": "causal-lm"})
    step = next_step(leaky, report_path)
    assert "START is the model as it was before" in step.advice
    assert step.advice.startswith("train again")
    assert next_step(leaky, report_path, repeated=True).advice.startswith(
        "remove repetitions from the data, train again"
    )
    assert parsed(step.command) == [
        "privctl", "retrain", "dp-sgd", "START", "--data", "members.jsonl", "--epsilon", "8", "-o", "model.dp-sgd",
    ]  # fmt: skip
    assert not next_step(replace(leaky, inputs=()), report_path).command
    of_classes = next_step(replace(leaky, parameters={"task": "text-classification"}), report_path)
    assert parsed(of_classes.command)[6:10] == ["--task", "text-classification", "--labels", "CLASSES"]
    assert "CLASSES are the names" in of_classes.advice


def test_where_the_training_began_is_taken_from_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start model").mkdir()
    config = Artifact(role="start-config.json", path="start model/config.json", digest="blake3:0", bytes=1)
    training = replace(report(), step="retrain", inputs=(config,))
    write_report(tmp_path / "model.report.json", training)
    parent = ParentReport(path="model.report.json", digest=file_digest(tmp_path / "model.report.json"))
    leaky = replace(extraction(55, 0), inputs=inputs("members"), parents=(parent,))
    assert parsed(next_step(leaky, tmp_path / "model.audit.report.json").command)[3] == "start model"
    forged = replace(leaky, parents=(replace(parent, digest="blake3:1"),))
    assert parsed(next_step(forged, tmp_path / "model.audit.report.json").command)[3] == "START"


@pytest.mark.parametrize(
    ("config", "options"), [('{"r": 4}', ["--lora-rank", "4", "--save-adapter"]), ("{", []), (None, [])]
)
def test_an_adapter_is_named_by_its_folder_and_with_its_base(
    config: str | None, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("adapter", "base model"):
        (tmp_path / folder).mkdir()
    if config is not None:
        (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    files = {
        "model": "adapter/adapter_model.safetensors", "companion": "adapter/adapter_config.json",
        "base-config.json": "base model/config.json", "members": "members.jsonl", "nonmembers": "nonmembers.jsonl",
    }  # fmt: skip
    held = tuple(Artifact(role=role, path=path, digest="blake3:0", bytes=1) for role, path in files.items())
    report_path = tmp_path / "adapter.audit.report.json"
    leaky = replace(report(fused(), subject=MEMBERSHIP), inputs=held, parameters={"task": "causal-lm"})
    assert parsed(next_step(leaky, report_path).command) == [
        "privctl", "retrain", "dp-sgd", "base model", *options, "--data", "members.jsonl", "--epsilon", "8",
        "-o", "adapter.dp-sgd",
    ]  # fmt: skip
    again = parsed(next_step(replace(membership(0.0, 60), inputs=held), report_path).command)
    assert again[1:5] == ["audit", "adapter", "--base", "base model"]


def test_an_audit_of_groups_is_repeated_with_groups(tmp_path: Path) -> None:
    small = replace(membership(0.0, 60), inputs=inputs("members", "nonmembers"))
    of_groups = replace(small, parameters={**small.parameters, "group_by": "who", "least_auc": 0.55})
    step = next_step(of_groups, tmp_path / "model.audit.report.json")
    words = parsed(step.command)
    assert words[words.index("--group-by") + 1] == "who"
    assert "groups of members and" in step.advice
    assert "--group-by" not in parsed(next_step(small, tmp_path / "model.audit.report.json").command)


@pytest.mark.parametrize(("had", "advised"), [(2.0, "1"), (1e8, "8")])
def test_the_budget_that_left_a_leak_is_not_advised_again(
    had: float, advised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bound = replace(trained().guarantees[0], epsilon=had)
    write_report(tmp_path / "model.report.json", replace(report(), step="retrain", guarantees=(bound,)))
    parent = ParentReport(path="model.report.json", digest=file_digest(tmp_path / "model.report.json"))
    leaky = replace(extraction(55, 0), inputs=inputs("members"), parents=(parent,))
    step = next_step(leaky, tmp_path / "model.audit.report.json")
    words = parsed(step.command)
    assert (words[words.index("--epsilon") + 1], "with a smaller epsilon" in step.advice) == (advised, True)


def test_an_audit_that_was_too_small_says_how_many_records_would_do(tmp_path: Path) -> None:
    small = replace(membership(0.0, 60), inputs=inputs("members", "nonmembers"), parameters={"least_auc": 0.55})
    step = next_step(small, tmp_path / "a.report.json")
    (count, again), item = (int(word) for word in step.advice.split() if word.isdigit()), small.evidence[0]
    assert count == again
    assert item.details["detectable"] > 0.6
    assert detectable_auc(count, count, 1 - Settings(confidence=0.998).confidence) == pytest.approx(0.55, abs=0.004)
    assert "MORE-MEMBERS.jsonl" in parsed(step.command)


def test_confounded_files_have_no_cure_but_a_split_before_the_next_training(tmp_path: Path) -> None:
    small = replace(membership(0.0, 60), inputs=inputs("members", "nonmembers"), parameters={"task": "causal-lm"})
    confounded = replace(small, verdicts=(replace(small.verdicts[0], reason="confounded: the records differ"),))
    step = next_step(confounded, tmp_path / "a.report.json")
    assert "before the next training" in step.advice
    assert not step.command


def test_a_drawn_split_is_drawn_again_with_more_records(tmp_path: Path) -> None:
    """Records cannot be added to one: its members are trained on."""
    roles = inputs("members", "nonmembers", "split")
    small = replace(membership(0.0, 60), inputs=roles, parameters={"least_auc": 0.55})
    step = next_step(small, tmp_path / "a.report.json")
    (count,) = (int(word) for word in step.advice.split() if word.isdigit())
    assert detectable_auc(count // 2, count // 2, 1 - Settings(confidence=0.998).confidence) < 0.56
    assert step.command.split()[1:] == ["audit", "split", "DATA.jsonl", "--records", str(count), "-o", "split-2"]
    unknown = next_step(replace(small, parameters={}), tmp_path / "a.report.json")
    assert "a split of more records" in unknown.advice
    other = replace(small.verdicts[0], reason="the model's report names other training data than members.jsonl")
    step = next_step(replace(small, verdicts=(other,)), tmp_path / "a.report.json")
    assert (step.advice, step.command) == ("audit the model that was trained on the members of this split", "")


def test_the_held_out_side_is_the_next_option(tmp_path: Path) -> None:
    lengths = {"extraction": {"prefix_tokens": 3, "suffix_tokens": 50}}
    found = replace(extraction(31, None), inputs=inputs("members", "nonmembers", "train"), parameters=lengths)
    (tmp_path / "a-2.report.json").touch()
    words = parsed(next_step(found, tmp_path / "a.report.json").command)
    assert words[words.index("--held-out") + 1] == str(tmp_path / "nonmembers.jsonl")
    assert words[-4:] == ["--prefix-tokens", "3", "-o", str(tmp_path / "a-3.report.json")]


def test_nothing_found_goes_on_to_extraction_then_to_the_gate(tmp_path: Path) -> None:
    both = {"inputs": inputs("members", "nonmembers"), "parameters": {"task": "causal-lm"}}
    silent = replace(membership(0.0, 4000), **both)  # type: ignore[arg-type]
    words = parsed(next_step(silent, tmp_path / "a.report.json").command)
    assert words[words.index("--train") + 1] == str(tmp_path / "members.jsonl")
    tried = Verdict(subject=EXTRACTION, outcome=Outcome.CONSISTENT, reason="none came out")
    done = replace(silent, verdicts=(*silent.verdicts, tried))
    assert parsed(next_step(done, tmp_path / "a.report.json").command) == ["privctl", "gate", str(tmp_path / "model")]


def test_a_path_never_reads_as_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd = tuple(replace(item, path="--debug") if item.role == "members" else item for item in inputs("members"))
    step = next_step(replace(extraction(55, 0), inputs=odd), tmp_path / "a.report.json")
    assert parsed(step.command)[5] == "./--debug"


def test_where_users_were_protected_they_are_judged_together(tmp_path: Path) -> None:
    """Unless they were; a split of records has to be drawn again, by users; and fields have the names they had."""
    training = replace(report(), step="retrain", parameters={"unit": "who"})
    write_report(tmp_path / "model.report.json", training)
    parent = ParentReport(path="model.report.json", digest=file_digest(tmp_path / "model.report.json"))
    report_path, asked = tmp_path / "model.audit.report.json", {"text_column": "body", "label_column": "kind"}
    small = replace(membership(0.0, 60), inputs=inputs("members", "nonmembers"), parents=(parent,))
    records = replace(small, parameters={"asked": asked})
    words = parsed(next_step(records, report_path).command)
    assert words[words.index("--group-by") :][:6] == [
        "--group-by", "who", "--text-column", "body", "--label-column", "kind",
    ]  # fmt: skip
    drawn = next_step(replace(records, inputs=inputs("members", "nonmembers", "split")), report_path).command.split()
    assert drawn[1:3] == ["audit", "split"]
    assert drawn[drawn.index("--group-by") :][:4] == ["--group-by", "who", "--text-column", "body"]
    assert "--label-column" not in drawn
    users = next_step(replace(records, parameters={"asked": asked, "group_by": "who", "least_auc": 0.55}), report_path)
    assert "groups of members" in users.advice
    leaky = replace(extraction(55, 0), inputs=inputs("members"), parents=(parent,), parameters={"asked": asked})
    again = parsed(next_step(leaky, report_path).command)
    assert again[again.index("--unit") + 1] == "who"
    assert again[again.index("--text-column") + 1] == "body"
