"""Arrays of numbers in memory, by vectors, and loops over them."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from privctl.randomness.compiled.lanes import INT, LANES, Lanes


def words(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> Lanes:
    """The words of ``array`` from ``place`` on."""
    return Lanes(builder, load(builder, array, place, INT))


def at(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, element: ir.Type) -> ir.Value:
    """The address of the ``element`` of ``array`` at ``place``."""
    return builder.gep(array, [place], source_etype=element)


def load(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: ir.VectorType) -> ir.Value:
    """The numbers of ``array`` from ``place`` on."""
    return builder.load(at(builder, array, place, kind.element), typ=kind, align=1)


def store(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, value: ir.Value) -> None:
    """Put ``value`` into ``array`` from ``place`` on."""
    builder.store(value, at(builder, array, place, value.type.element), align=1)


def spread(builder: ir.IRBuilder, number: ir.Value) -> Lanes:
    """``number`` in all lanes."""
    empty = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return Lanes(builder, builder.shuffle_vector(one, empty, ir.Constant(INT, [0] * LANES)))


def loop(builder: ir.IRBuilder, groups: ir.Value, body: Callable[[ir.Value], None]) -> None:
    """Call ``body`` with the first place of each group of ``LANES``."""
    start, check = builder.block, builder.append_basic_block()
    inside, after = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(check)
    builder.position_at_end(check)
    group = builder.phi(groups.type)
    group.add_incoming(ir.Constant(groups.type, 0), start)
    builder.cbranch(builder.icmp_unsigned("<", group, groups), inside, after)
    builder.position_at_end(inside)
    body(builder.mul(group, ir.Constant(groups.type, LANES)))
    group.add_incoming(builder.add(group, ir.Constant(groups.type, 1)), builder.block)
    builder.branch(check)
    builder.position_at_end(after)
