"""Words of arrays in memory, and loops over groups of ``LANES`` elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from privctl.machine_code import building
from privctl.machine_code.building import integer, load
from privctl.randomness.compiled.lanes import INT, LANES, Lanes

if TYPE_CHECKING:
    from llvmlite import ir


def words(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> Lanes:
    """Load ``LANES`` int32 words of ``array`` from index ``place`` on."""
    return Lanes(builder, load(builder, array, place, INT))


def broadcast(builder: ir.IRBuilder, number: ir.Value) -> Lanes:
    """A vector with ``number`` in all lanes."""
    return Lanes(builder, building.broadcast(builder, number, LANES))


def loop(builder: ir.IRBuilder, groups: ir.Value, body: Callable[[ir.Value], None]) -> None:
    """Emit a loop that runs ``body`` with the first index of each of ``groups`` groups of ``LANES`` elements."""

    def with_nothing_carried(index: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        body(index)
        return ()

    building.loop(builder, integer(0), builder.mul(groups, integer(LANES)), LANES, with_nothing_carried)
