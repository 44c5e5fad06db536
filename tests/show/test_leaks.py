"""Which findings are called a leak: those whose interval lies beyond chance by the margin, and that are the model's."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from statistics import NormalDist

import numpy as np
import pytest

import audits.canaries.verdict
import audits.extraction.verdict
import audits.membership.baseline
import audits.membership.verdict
import audits.secrets.verdict
from audits.extraction.summary import METHOD as EXTRACTION_METHOD
from audits.membership.attack import Settings, auc_evidence
from audits.statistics.metrics import clopper_pearson
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.show import leaks as judged
from privctl.show.decision import conclusion
from privctl.show.html.page import page
from privctl.show.leaks import _least_mean, exit_sentence, found_leaks, leaks
from privctl.show.markdown.report import markdown, plain
from privctl.show.page_data import JudgedSubject, PageData, ReportSource
from privctl.show.text.audit import _estimate, _findings, _row, audit_text

RNG = np.random.default_rng(7)


def report(*evidence: Evidence, subject: str = "", outcome: Outcome = Outcome.REFUTED, **more: object) -> PrivacyReport:
    verdicts = (Verdict(subject=subject, outcome=outcome, reason="as found"),) if subject else ()
    fields: dict[str, object] = {"verdicts": verdicts, "evidence": evidence, **more}
    return PrivacyReport(step="audit", created="2026-01-01T00:00:00Z", versions={"privctl": "0.1.0"}, **fields)  # type: ignore[arg-type]


def measured(shift: float, count: int = 400, method: str = "loss") -> Evidence:
    """The AUC of normal scores, as an audit states it."""
    member = np.arange(2 * count) < count
    scores = RNG.standard_normal(2 * count) + shift * member
    return auc_evidence(method, scores, member, Settings(confidence=0.998, seed=0))


def share(method: str, quantity: str, found: int, count: int, chance: float | None = 0.0, **more: float) -> Evidence:
    lower, upper = clopper_pearson(found, count, 0.005)
    details = {} if chance is None else {"chance": chance}
    return Evidence(
        method=method, quantity=quantity, estimate=found / count, lower=lower, upper=upper,
        samples={"canaries": count, "secrets": count}, details={**details, **more},
    )  # fmt: skip


def exposure(mean: float, count: int, *, control: bool = False) -> tuple[Evidence, Evidence]:
    """The two leak tests; ``control`` where canaries that were left out stand out as well."""
    details = {"p_value": 1e-5, "level": 0.005, "effective": float(count), "without_memorization": 1 / np.log(2)}
    tests = (("included", 1.0), ("left out (control)", float(control)))
    first, second = (
        Evidence(
            method="canary exposure", quantity=f"mean bits, {name}", estimate=mean, bound=Bound.NONE,
            samples={"canaries": count}, details={**details, "detected": detected},
        )
        for name, detected in tests
    )  # fmt: skip
    return first, second


def test_subjects_and_methods_are_those_of_the_audits() -> None:
    assert judged.MEMBERSHIP == audits.membership.verdict.SUBJECT
    assert judged.EXTRACTION == audits.extraction.verdict.SUBJECT
    assert judged.CANARIES == audits.canaries.verdict.TRACELESS
    assert judged.SECRETS == audits.secrets.verdict.TRACELESS
    baseline = audits.membership.baseline
    assert judged.WITHOUT_MODEL == (baseline.BLIND, baseline.LENGTH, baseline.CONTROL)
    assert EXTRACTION_METHOD == "extraction"


def test_a_mean_exposure_is_at_least_what_is_said() -> None:
    """Some canaries have 12 bits, so that the mean is at the margin. It may be called larger at the level alone.

    With the standard deviation that exposures have without memorization, it was called larger 9 times in 100.
    """
    chance, level, count, sets = 1 / np.log(2), 0.00625, 100, 2000
    share_leaked = judged.EXPOSURE_MARGIN / (12 - chance)
    source = np.random.default_rng(7)
    bits = np.minimum(source.exponential(chance, (sets, count)), 12)
    bits[source.random((sets, count)) < share_leaked] = 12

    def called(deviations: np.ndarray) -> int:
        total = 0
        for mean, deviation in zip(bits.mean(axis=1).tolist(), deviations.tolist(), strict=True):
            item, control = exposure(mean, count)
            details = {**item.details, "level": level, "deviation": deviation}
            total += bool(leaks(report(replace(item, details=details), control, subject=judged.CANARIES)))
        return total

    assert called(bits.std(axis=1, ddof=1)) <= 24  # of 12.5 on average; more have a probability of 0.001
    assert called(np.full(sets, chance)) > 100


@pytest.mark.parametrize(
    ("share", "count"), [(0.5, 2), (0.8, 5), (0.9, 10), (0.8, 20), (0.9, 20), (0.95, 50), (0.1, 100), (0.0, 1)]
)
def test_the_least_mean_exposure_seldom_lies_above_the_mean(share: float, count: int) -> None:
    """At a level of 0.00625, at most 39 of 2000 limits err, though few canaries may all reach 12 bits by chance.

    A limit by their deviation alone errs more often for most of these; a limit near the mean errs in half of the cases.
    """
    chance, sets, critical = 1 / np.log(2), 2000, NormalDist().inv_cdf(1 - 0.00625)
    source = np.random.default_rng(11)
    bits = np.minimum(source.exponential(chance, (sets, count)), 12)
    bits[source.random((sets, count)) < share] = 12
    mean = 12 * share + (1 - share) * chance * (1 - 2.0**-12)
    deviations = bits.std(axis=1, ddof=1) if count > 1 else np.zeros(sets)

    def errors(critical: float) -> int:
        limits = [
            _least_mean(m, max(chance, deviation), count, critical)
            for m, deviation in zip(bits.mean(axis=1).tolist(), deviations.tolist(), strict=True)
        ]
        return int((np.array(limits) > mean).sum())

    assert errors(critical) <= 39
    if count > 20:
        assert errors(0.0) > 500


def test_few_canaries_at_the_highest_exposure_do_not_show_that_all_are() -> None:
    item, control = exposure(12.0, 5)
    assert item.estimate is not None
    (found,) = leaks(report(item, control, subject=judged.CANARIES))
    assert "mean exposure of 12 bits (at least 4." in found
    item, control = exposure(12.0, 2000)
    (found,) = leaks(report(item, control, subject=judged.CANARIES))
    assert "mean exposure of 12 bits (at least 11.9;" in found


def test_an_auc_far_from_chance_is_a_leak() -> None:
    item = measured(3.3)
    assert item.estimate is not None
    assert item.estimate > 0.98
    (found,) = leaks(report(item, measured(0.5, method="zlib"), subject=judged.MEMBERSHIP))
    assert found == (
        f"the attack loss tells members from non-members, AUC {item.estimate:.3g} ({item.lower:.3g} to "
        f"{item.upper:.3g}; chance 0.5)"
    )


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (measured(0.10, count=20_000), "certain, but an AUC of 0.53 is within the margin"),
        (replace(measured(3.3), lower=0.54), "a high estimate whose interval reaches down to the margin"),
        (replace(measured(3.3), lower=None, upper=None), "no interval"),
        (measured(3.3, method="blind baseline"), "it does without the model"),
        (share("loss", "TPR at 1 % FPR", 8, 400, chance=0.03), "a rate within the margin"),
    ],
)
def test_what_is_not_beyond_the_margin_is_no_leak(item: Evidence, why: str) -> None:
    assert not leaks(report(item, subject=judged.MEMBERSHIP)), why


def test_a_high_rate_at_few_false_positives_is_a_leak() -> None:
    (found,) = leaks(report(share("lira", "TPR at 1 % FPR", 90, 400, chance=0.03), subject=judged.MEMBERSHIP))
    assert "lira" in found


def test_records_that_differ_without_the_model_are_no_leak() -> None:
    attack, blind = measured(3.3), measured(3.0, method="blind baseline")
    confounded = report(attack, blind, subject=judged.MEMBERSHIP, outcome=Outcome.INCONCLUSIVE)
    assert not leaks(confounded)
    assert not leaks(report(attack, blind, subject=judged.MEMBERSHIP)), "no better than the looks of the records"
    assert leaks(report(attack, measured(0.5, method="blind baseline"), subject=judged.MEMBERSHIP))


@pytest.mark.parametrize(("included", "left_out", "leak"), [(9, 0, True), (1, 0, True), (0, 0, False), (9, 1, False)])
@pytest.mark.parametrize("outcome", [Outcome.REFUTED, Outcome.INCONCLUSIVE])
def test_canaries_written_word_for_word(included: int, left_out: int, leak: bool, outcome: Outcome) -> None:
    disclosed = share("canary completion", "disclosed, included, 8 copies", included, 20, disclosed=included)
    control = share("canary completion", "disclosed, left out", left_out, 20, disclosed=left_out)
    found = leaks(report(*exposure(1.5, 20), disclosed, control, subject=judged.CANARIES, outcome=outcome))
    assert bool(found) is leak
    if leak:
        assert found[0].startswith(f"canary completion extracts {included} of 20 canaries with 8 copies word for word")


def test_canaries_without_a_sound_comparison_are_no_leak() -> None:
    disclosed = share("canary completion", "disclosed, included, 8 copies", 20, 20, disclosed=20)
    assert not leaks(report(*exposure(9, 20, control=True), disclosed, subject=judged.CANARIES))
    broken = {"canary_conditions": [{"name": "commitment", "statement": "changed", "state": "violated"}]}
    assert not leaks(report(*exposure(9, 20), disclosed, subject=judged.CANARIES, parameters=broken))
    assert leaks(report(*exposure(9, 20), disclosed, subject=judged.CANARIES))


@pytest.mark.parametrize(("mean", "count", "leak"), [(9.0, 20, True), (1.6, 5000, False), (3.0, 2, False)])
def test_exposure_counts_beyond_its_scatter_and_the_margin(mean: float, count: int, leak: bool) -> None:
    assert bool(leaks(report(*exposure(mean, count), subject=judged.CANARIES))) is leak


@pytest.mark.parametrize(("lower", "leak"), [(0.8, True), (-0.01, False)])
def test_text_beyond_what_is_written_of_held_out_text(lower: float, leak: bool) -> None:
    rate = share("extraction", "rate on training text", 48, 50, None, extracted=48, texts=50)
    beyond = Evidence(
        method="extraction", quantity="rate beyond held-out text", estimate=0.9, lower=lower, upper=0.99,
        details={"chance": 0.0},
    )  # fmt: skip
    found = leaks(report(rate, beyond, subject=judged.EXTRACTION))
    assert bool(found) is leak
    assert not leaks(report(rate, subject=judged.EXTRACTION, outcome=Outcome.INCONCLUSIVE)), "nothing to compare with"
    if leak:
        assert "48 of 50 training texts word for word" in found[0]


@pytest.mark.parametrize(
    ("control", "leak"),
    [(None, True), ("told first, trained, before training", False), ("told first, never drawn (control)", False)],
)
def test_secrets_told_first(control: str | None, leak: bool) -> None:
    trained = share("secret reconstruction", "told first, trained", 45, 50, 0.01, told=45)
    others = [] if control is None else [share("secret reconstruction", control, 44, 50, 0.01, told=44)]
    found = leaks(report(trained, *others, subject=judged.SECRETS))
    assert bool(found) is leak
    if leak:
        assert found[0].startswith("secret reconstruction ranks 45 of 50 training secrets first")
    assert not leaks(report(trained, subject=judged.SECRETS, outcome=Outcome.INCONCLUSIVE)), "no control"


def bounded(lower: float) -> Evidence:
    return Evidence(
        method="two arms", quantity="epsilon lower bound at delta 1e-05", estimate=lower, lower=lower,
        bound=Bound.LOWER, details={"delta": 1e-5},
    )  # fmt: skip


def test_a_certified_epsilon_without_a_claim() -> None:
    (found,) = leaks(report(bounded(4.2)))
    assert found == "epsilon is at least 4.2 at delta 1e-05, with 95 % confidence (two arms)"
    assert not leaks(report(bounded(0.4)))
    assert not leaks(report(replace(bounded(4.2), details={"copies": 8.0}))), "of groups of eight"
    assert not leaks(report(bounded(4.2), subject="(8, 1e-05)-DP, as claimed", outcome=Outcome.CONSISTENT))


def test_the_exit_code_is_explained_after_the_verdicts() -> None:
    found = report(measured(3.3), subject=judged.MEMBERSHIP)
    _, verdicts, after, *_ = audit_text(found).split("\n\n")
    explanation = "The exit code is 0 nevertheless, because no claim of privacy was refuted. REJECTED is the"
    assert explanation in " ".join(verdicts.split())
    assert explanation not in " ".join(after.split())
    claim = Verdict(subject="(1, 1e-05)-DP, as claimed", outcome=Outcome.REFUTED, reason="epsilon is at least 3")
    refuted = replace(found, verdicts=(*found.verdicts, claim))
    assert exit_sentence(refuted).startswith("The exit code is 1 because a claim of privacy was refuted")
    silent = report(measured(0.0), subject=judged.MEMBERSHIP, outcome=Outcome.CONSISTENT)
    assert exit_sentence(silent) == ""
    assert "exit code" not in audit_text(silent)
    assert exit_sentence(report(bounded(4.2))) == f"{judged.EXITS_WITH_0}."


def test_pages_tell_it_too() -> None:
    def page_data(found: PrivacyReport) -> PageData:
        source = ReportSource(key="a", name="m", digest="blake3:0", report=replace(found, step="retrain", verdicts=()))
        audit = ReportSource(key="b", name="m.audit", digest="blake3:1", report=found, parents=("a",))
        subject = JudgedSubject(source=source, audits=(audit,))
        return PageData(title="m", version="0.1.0", sources=(source, audit), subjects=(subject,))

    leaky = page_data(report(measured(3.3), subject=judged.MEMBERSHIP))
    silent = page_data(report(measured(0.0), subject=judged.MEMBERSHIP, outcome=Outcome.CONSISTENT))
    explanation = f"{judged.EXITS_WITH_0}."
    assert "- Leak: The attack loss tells members from non-members, AUC 0.9" in markdown(leaky)
    assert exit_sentence(leaky.sources[1].report).startswith(explanation), "the command says it in the same words"
    for data in (leaky, silent):
        found = conclusion(data.sources[1].report)
        assert found.decision in audit_text(data.sources[1].report).splitlines()[0]
        assert f"- Attacks: {plain(found.sentence)}" in markdown(data)
        assert f"<dd>{found.sentence}</dd>" in unescape(page(data))
    assert explanation not in markdown(leaky), "an exit code means nothing to the reader of a page"
    assert ">Leak</dt>" in page(leaky)
    assert explanation not in page(leaky)
    assert "Leak" not in markdown(silent)
    assert ">Leak</dt>" not in page(silent)


def test_a_report_that_lacks_details_is_shown_all_the_same() -> None:
    for subject in (judged.MEMBERSHIP, judged.EXTRACTION, judged.CANARIES, judged.SECRETS):
        names = ("AUC", "rate on training text", "rate beyond held-out text", "mean bits, included",
                 "mean bits, left out (control)", "disclosed, included, 1 copy", "told first, trained")  # fmt: skip
        methods = ("loss", "extraction", "canary exposure", "canary completion", "secret reconstruction")
        bare = [Evidence(method=m, quantity=q, estimate=0.9, lower=0.8, upper=0.95) for m in methods for q in names]
        assert all(leak.words for leak in found_leaks(report(*bare, subject=subject)))


def test_scores_that_are_all_the_same_show_no_interval_and_no_reach() -> None:
    """As of images of one size: a baseline by length that says nothing is not in the short table."""
    member = np.arange(400) % 2 == 0
    same = auc_evidence("length baseline", np.full(400, 7), member, Settings())
    assert (same.estimate, same.lower, same.upper) == (0.5, 0.0, 1.0)
    assert "detectable" not in same.details, "more such records would show nothing either"
    earlier = replace(same, details={**same.details, "detectable": 0.58})  # as reports of before have it
    tied = auc_evidence("loss", np.arange(400) % 9, member, Settings())
    assert tied.details["detectable"] < 0.65
    for item in (same, earlier):
        text = audit_text(report(item, tied), verbose=True)
        rows = {line[:15].strip(): line.split()[-3:] for line in text.splitlines()}
        assert rows["length baseline"] == ["0.50", "0.5", "-"]
        assert rows["loss"][-1] == f"{tied.details['detectable']:.3g}"
        assert "length baseline" not in audit_text(report(item, tied))
    differing = auc_evidence("length baseline", np.arange(400) % 7, member, Settings())
    printed = " ".join(audit_text(report(differing, tied)).split())
    assert "length baseline: an attack that sees only the length of a record" in printed
    assert "chance: what guessing gives;" in printed
    rate = share("lira", "TPR at 1 % FPR", 30, 100, 0.056)
    printed = " ".join(audit_text(report(rate, tied)).split())
    assert "chance: what guessing gives; for a TPR an upper bound, as the true" in printed


def test_a_rejected_hypothesis_is_not_said_to_be_a_claim() -> None:
    found = report(measured(3.3), subject=judged.MEMBERSHIP)
    text = " ".join(audit_text(found).split())
    assert f'REJECTED\x1b[0m: "{judged.MEMBERSHIP}"' in text
    assert "REFUTED\x1b" not in text
    assert "REJECTED is the verdict on a hypothesis that every audit tests; a gate judges it" in text
    claim = replace(found, verdicts=tuple(replace(v, subject="(1, 1e-05)-DP, as claimed") for v in found.verdicts))
    text = " ".join(audit_text(claim).split())
    assert 'REFUTED\x1b[0m: "(1, 1e-05)-DP' in text
    assert "REJECTED" not in text


@pytest.mark.parametrize(
    ("estimate", "lower", "upper", "bound", "text"),
    [
        (0.8612, 0.8204, 0.9041, Bound.TWO_SIDED, "0.86 (0.82-0.90)"),
        (0.00123, 0.000304, 0.0042, Bound.TWO_SIDED, "0.0012 (0.0003-0.0042)"),
        (1.2e-7, 1e-7, 2e-7, Bound.TWO_SIDED, "1.2e-07 (1e-07 to 2e-07)"),
        (0.9, 0.3129, None, Bound.LOWER, "0.90 (at least 0.312)"),
        (0.5189, 0.5189, None, Bound.LOWER, "at least 0.518"),
        (-0.2, -0.31, 0.1, Bound.TWO_SIDED, "-0.20 (-0.31 to 0.10)"),
        (12.345, None, None, Bound.NONE, "12.3"),
    ],
)
def test_estimates_are_short(
    estimate: float, lower: float | None, upper: float | None, bound: Bound, text: str
) -> None:
    item = Evidence(method="m", quantity="q", estimate=estimate, lower=lower, upper=upper, bound=bound)
    assert _estimate(item) == text


@pytest.mark.parametrize(
    ("method", "quantity", "details", "shown"),
    [
        ("extraction", "rate beyond held-out text", {"detectable": 0.123}, "0.123"),
        ("extraction", "rate on training text", {"detectable": 0.123}, "-"),
        ("secret protection", "secrets told against the plan", {"detectable": 0.123}, "-"),
        ("one run, Mahloujifar 2024", "mu", {"ceiling": 0.123}, "-"),
        ("one run, Steinke 2023 or Mahloujifar 2024", "epsilon", {"ceiling": 2.5, "detectable": 0.123}, "0.123"),
    ],
)
def test_could_see_is_what_is_detected_four_times_in_five(
    method: str, quantity: str, details: dict[str, float], shown: str
) -> None:
    """And not what is seen at least once at the audit's confidence, nor the largest bound that could be certified."""
    item = Evidence(method=method, quantity=quantity, estimate=0.2, samples={"training": 9}, details=details)
    assert _row(item)[-1] == shown


def test_a_lower_bound_of_0_is_not_said_to_be_no_influence() -> None:
    method = "one run, Steinke 2023 or Mahloujifar 2024"
    item = Evidence(method=method, quantity="epsilon", estimate=0.0, lower=0.0, bound=Bound.LOWER)
    text = " ".join(_findings([item], verbose=True).split())
    assert "epsilon: a lower bound on how much one record influences the model; at least 0 says nothing" in text
    assert "not at all" not in text
