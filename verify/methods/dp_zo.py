"""DP-ZO: each step releases a few noisy sums of loss differences, along directions drawn from a public seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from privctl.domain.events import BestOfRuns, Ledger
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from verify.compare import compare
from verify.methods.dp_sgd import (
    OF_SEARCHES,
    SearchedTraining,
    private_run_warns,
    sampled_only,
    search_disagrees,
    search_premises,
    steps_disagree,
)
from verify.methods.expected import ExpectedMethod
from verify.texts.accountants import TIGHT

_CLIPPING = "differences"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZerothOrderTraining(SearchedTraining):
    """A step releases ``directions`` numbers; ``perturbation`` is how far weights move to compare losses."""

    directions: int
    perturbation: float
    public_seed: str


def _disagreements(mechanism: Mechanism | None, parameters: ZerothOrderTraining) -> Iterator[str]:
    yield from compare("parameter clipping", parameters.clipping, _CLIPPING, "this method clips")
    if parameters.bf16:
        yield "parameter bf16 is true, in which differences of losses are mostly rounding"
    if parameters.optimizer != "sgd":
        yield f"parameter optimizer is {parameters.optimizer!r}, and this method moves weights by sgd alone"
    if parameters.directions < 1 or not parameters.perturbation > 0:
        yield "no number of directions, or no perturbation, is above 0"
    runs = 1 if parameters.search is None else parameters.search.most_runs
    wanted = parameters.directions * parameters.steps_begun * runs
    if parameters.released_numbers is not None:
        yield from compare("released_numbers", parameters.released_numbers, wanted, "directions and steps give")
    if not isinstance(mechanism, Ledger):
        return
    if parameters.search is not None or any(isinstance(event, BestOfRuns) for event in mechanism.events):
        yield from search_disagrees(mechanism, parameters)
    elif (events := sampled_only(mechanism)) is not None:
        yield from steps_disagree(events, parameters)
    else:
        yield "the ledger holds events of another kind than the steps that this method makes"


def _premises(parameters: ZerothOrderTraining, _: Guarantee) -> Iterator[str]:
    yield from ("public directions", "lone records")
    yield from search_premises(parameters)


EXPECTED = ExpectedMethod(
    parameters=ZerothOrderTraining,
    mechanisms=(Ledger,),
    disagreements=_disagreements,
    premises=_premises,
    accountants={"dp-zo": TIGHT},
    statements={
        **OF_SEARCHES,
        "public directions": (
            "the random directions do not depend on the data: a public seed makes them, which (was given|the operating "
            "system drew before the first step)",
        ),
        "lone records": (
            "each record goes through the network by itself, so that the losses that are compared, and their "
            "rounding, are of that record and of weights that are released anyway",
        ),
    },
    warned=private_run_warns,
    noised=True,
    clipped=True,
    unbounded=lambda *_: "moves along public directions are bounded by none but their numbers, which are looked at",
)
