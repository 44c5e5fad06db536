"""Steps that were begun, interrupted and not saved: what they published is spent, and they are not made again."""

from __future__ import annotations

from privctl.domain.errors import NoStepsLeftError
from privctl.domain.progress import Notify
from privctl.domain.shown import counted
from privctl.train.methods.ferret.masks import Masks
from privctl.train.steps.saved_state import SavedState

#: Ranges of steps (from, to).
Spans = tuple[tuple[int, ...], ...]


def newly_lost(start: SavedState) -> Spans:
    """The range of steps that was lost after the state ``start`` was saved, if any."""
    return ((start.updates, start.steps_begun),) if start.steps_begun > start.updates else ()


def after_lost(step: int, lost: Spans) -> int:
    """The first step from ``step`` on that is in none of the ranges ``lost``."""
    for begin, end in lost:
        if begin <= step < end:
            return end
    return step


def require_published_left(masks: Masks, lost: Spans, newly: Spans, notify: Notify) -> None:
    """Say how many steps that publish are in ``newly``, the last of the ranges ``lost``, as they are spent.

    Raises NoStepsLeftError if every step that publishes is lost, as nothing would be trained.
    """
    if not newly:
        return
    active, gone = masks.active_steps, _published(masks, lost)
    if gone == active:
        raise NoStepsLeftError(
            f"all {active} steps of this run that publish were begun and none of them was saved, so none is left to "
            "train with; start again with another --output, and account for what this run may have released"
        )
    begun = counted(_published(masks, newly), "step that publishes was", "steps that publish were")
    notify(
        f"{begun} begun and not saved: the guarantee counts them, and they are not made again, which leaves "
        f"{active - gone} of {active}"
    )


def _published(masks: Masks, spans: Spans) -> int:
    """How many of the steps in ``spans`` publish."""
    return sum(bool(masks.fired(step)) for begin, end in spans for step in range(begin, end))
