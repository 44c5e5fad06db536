"""Parts of programs in LLVM IR: loops, memory, and the share of a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

FLOAT, DOUBLE, INT, POINTER = ir.FloatType(), ir.DoubleType(), ir.IntType(64), ir.PointerType()
#: The first integers of an array of work, which ``threads.run`` writes; see ``define_share``.
HEADER = ("thread_number", "team_size", "examples", "scratch", "scratch_numbers")

#: Called with an index and the values carried so far; gives the next values.
Body = Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]


def vector(lanes: int) -> ir.VectorType:
    """The type of a register of float32 numbers."""
    return ir.VectorType(FLOAT, lanes)


def zeros(lanes: int) -> ir.Constant:
    """A register of float32 zeros."""
    return ir.Constant(vector(lanes), [0.0] * lanes)


def integer(number: int) -> ir.Constant:
    """A 64-bit integer."""
    return ir.Constant(INT, number)


def at(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: ir.Type) -> ir.Value:
    """The address of element ``place`` of ``array``, whose elements are of this ``kind``."""
    return builder.gep(array, [place], source_etype=kind)


def load(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Load a vector of type ``kind`` from ``array``, from element ``place`` on."""
    return builder.load(at(builder, array, place, kind.element), typ=kind, align=1)


def store(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, value: ir.Value) -> None:
    """Store the vector ``value`` into ``array``, from element ``place`` on."""
    builder.store(value, at(builder, array, place, value.type.element), align=1)


def shuffled(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """The ``lanes`` of ``one`` followed by ``other``."""
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def broadcast(builder: ir.IRBuilder, number: ir.Value, lanes: int) -> ir.Value:
    """A vector with ``number`` in all ``lanes``."""
    empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return shuffled(builder, one, empty, [0] * lanes)


def sum_of_lanes(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The sum of the lanes of ``value``, halves added first."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        halves = (shuffled(builder, value, value, range(start, start + lanes)) for start in (0, lanes))
        value = builder.fadd(*halves)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


def multiply_add(module: ir.Module, lanes: int) -> ir.Function:
    """The function (x, y, z) -> x y + z of registers, rounded once or twice."""
    kind = vector(lanes)
    name = f"llvm.fmuladd.v{lanes}f32"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)


def prefetching(module: ir.Module) -> Callable[[ir.IRBuilder, ir.Value], None]:
    """What emits a request for the cache line of an address; any address is allowed."""
    flag = ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, *[flag] * 3]), "llvm.prefetch.p0")
    read, keep, data = (ir.Constant(flag, number) for number in (0, 3, 1))

    def emit(builder: ir.IRBuilder, address: ir.Value) -> None:
        builder.call(function, [address, read, keep, data])

    return emit


def internal(module: ir.Module, name: str, arguments: list[ir.Type]) -> ir.Function:
    """A new function without a result that only this module calls."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    return function


def loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    body: Body,
    initial: Sequence[ir.Value] = (),
) -> list[ir.Value]:
    """Emit a loop over indices from ``start`` to before ``stop``; returns the values carried out of it."""
    before, check = builder.block, builder.append_basic_block()
    inside, after = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(check)
    builder.position_at_end(check)
    index = builder.phi(INT)
    index.add_incoming(start, before)
    carried = [builder.phi(value.type) for value in initial]
    for phi, value in zip(carried, initial, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_unsigned("<", index, stop), inside, after)
    builder.position_at_end(inside)
    for phi, value in zip(carried, body(index, carried), strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, integer(step)), builder.block)
    builder.branch(check)
    builder.position_at_end(after)
    return carried


def field(
    builder: ir.IRBuilder, work: ir.Value, name: str, fields: Sequence[str] = (), kind: ir.Type = INT
) -> ir.Value:
    """The integer ``name`` of an array of work, which has the ``HEADER`` and then these ``fields``.

    With another ``kind``, the address or the number that has its bits.
    """
    place = (*HEADER, *fields).index(name)
    value = builder.load(at(builder, work, integer(place), INT), typ=INT)
    if kind == POINTER:
        return builder.inttoptr(value, POINTER)
    return value if kind == INT else builder.bitcast(value, kind)


def define_share(module: ir.Module, work_on: ir.Function) -> None:
    """Define ``share(work)``, which calls ``work_on(work, first, last, scratch)`` in a thread of an OpenMP team.

    The examples from ``first`` to before ``last`` are this thread's share, and ``scratch`` is its own.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "share")
    (work,) = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    asked = ir.FunctionType(ir.IntType(32), []).as_pointer()
    addresses = (field(builder, work, name) for name in ("thread_number", "team_size"))
    thread, team = (builder.zext(builder.call(builder.inttoptr(each, asked), []), INT) for each in addresses)
    examples, scratch_numbers = (field(builder, work, name) for name in ("examples", "scratch_numbers"))
    scratch = field(builder, work, "scratch", kind=POINTER)
    first, last = (
        builder.udiv(builder.mul(examples, share), team) for share in (thread, builder.add(thread, integer(1)))
    )
    own = at(builder, scratch, builder.mul(thread, scratch_numbers), FLOAT)
    builder.call(work_on, [work, first, last, own])
    builder.ret_void()
