"""Whether the texts that carry a guarantee's meaning are listed in ``verify.texts`` and agree with the report.

A text that is not listed may mean anything, so a guarantee that rests on one does not pass. Other programs may write
other texts; privctl writes only these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.events import Ledger
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport
from privctl.domain.version import VERSION
from privctl.reports.parameters import ContributionTest
from verify.events import row_of
from verify.methods.expected import EXTERNAL, StatedTraining
from verify.stated import method_of, noise_source_of, training_of
from verify.texts import notes
from verify.texts.accountants import ACCOUNTANTS
from verify.texts.assumptions import STATEMENTS, TESTED

#: The fractions of the clip norm that clipping leaves for rounding, in float32 and in half precision.
_MARGINS = (2.0**-10, 2.0**-4)


def unknown_texts(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Yields one sentence for each text of the guarantee that is not listed or disagrees with the report."""
    method = method_of(report)
    method_accountants = {} if method is None else method.accountants
    wanted = next(
        (
            notion
            for name, notion in {**method_accountants, **ACCOUNTANTS}.items()
            if re.fullmatch(name, guarantee.name)
        ),
        None,
    )
    if wanted is None:
        yield f"privctl states no guarantee named {guarantee.name!r}, so what it bounds is unknown"
    elif not re.fullmatch(wanted, guarantee.accountant):
        yield f"its accountant is called {guarantee.accountant!r}, which is not whose bound it is"
    for assumption in guarantee.assumptions:
        of_method = () if method is None else method.statements.get(assumption.name, ())
        known = (*STATEMENTS.get(assumption.name, ()), *of_method, *_event_patterns(report, assumption.name))
        if not known:
            yield f"it rests on an assumption {assumption.name!r} that is not known here"
        elif not any(re.fullmatch(pattern, assumption.statement, re.DOTALL) for pattern in known):
            yield f"its assumption {assumption.name!r} says {assumption.statement!r}, which is not that assumption"
    if not notes.known(guarantee.note):
        yield f"its note says {guarantee.note!r}, which privctl does not write, so it may mean anything"
    elif report.versions.get("privctl") == VERSION and (missing := notes.missing(report, guarantee)):
        yield f"its note does not say, as it must here, {missing!r}"
    if report.step == "account":
        yield from _without_contribution_limit(report, guarantee)
    yield from _disagreeing_statements(report, {a.name: a.statement for a in guarantee.assumptions})


def _without_contribution_limit(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Yields a sentence for each kind of event in a plan without an assumption on what one example may change."""
    stated = [assumption.statement for assumption in guarantee.assumptions if assumption.name == "contribution"]
    events = report.mechanism.events if isinstance(report.mechanism, Ledger) else ()
    for kind, event in {type(event): event for event in events}.items():
        known = row_of(event).statements.get("contribution", STATEMENTS["contribution"])
        if stated and not any(re.fullmatch(pattern, statement) for pattern in known for statement in stated):
            yield f"no assumption 'contribution' of it says what one example may change in {kind.tag} events"


def _event_patterns(report: PrivacyReport, name: str) -> Iterator[str]:
    """The patterns that the ledger's kinds of events allow for the statement of the assumption ``name``."""
    for event in report.mechanism.events if isinstance(report.mechanism, Ledger) else ():
        for pattern in row_of(event).statements.get(name, ()):
            yield f"{pattern}{TESTED}" if name == "contribution" else pattern


def _disagreeing_statements(report: PrivacyReport, names: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each assumption whose statement disagrees with the rest of the report."""
    source = noise_source_of(report)
    if "secret noise" in names and names["secret noise"] != f"nobody can foretell the noise: {source}":
        yield f"its assumption 'secret noise' speaks of another source than {source!r}"
    if report.step == "retrain" and "contribution" in names:
        _, _, stated = names["contribution"].partition("; ")
        if stated != (tested := _tested(training_of(report).contribution_test)):
            yield f"its assumption 'contribution' says {stated!r} of the test, but the report records {tested!r}"
    if "rounding of sums" in names and report.step == EXTERNAL:
        yield from _margin_mismatch(names["rounding of sums"], _MARGINS)
    elif "rounding of sums" in names:
        yield from _rounding_mismatch(training_of(report), names["rounding of sums"])
    if "step-size" in names:
        rate = getattr(getattr(report.mechanism, "training", None), "learning_rate", None)
        if f"the learning rate {rate} is" not in names["step-size"]:
            yield f"its assumption 'step-size' speaks of another learning rate than {rate}"


def _rounding_mismatch(parameters: StatedTraining, statement: str) -> Iterator[str]:
    """Compares the figures and the margin in the assumption on rounding with the recorded test and with clipping.

    Older runs in bfloat16 used the float32 margin, so both are accepted there.
    """
    yield from _margin_mismatch(statement, _MARGINS if parameters.bf16 else _MARGINS[:1])
    _, separator, figures = statement.partition(": ")
    if not separator:
        return
    test, size, examples = parameters.contribution_test, parameters.batch_size or 0.0, parameters.examples or 0
    largest = max(test.differences.values(), default=math.inf) if test is not None else math.inf
    most = (math.ceil(size), math.ceil(size + 6 * math.sqrt(size) + 20))
    expected = [f"{min(n, examples)} records at most, which differ by {largest:.2g} of their size" for n in most]
    if figures not in expected:
        yield f"its assumption 'rounding of sums' says {figures!r}, but what is recorded gives {expected[-1]!r}"


def _margin_mismatch(statement: str, margins: Sequence[float]) -> Iterator[str]:
    """Yields a sentence if the assumption on rounding states none of the ``margins`` that clipping may leave."""
    if not any(f" no more than the {margin:g} of " in statement for margin in margins):
        stated = f"states a margin that clipping does not leave, which is {margins[-1]:g}"
        yield f"its assumption 'rounding of sums' {stated}"


def _tested(test: ContributionTest | None) -> str:
    """The sentence on the recorded contribution test that the report must state; its numbers are checked elsewhere."""
    if test is None:
        return "whether its gradient is its own was not tested"
    beginning = "tested on made-up records before the first step: "
    if not test.allowed:
        return f"{beginning}no batch leaves anything behind for another"
    return (
        f"{beginning}loss and gradient were the same alone and in batches of up to {test.records} records and "
        f"{test.tokens} padded tokens, within rounding of "
        + ", ".join(f"{share:g} of its size in {name}" for name, share in test.allowed.items())
        + ("" if test.padded_to is None else f", every text being padded to {test.padded_to} tokens")
    )
