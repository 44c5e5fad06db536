"""Vector loads and stores on arrays in memory, and loops over them."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from privctl.randomness.compiled.lanes import INT, LANES, Lanes


def words(builder: ir.IRBuilder, array: ir.Value, place: ir.Value) -> Lanes:
    """Load ``LANES`` int32 words of ``array`` from index ``place`` on."""
    return Lanes(builder, load(builder, array, place, INT))


def at(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, element: ir.Type) -> ir.Value:
    """The address of element ``place`` of ``array``, whose elements have the type ``element``."""
    return builder.gep(array, [place], source_etype=element)


def load(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Load a vector of type ``kind`` from ``array``, from index ``place`` on."""
    return builder.load(at(builder, array, place, kind.element), typ=kind, align=1)


def store(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, value: ir.Value) -> None:
    """Store the vector ``value`` into ``array``, from index ``place`` on."""
    builder.store(value, at(builder, array, place, value.type.element), align=1)


def broadcast(builder: ir.IRBuilder, number: ir.Value) -> Lanes:
    """A vector with ``number`` in all lanes."""
    empty = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return Lanes(builder, builder.shuffle_vector(one, empty, ir.Constant(INT, [0] * LANES)))


def loop(builder: ir.IRBuilder, groups: ir.Value, body: Callable[[ir.Value], None]) -> None:
    """Emit a loop that runs ``body`` with the first index of each of ``groups`` groups of ``LANES`` elements."""
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
