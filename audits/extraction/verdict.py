"""The verdict on extraction from comparisons of training text with held-out text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from audits.extraction import opened
from audits.extraction.alike import not_confirmed
from audits.extraction.compare import accuses
from audits.extraction.grid import GRID
from audits.extraction.near import NEAR
from audits.extraction.prompts import CONTROL, DIVERGENCE, FROM_FILE
from audits.extraction.reach import LEAST_RATE
from audits.extraction.summary import BEYOND, METHOD, NEAR_BEYOND, near_quantity
from audits.statistics.two_rates import fisher
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome, Verdict

SUBJECT = "training text cannot be extracted"
#: The detail that a comparison has if there was a reference model, and the p-value at which that model is suspected to
#: have been trained on the training text.
KNOWN, UNLIKELY = "known_training", 0.05
#: Attacks with prompts other than a record's own beginning, and how a verdict names their prompts.
SEARCHES = {
    opened.METHOD: "after optimized prefixes",
    FROM_FILE: "after prompts from a file",
    DIVERGENCE: "after prompts that repeat a word",
    CONTROL: "after their control, prompts of different words,",
}


def verdict(evidence: Sequence[Evidence], *, drawn: bool = False, group_by: str | None = None) -> Verdict:
    """Compare the rate on training text with that on held-out text; inconclusive without held-out text.

    ``drawn`` says that privctl drew the sides, so that similar texts need no separate check; with ``group_by``, groups
    are counted.
    """
    evidence_by_quantity = {item.quantity: item for item in evidence if item.method == METHOD}
    rate = evidence_by_quantity["rate on training text"]
    summary = f"{rate.details['extracted']:.0f} of {rate.details['texts']:.0f} training texts come out word for word"
    beyond, near = evidence_by_quantity.get(BEYOND), evidence_by_quantity.get(NEAR_BEYOND)
    if beyond is None or (beyond.estimate is None and KNOWN not in beyond.details):
        close = evidence_by_quantity.get(near_quantity("training", NEAR[-1]))
        if close is not None and close.details["extracted"] > rate.details["extracted"]:
            summary += f", {close.details['extracted']:.0f} within an edit distance of {NEAR[-1]:g}"
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.INCONCLUSIVE,
            reason=f"{summary}; give --held-out to tell recalled text from text anyone would write",
        )
    summary += _compared(beyond, near, group_by)
    doubted = not_confirmed(evidence)
    searched, found = _searched(evidence, doubted)
    summary += searched
    accusing = [item for item in (beyond, near) if item is not None and accuses(item)]
    by_coins = "; privctl drew the sides by coins, so the two files do not differ by themselves" if drawn else ""
    if found or any((METHOD, item.quantity) not in doubted for item in accusing):
        return Verdict(subject=SUBJECT, outcome=Outcome.REFUTED, reason=summary + by_coins)
    grid = evidence_by_quantity.get(GRID)
    if grid is not None and grid.details.get("detected") and (METHOD, GRID) not in doubted:
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.REFUTED,
            reason=f"{summary}; by sampling more training texts come out than held-out ones, by up to "
            f"{100 * (grid.estimate or 0):.2g} % of them (p = {grid.details['p_value']:.2g}){by_coins}",
        )
    return _undecided(summary, beyond, near, doubted=bool(doubted), drawn=drawn)


def _compared(beyond: Evidence, near: Evidence | None, group_by: str | None) -> str:
    """How many of the compared texts come out, and what is not compared because it is known from elsewhere."""
    details, text = beyond.details, ""
    ours = f"{details['training_extracted']:.0f} of {details['training_texts']:.0f}"
    if group_by is not None:
        text += f"; of groups with one value of {group_by!r} any text of {ours} does"
    text += f", against {details['held_out_extracted']:.0f} of {details['held_out_texts']:.0f} held-out ones"
    if near is not None and near.details["training_extracted"] > details["training_extracted"]:
        text += (
            f"; within an edit distance of {NEAR[-1]:g} {near.details['training_extracted']:.0f} do, against "
            f"{near.details['held_out_extracted']:.0f}"
        )
    if KNOWN in details:
        text += (
            f"; {details[KNOWN]:.0f} training and {details['known_held_out']:.0f} held-out texts that the reference "
            "model gives too are known from elsewhere and not compared"
        )
        text += "" if group_by is not None else f", and {ours} other training texts come out"
    return text


def _undecided(summary: str, beyond: Evidence, near: Evidence | None, *, doubted: bool, drawn: bool) -> Verdict:
    """The verdict if no difference was found, by whether one would have been detected."""
    unsure = "the difference from held-out text is not certain"
    reach, outcome = beyond.details.get("detectable", 1.0), Outcome.INCONCLUSIVE
    if doubted:
        reason = (
            f"confounded: {summary}; but texts like those that come out stand in the training data alone, so "
            "that the model may know them from elsewhere; give held-out text drawn at random from the same source"
        )
    elif beyond.estimate is None:
        reason = f"{summary}; no texts of both files are left to compare"
    elif beyond.details.get("repeated_extracted"):
        reason = (
            f"{summary}; {unsure}, but {beyond.details['repeated_extracted']:.0f} training texts that repeat "
            "come out too, and none that repeats is compared where held-out text is in the training data; give "
            "held-out text without such"
        )
    elif KNOWN in beyond.details and _more_known(beyond) <= UNLIKELY:
        reason = (
            f"{summary}; {unsure}, but the reference model gives more training text than held-out text: if it was "
            "trained on that too, what this taught is not found"
        )
    elif reach <= LEAST_RATE:
        outcome, reason = (
            Outcome.CONSISTENT,
            f"{summary}; {unsure}, where a share of {100 * reach:.2g} % would have been",
        )
    else:
        seen = (
            f"only a share of {100 * reach:.2g} % or more would be, four times in five"
            if "detectable" in beyond.details
            else "not even one of 100 % would be"
        )
        more = "split more records (privctl audit split)" if drawn else _would_decide(beyond, near)
        reason = f"{summary}; {unsure}, and with so few records {seen}; {more}"
    return Verdict(subject=SUBJECT, outcome=outcome, reason=reason)


def _more_known(beyond: Evidence) -> float:
    """The p-value of the reference model producing more training text than held-out text."""
    (ours, theirs), (texts, others) = (
        [int(beyond.details[name]) for name in names]
        for names in ((KNOWN, "known_held_out"), ("training_texts", "held_out_texts"))
    )
    return fisher(ours, ours + texts, theirs, theirs + others)


def _searched(evidence: Sequence[Evidence], doubted: Collection[tuple[str, str]]) -> tuple[str, bool]:
    """What comes out after other prompts, in words, and whether any search finds significantly more training text.

    The comparisons ``doubted`` do not count.
    """
    text, detected = "", False
    for item in evidence:
        if item.method not in SEARCHES or item.quantity not in (BEYOND, NEAR_BEYOND):
            continue
        found, nearly = bool(item.details.get("detected")), "nearly " if item.quantity == NEAR_BEYOND else ""
        detected |= found and (item.method, item.quantity) not in doubted
        if nearly and not found:
            continue
        details = item.details
        text += (
            f"; {SEARCHES[item.method]} {details['training_extracted']:.0f} of {details['training_texts']:.0f} come "
            f"out {nearly}word for word, against {details['held_out_extracted']:.0f} of {details['held_out_texts']:.0f}"
        ) + (f" (p = {details['p_value']:.2g})" if found else "")
    return text, detected


def _would_decide(*differences: Evidence | None) -> str:
    """How many records to give, by the comparison that needs fewest."""
    given = [item for item in differences if item is not None and "needed" in item.details]
    growing = [item for item in given if (item.estimate or 0) > 0]
    if not growing:
        least = min((item.details["needed"] for item in given), default=None)
        return (
            "more than 100,000 of each file would be needed"
            if least is None
            else f"give {least:,.0f} of each file, of which a share of {100 * LEAST_RATE:g} % would be seen"
        )
    best = min(growing, key=lambda item: item.details["needed"])
    nearly = "nearly " if best.quantity == NEAR_BEYOND else ""
    return (
        f"if {nearly}as many of the others come out, {best.details['needed']:,.0f} of each file decide four times in "
        "five"
    )
