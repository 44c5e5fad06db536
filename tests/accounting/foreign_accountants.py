"""privctl's accountants behind dp_accounting's interface, for dp_accounting's own tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attr
import numpy as np
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation, PrivacyAccountant

from privctl.accounting import renyi
from privctl.accounting.brackets import threshold_bracket
from privctl.accounting.ledger import delta_bound, epsilon_bound
from privctl.domain.errors import InputError
from privctl.domain.events import Event, Ledger, UnprotectedRelease
from privctl.domain.guarantee import Adjacency
from privctl.plan.dp_events import for_neighbours, of_tree

_ADJACENCIES = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: Adjacency.ADD_OR_REMOVE,
    NeighboringRelation.REPLACE_ONE: Adjacency.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL: Adjacency.ZERO_OUT,
}
_REFUSALS = (InputError, ValueError)
#: A delta about which grids are made.
_NEAR = 1e-6


def as_tree(event: Any) -> Any:
    """A DpEvent as ``privctl account --ledger`` reads it."""
    if isinstance(event, dp_event.DpEvent):
        named = {field.name: as_tree(getattr(event, field.name)) for field in attr.fields(type(event))}
        return {"class_name": type(event).__name__} | named
    if isinstance(event, list | tuple):
        return [as_tree(each) for each in event]
    return event.item() if isinstance(event, np.generic) else event


class _Accountant(PrivacyAccountant):  # type: ignore[misc]
    """What ``supports`` and composition get: what ``privctl account`` reads, and what composes."""

    def __init__(self, relation: NeighboringRelation) -> None:
        super().__init__(relation)
        self.events: list[Event] = []

    def read(self, event: dp_event.DpEvent, count: int) -> list[Event]:
        """The events of ``event``, ``count`` times. Raises InputError or ValueError where privctl refuses them."""
        tree = as_tree(dp_event.SelfComposedDpEvent(event, int(count)))
        try:
            events = of_tree(tree, "the tree", "a tree")
        except InputError as error:
            if "holds no event that spends privacy" in str(error):
                return []
            raise
        return list(for_neighbours(events, _ADJACENCIES[self.neighboring_relation], "the tree"))

    def require(self, events: Sequence[Event]) -> None:
        """Raise ValueError where there is no bound on all of ``events`` together."""
        if events:
            _ = Ledger(events=tuple(events)).adjacency

    def compose(self, event: dp_event.DpEvent, count: int = 1) -> Any:
        if count < 1:
            raise ValueError(f"count is {count}")
        return super().compose(event, count)

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        try:
            more = self.read(event, max(count, 1))
            self.require([*self.events, *more])
        except _REFUSALS as error:
            return self.CompositionErrorDetails(invalid_event=self._refused(event), error_message=str(error))
        if do_compose:
            self.events += more
        return None

    def _refused(self, event: dp_event.DpEvent) -> dp_event.DpEvent:
        """The innermost of composed events that is refused by itself."""
        within = event.events if isinstance(event, dp_event.ComposedDpEvent) else []
        for each in [event.event] if isinstance(event, dp_event.SelfComposedDpEvent) else within:
            try:
                self.require(self.read(each, 1))
            except _REFUSALS:
                return self._refused(each)
        return event

    @property
    def tells_all(self) -> bool:
        """Whether something is released without noise."""
        return any(isinstance(event, UnprotectedRelease) for event in self.events)


class LossAccountant(_Accountant):
    """In place of PLDAccountant."""

    def __init__(self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE) -> None:
        super().__init__(neighboring_relation)

    def get_epsilon(self, target_delta: float) -> float:
        if target_delta == 1 or not self.events:
            return math.inf if self.tells_all else 0.0
        return epsilon_bound(Ledger(events=tuple(self.events)), target_delta)

    def get_delta(self, target_epsilon: float) -> float:
        if self.tells_all or not self.events:
            return 1.0 if self.tells_all else 0.0
        return delta_bound(Ledger(events=tuple(self.events)), target_epsilon, near=_NEAR)


class RenyiAccountant(_Accountant):
    """In place of RdpAccountant."""

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> None:
        super().__init__(neighboring_relation)
        self._orders = np.array(renyi.ORDERS if orders is None else orders, dtype=np.float64)

    def require(self, events: Sequence[Event]) -> None:
        super().require(events)
        for event in events:
            renyi.renyi(event, [2.0])

    @property
    def _rdp(self) -> Any:
        return sum((renyi.renyi(event, self._orders) for event in self.events), np.zeros(len(self._orders)))

    def get_epsilon(self, target_delta: float) -> float:
        if self.tells_all or not self.events or target_delta == 1:
            return math.inf if self.tells_all else 0.0
        if target_delta == 0:
            return float(self._rdp[np.isinf(self._orders)].min(initial=math.inf))
        above = self._orders > 1
        return renyi.epsilon_at(self._orders[above], self._rdp[above], target_delta)[0]

    def get_delta(self, target_epsilon: float) -> float:
        """The least delta, to rounding, whose epsilon is ``target_epsilon`` or less."""
        if self.tells_all or not self.events:
            return 1.0 if self.tells_all else 0.0
        log_delta = threshold_bracket(
            lambda log: self.get_epsilon(math.exp(log)) <= target_epsilon, -700.0, -1e-12, within=1e-9
        )[1]
        return math.exp(log_delta)
