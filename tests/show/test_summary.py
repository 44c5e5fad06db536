"""The headline of a model, the same on the page, in Markdown and on the card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, Risk, RiskMeasure, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.strength import Severity
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.html.page import page
from privctl.show.leaks import MEMBERSHIP
from privctl.show.markdown.model_card import _metadata, insert_summary
from privctl.show.markdown.report import markdown
from privctl.show.page_data import JudgedSubject, PageData, ReportSource
from privctl.show.summary import _attacker_sentence, summarize
from privctl.show.text.guarantee import guarantee_text
from tests.show.made import DIGEST, trained

BOUND: Guarantee = trained().guarantees[0]
TAG = b"- differential-privacy"


def model(*guarantees: Guarantee) -> ReportSource:
    report = replace(trained(), guarantees=guarantees)
    return ReportSource(key="r1", name="private", digest=DIGEST, report=report)


def attack(lower: float) -> ReportSource:
    """An audit whose attack certainly has at least this AUC."""
    found = Evidence(method="loss", quantity="AUC", estimate=lower + 0.04, lower=lower, upper=lower + 0.08,
                     details={"chance": 0.5})  # fmt: skip
    verdict = Verdict(subject=MEMBERSHIP, outcome=Outcome.REFUTED, reason="loss AUC")
    report = PrivacyReport(
        step="audit", created="2026-01-02T00:00:00Z", versions={}, evidence=(found,), verdicts=(verdict,)
    )
    return ReportSource(key="r2", name="private.audit", digest=DIGEST, report=report, parents=("r1",))


def data(source: ReportSource, *audits: ReportSource) -> PageData:
    subject = JudgedSubject(source=source, audits=audits)
    return PageData(title="t", version="0", sources=(source, *audits), subjects=(subject,))


@pytest.mark.parametrize(
    ("guarantees", "headline", "severity"),
    [
        ((BOUND,), "ε\u00a0≤\u00a02 at δ\u00a0=\u00a010⁻⁵", Severity.FAIR),
        ((replace(BOUND, status=Status.VOID),), "No guarantee", Severity.VOID),
        ((replace(BOUND, status=Status.CLAIMED),), "No guarantee", Severity.WEAK),
        ((replace(BOUND, epsilon=1e8, risks=()),), "No useful guarantee", Severity.BAD),
        ((), "No guarantee", Severity.NONE),
    ],
)
def test_the_headline_is_what_is_left_of_a_guarantee(
    guarantees: tuple[Guarantee, ...], headline: str, severity: Severity
) -> None:
    page_data = data(model(*guarantees))
    summary = summarize(page_data.subjects[0])
    assert (summary.headline, summary.severity) == (headline, severity)
    assert f'<span class="figure">{headline}</span>' in page(page_data)
    assert f'<article class="card verdict {severity}">' in page(page_data)
    plain = headline.replace("\u00a0", " ")
    assert f"**{plain}" in markdown(page_data)
    card = insert_summary(None, page_data, "README.md")
    assert f"**{plain}".encode() in card
    assert (TAG in card) == (severity is Severity.FAIR)


def test_a_model_that_leaks_is_not_to_be_released_whatever_its_guarantee() -> None:
    leaking = data(model(BOUND), attack(0.7))
    assert summarize(leaking.subjects[0]).headline == "Do not release"
    assert summarize(leaking.subjects[0]).severity is Severity.BAD
    assert '<span class="figure">Do not release</span>' in page(leaking)
    assert "ε\u00a0≤\u00a02" in page(leaking), "what is guaranteed stands beside it"
    assert b"**Do not release**" in insert_summary(None, leaking, "README.md")
    assert TAG not in insert_summary(None, leaking, "README.md")


def test_a_leak_within_its_margin_does_not_headline() -> None:
    slight = summarize(data(model(BOUND), attack(0.52)).subjects[0])
    assert slight.headline == summarize(data(model(BOUND)).subjects[0]).headline
    assert slight.severity is Severity.BAD, "a hypothesis was rejected all the same"


def test_the_tag_goes_where_the_guarantee_goes() -> None:
    """As the one function of severity has it, for the card as for the page."""
    sound, leaking = data(model(BOUND)), data(model(BOUND), attack(0.7))
    card = insert_summary(None, sound, "README.md")
    assert TAG in card
    assert TAG not in insert_summary(card, leaking, "README.md")


@pytest.mark.parametrize("name", ["own loop", "reported ledger"])
def test_a_guarantee_of_another_program_s_loop_gets_no_tag(name: str) -> None:
    """As a gate does not count it unless its policy says so."""
    loop = Assumption(name=name, statement="it did as it says", state=AssumptionState.ASSERTED)
    card = insert_summary(None, data(model(replace(BOUND, assumptions=(*BOUND.assumptions, loop)))), "README.md")
    assert TAG not in card
    assert b"at \xce\xb4 = 10" in card, "it is shown all the same"


def test_the_terminal_colours_a_bound_by_what_it_rules_out() -> None:
    proved = replace(BOUND, status=Status.PROVED)
    assert "\x1b[32mproved" in guarantee_text(proved, named=False, verbose=False)
    assert "\x1b[31mproved" in guarantee_text(replace(proved, epsilon=1e8, risks=()), named=False, verbose=False)


def test_a_page_says_in_words_what_a_bound_leaves_and_never_less() -> None:
    risk = Risk(measure=RiskMeasure.ADVANTAGE, bound=0.5705)
    assert "at most 78.6 % accuracy" in _attacker_sentence(replace(BOUND, risks=(risk,)))  # 78.525, rounded up
    assert _attacker_sentence(replace(BOUND, risks=())) == ""


@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        ("all records with one value of 'who' are one example", "all records with one value of 'who'"),
        (
            "all records with one value of 'who', of which 3 at most are used, are one example",
            "all records with one value of 'who', of which 3 at most are used",
        ),
        ("each record is one example; who is in several records is protected in each, not in all together", ""),
    ],
)
def test_who_is_protected_stands_beside_the_bound(statement: str, meaning: str) -> None:
    """A board that reads of one patient must not take it for one record, nor the reverse."""
    unit = Assumption(name="unit of privacy", statement=statement, state=AssumptionState.ENFORCED)
    risks = (Risk(measure=RiskMeasure.ADVANTAGE, bound=0.242),)
    guarantee = replace(BOUND, assumptions=(unit,), risks=risks)
    whose = f"one example ({meaning})," if meaning else "one example,"
    terminal = " ".join(guarantee_text(guarantee, named=False, verbose=False).split())
    assert f"protects {whose} neighbours by" in terminal
    whose_use = "a user's records were" if meaning else "a record was"
    assert f"whether {whose_use} used is right 62.1 %" in terminal
    assert whose in " ".join(markdown(data(model(guarantee))).split())
    card = "\n".join(_metadata([summarize(data(model(guarantee)).subjects[0])]))
    assert f'unit: "{f"example ({meaning})" if meaning else "example"}"' in card
    sentence = f"one given example ({meaning}) was used" if meaning else "one given example was used"
    assert f"with at most 62.1 % accuracy whether {sentence}" in _attacker_sentence(guarantee)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "Conditional: it follows if the stated assumptions hold."),
        (1, "it follows if this assumption holds, which nothing enforces: the loss is of kind 0."),
        (3, "if these 3 assumptions hold, which nothing enforces: the loss is of kind 0; the loss is of kind 1; the"),
        (9, "the loss is of kind 5; and 3 more, listed with the guarantee."),
    ],
)
def test_a_conditional_guarantee_names_what_it_rests_on(count: int, said: str) -> None:
    asserted = tuple(
        Assumption(name=f"a{i}", statement=f"the loss is of kind {i}", state=AssumptionState.ASSERTED)
        for i in range(count)
    )
    sentence = summarize(data(model(replace(BOUND, assumptions=asserted))).subjects[0]).guarantee
    assert said in sentence
    assert "of kind 6" not in sentence


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            Outcome.PROVED,
            "Verified: the one check of the report and its files passed, and the privacy guarantee (epsilon 2 at delta "
            "1e-05) holds for the run that the report describes, if the assumptions that nobody checked are true. "
            "Verdicts: 2 proved.",
        ),
        (
            Outcome.REFUTED,
            "Do not rely on this report: the privacy guarantee (epsilon 2 at delta 1e-05) is wrong. Verdicts: 1 "
            "refuted, 1 proved.",
        ),
    ],
)
def test_the_verification_is_concluded_in_one_sentence(outcome: Outcome, sentence: str) -> None:
    source = model(BOUND)
    verdicts = (
        Verdict(subject="model.safetensors", outcome=Outcome.PROVED, reason="as recorded"),
        Verdict(subject="dp-sgd", outcome=outcome, reason="r", status=BOUND.status),
    )
    report = PrivacyReport(step="verify", created="2026-01-02T00:00:00Z", versions={}, verdicts=verdicts)
    check = ReportSource(key="r2", name="verify", digest=DIGEST, report=report, parents=("r1",))
    subject = JudgedSubject(source=source, checks=(check,))
    page_data = PageData(title="t", version="0", sources=(source, check), subjects=(subject,))
    assert summarize(subject).verified == sentence
    assert f"<dt>Verification</dt><dd>{sentence}</dd>" in page(page_data)
    assert f"- Verification: {sentence}" in markdown(page_data)


def test_a_void_guarantee_says_nothing_of_what_an_attacker_achieves() -> None:
    risks = (Risk(measure=RiskMeasure.ADVANTAGE, bound=0.242),)
    stands, void = (replace(BOUND, status=status, risks=risks) for status in (Status.PROVED, Status.VOID))
    texts = [guarantee_text(each, named=False, verbose=True) for each in (stands, void)]
    assert ["0.242" in text for text in texts] == [True, False]
    assert "What that leaves an attacker: unknown" in texts[1]
