"""Compares bounds on the number of records per user: how many records each keeps, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from privctl.accounting.ledger import epsilon_bound
from privctl.data.selection import select
from privctl.data.sharing import Sharing
from privctl.domain.errors import CommandError, InputError
from privctl.domain.shared_records import SharedRecords
from privctl.domain.training_plan import UserBound
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.ledgers import ledger_of
from privctl.train.preparation.reading import texts_at
from privctl.train.settings.request import RetrainRequest

#: The bounds that a dry run compares, up to the first that leaves out nobody's records.
BOUNDS = (2, 4, 8, 16, 32, 64)
_PUBLIC = (
    "how many records each bound on users keeps follows from which users each record names, which the guarantee takes "
    "to be public: choosing the bound by it costs nothing more"
)
_PRIVATE = (
    "how many records each bound on users keeps was counted in the private data, and no guarantee covers a bound that "
    "was chosen by it: choose one by what is known without the data"
)


def compared_bounds(request: RetrainRequest, trained: int) -> tuple[UserBound, ...]:
    """How many records several bounds keep and what they cost, including the requested bound; empty without one.

    Reads the data again. At most ``trained`` parameters are trained.
    """
    requested, rule = request.method.group(request), request.method.shared(request)
    if requested is None:
        return ()
    largest, kept_with = _count_by_rule(request, rule)
    bounds = sorted({*(bound for bound in BOUNDS if bound < 2 * largest), requested})
    return tuple(_price_bound(request, bound, kept_with(bound), trained) for bound in bounds)


def bound_choice_notes(request: RetrainRequest) -> Iterator[str]:
    """A note on whether a bound may be chosen by the counts of ``compared_bounds``."""
    if request.method.group(request) is not None:
        rule = request.method.shared(request)
        yield _PRIVATE if rule is None or not rule.fixes_graph else _PUBLIC


def _count_by_rule(
    request: RetrainRequest, rule: SharedRecords | None
) -> tuple[int, Callable[[int], Mapping[str, int | None]]]:
    """The largest number of records of one user, and a function from a bound to the records that each rule keeps.

    Its first entry is for ``rule``; a rule that refuses the data keeps None.
    """
    records = texts_at(request, request.data.train, request.data.unit, shared=rule is not None)
    if rule is None:
        sizes = Counter(record.unit for record in records)
        return max(sizes.values()), lambda most: {"records": sum(min(size, most) for size in sizes.values())}
    sharing = Sharing.of(record.users for record in records)

    def kept(most: int, by: SharedRecords) -> int | None:
        try:
            return int(select(sharing, most, by).sum())
        except InputError:
            return None

    rules = sorted(SharedRecords, key=lambda shared_rule: shared_rule is not rule)
    return int(sharing.counts().max()), lambda most: {
        str(shared_rule): kept(most, shared_rule) for shared_rule in rules
    }


def _price_bound(request: RetrainRequest, most: int, records: Mapping[str, int | None], trained: int) -> UserBound:
    examples = next(iter(records.values()))
    bounded = replace(request, method=replace(request.method, group=lambda _: most))
    try:
        if examples is None:
            return UserBound(most=most, records=records)
        recipe, delta = recipe_for(bounded, examples, None, trained)
        assert delta is not None
        epsilon = request.budget.epsilon or epsilon_bound(ledger_of(recipe, recipe.steps), delta)
    except (CommandError, ValueError):
        return UserBound(most=most, records=records)
    return UserBound(most=most, records=records, amount=recipe.noise_multiplier, epsilon=epsilon)
