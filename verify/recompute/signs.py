"""Published signs (FERRET): the information in nats, and the unavoidable delta."""

from __future__ import annotations

from privctl.domain.events import Batches, SignBits
from privctl.domain.guarantee import Adjacency, Guarantee, Notion, RiskMeasure
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import apart
from privctl.domain.verdict import Outcome
from verify.answers import Answer, number
from verify.recompute import mutual_information
from verify.stated import method_of, training_of

_ROUNDING = 1e-9


def sign_bits(report: PrivacyReport, guarantee: Guarantee) -> Answer:
    """Published signs: nats by the chain rule and the risks they allow, or the unavoidable delta."""
    event = report.mechanism if isinstance(report.mechanism, SignBits) else _signs_of(report)
    if event is None:
        return Outcome.INCONCLUSIVE, "the parameters do not say how many signs were published"
    if guarantee.notion is Notion.APPROXIMATE_DP:
        return _unavoidable(event, guarantee)
    nats = mutual_information.nats(event)
    if guarantee.delta != 0 or guarantee.adjacency is not Adjacency.REPLACE_ONE:
        return Outcome.REFUTED, "nats of information have no delta, and are for one example replaced"
    if guarantee.epsilon is None or guarantee.epsilon < nats * (1 - _ROUNDING):
        return Outcome.REFUTED, (
            f"what follows is {nats:.9g} nats: {event.groups} groups x {event.steps} steps x "
            f"rate {event.sample_rate:g} x fire probability {event.fire_probability:g} x ln 2, not "
            f"{number(guarantee.epsilon)}"
        )
    measures = {RiskMeasure.ADVANTAGE: mutual_information.total_variation, RiskMeasure.AUC: mutual_information.auc}
    for risk in guarantee.risks:
        if risk.measure not in measures:
            return Outcome.INCONCLUSIVE, f"no verifier knows the risk {risk.measure} of nats"
        allowed = measures[risk.measure](nats)
        if allowed.lower > risk.bound * (1 + _ROUNDING):
            least, claimed = apart(allowed.lower, risk.bound)
            return Outcome.REFUTED, f"{nats:.6g} nats allow a {risk.measure} of {least}, not {claimed}"
    return Outcome.PROVED, f"{nats:.9g} nats by the chain rule, ln 2 a sign; an average over data, no worst case"


def _signs_of(report: PrivacyReport) -> SignBits | None:
    """The signs that a run with a ledger published; None if its method publishes none."""
    method = method_of(report)
    try:
        return None if method is None else method.signs(training_of(report))
    except ValueError:
        return None


def _unavoidable(event: SignBits, guarantee: Guarantee) -> Answer:
    kind = Batches.SHUFFLED if "shuffled" in guarantee.name else Batches.POISSON
    least = mutual_information.unavoidable_delta(event, kind)
    if guarantee.epsilon is not None:
        return (
            Outcome.REFUTED,
            f"no epsilon holds: a record that decides its batch shows itself with chance {least:.6g}",
        )
    if least > guarantee.delta:
        return Outcome.REFUTED, (
            f"a record that decides its batch's sign shows itself with probability {least:.6g}, above delta "
            f"{guarantee.delta:g}"
        )
    return Outcome.CONSISTENT, f"nothing refutes it: a record shows itself with probability {least:.6g} at most"
