"""The notes of guarantees, as a closed list, and which of them a guarantee needs. Standard library only.

Any number in them is accepted: no check rests on it, and what a guarantee promises is in its other fields.
"""

from __future__ import annotations

import re

from privctl.domain.events import SignBits
from privctl.domain.guarantee import Guarantee, Notion, Scope
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport

_NUMBER = r"(?:[\d.e+-]+|inf|nan)"
_FLOATS = (
    "for the floats that are written: epsilon includes what noise in floating point adds; the sensitivity is of real "
    "arithmetic, so how floats round what the noise is added to is not counted"
)
_IN_NATS = (
    f"; the nats are for real arithmetic, and the floats that are written differ from it by a total variation of "
    f"{_NUMBER} at most, which the bounds on an attacker include"
)
_BATCHES = (
    "(?:poisson|shuffled|balls-and-bins|fixed-size|with-replacement|truncated-poisson|cyclic-poisson|fixed-order)"
)
_SECRETS = (
    r"(?:only \d+ of \d+ secrets? (?:stays within its posterior|stay within their posteriors): more steps were begun "
    r"than planned; |the one secret stays within its posterior; |every one of \d+ secrets stays within its "
    r"posterior; )?"
)
#: The name of a secret, as the repr of a string.
_ID = "(?:'.{1,200}'|\".{1,200}\")"
_BY_CURVE = "; the noise was chosen by the trade-off curve, "

_OF_OPACUS = "for noise in real arithmetic: what Opacus adds in floating point, and does not round, is not counted"
_NESTED = "the candidates are nested: together they are worth the least noisy one"
_AS_PUBLISHED = "as published; it does not follow from the paper's assumptions"
_AVERAGE = "an average over the data, not a worst case; from ln 2 = 0.693 nats on it rules nothing out"
_NONE_HOLDS = "no epsilon, however large, holds with a delta below"

#: The notes, as regular expressions for the whole text.
_FORMS = (
    f"(?:{_NESTED}; )?{_FLOATS}",
    _OF_OPACUS,
    # Plans.
    "another program's number, not checked here beyond the columns beside it",
    f"proved for Poisson batches and the removal of a record, not for {_BATCHES} batches",
    "it counts participations on average, and its Gaussian formula is proved for epsilon below 1 each",
    "as printed it lets every participation spend more than the whole budget",
    r"it drops the term k eps' \(e\^eps' - 1\) and counts participations on average",
    "the limit of ever more steps, an estimate that may lie on either side of the truth",
    # Noise by the published formula.
    _AS_PUBLISHED,
    # Secrets.
    "epsilon is the information about the secret, in nats(?:; the noise was chosen by this bound)?",
    "epsilon and delta are for the secret's presence; the posterior is from the whole curve",
    f"for the record that is drawn most often, with probability {_NUMBER} a step",
    rf"for the secret {_ID}, nearest of \d+ to its (?:posterior of {_NUMBER}|budget of {_NUMBER} nats)(?:; every "
    rf"secret stays within its own by this bound or by Fano's inequality|{_BY_CURVE}and this weaker bound alone would "
    f"ask for a noise multiplier of {_NUMBER})?",
    rf"{_SECRETS}nearest to its bound is {_ID}: no guess is right with more than {_NUMBER}, by the whole trade-off "
    f"curve, of a posterior of {_NUMBER}(?:{_IN_NATS})?",
    rf"{_SECRETS}nearest to its bound is {_ID}: it gave away at most {_NUMBER} nats, where {_NUMBER} keep a "
    rf"posterior of {_NUMBER}(?: by Fano's inequality{_BY_CURVE}which is sharper)?(?:{_IN_NATS})?",
    # Training methods.
    f"{_AVERAGE}(?:; at so many, nothing is guaranteed)?(?:{_IN_NATS})?",
    f"{_NONE_HOLDS} {_NUMBER}",
    f"given the masks, which are public: what counts is how many groups fire together, and how often(?:; {_FLOATS})?",
    f"{_FLOATS}; measurements take {_NUMBER} % of epsilon, which without them is {_NUMBER}",
    rf"\d+ measurements counted as sampled Gaussians of noise multiplier 0.5 at rate 1 / \d+; {_NUMBER} with every one "
    rf"of \d+ repetitions counted, and {_NUMBER} with the sensitivity of what is clipped there, a whole vector; the "
    "steps that it trains for a measurement and throws away come on top. Nothing was released that way here",
)


def missing(report: PrivacyReport, guarantee: Guarantee) -> str:
    """What the note of a guarantee must say of what its number does not cover, and does not; "" if nothing."""
    needed = {
        _FLOATS: guarantee.arithmetic is not None,
        _OF_OPACUS: guarantee.name == "opacus",
        _NESTED: guarantee.scope is Scope.ALL_CANDIDATES,
        _AS_PUBLISHED: isinstance(report.mechanism, WeightNoise) and guarantee.name == "published",
        _AVERAGE: guarantee.notion is Notion.MUTUAL_INFORMATION,
        _NONE_HOLDS: isinstance(report.mechanism, SignBits) and guarantee.notion is Notion.APPROXIMATE_DP,
    }
    return next((text for text, called_for in needed.items() if called_for and text not in guarantee.note), "")


def known(note: str) -> bool:
    """Whether the note is empty or one that privctl writes."""
    return not note or any(re.fullmatch(form, note, re.DOTALL) for form in _FORMS)
