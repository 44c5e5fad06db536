"""Parts of programs in LLVM IR: loops, memory, and the share of a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

FLOAT, DOUBLE, INT, POINTER = ir.FloatType(), ir.DoubleType(), ir.IntType(64), ir.PointerType()
#: The first integers of an array of work, which ``threads.run`` writes; see ``WorkFunction``.
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


class WorkFunction:
    """A new function ``(work, first, last, scratch)`` of a module, which works on the examples from first to last.

    ``work`` is the address of an array of integers: the ``HEADER``, then those of ``fields``. Emit what is done by
    ``builder``, then call ``finish``.
    """

    def __init__(self, module: ir.Module, name: str, fields: Sequence[str]) -> None:
        kind = ir.FunctionType(ir.VoidType(), [POINTER, INT, INT, POINTER])
        self._module, self._function, self._names = module, ir.Function(module, kind, name), (*HEADER, *fields)
        self._work, self.first, self.last, self.scratch = self._function.args
        self.builder = ir.IRBuilder(self._function.append_basic_block())

    def number(self, name: str, kind: ir.Type = INT) -> ir.Value:
        """The field ``name``; with another ``kind``, the address or the number that has its bits."""
        return _entry(self.builder, self._work, self._names.index(name), kind)

    def addresses(self, *names: str) -> list[ir.Value]:
        """The fields of these ``names``, as addresses."""
        return [self.number(name, POINTER) for name in names]

    def numbers(self, *names: str) -> list[ir.Value]:
        """The fields of these ``names``."""
        return [self.number(name) for name in names]

    def finish(self) -> str:
        """End the function, define ``share``, which calls it in a thread of a team, and give the LLVM IR."""
        self.builder.ret_void()
        _define_share(self._module, self._function)
        return str(self._module)


def _entry(builder: ir.IRBuilder, work: ir.Value, place: int, kind: ir.Type = INT) -> ir.Value:
    value = builder.load(at(builder, work, integer(place), INT), typ=INT)
    if kind == POINTER:
        return builder.inttoptr(value, POINTER)
    return value if kind == INT else builder.bitcast(value, kind)


def _define_share(module: ir.Module, work_on: ir.Function) -> None:
    """Define ``share(work)``, which calls ``work_on(work, first, last, scratch)`` in a thread of an OpenMP team.

    The examples from ``first`` to before ``last`` are this thread's share, and ``scratch`` is its own.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "share")
    (work,) = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    asked = ir.FunctionType(ir.IntType(32), []).as_pointer()
    number, size, examples, scratch, scratch_numbers = (_entry(builder, work, place) for place in range(len(HEADER)))
    thread, team = (builder.zext(builder.call(builder.inttoptr(each, asked), []), INT) for each in (number, size))
    first, last = (
        builder.udiv(builder.mul(examples, share), team) for share in (thread, builder.add(thread, integer(1)))
    )
    own = at(builder, builder.inttoptr(scratch, POINTER), builder.mul(thread, scratch_numbers), FLOAT)
    builder.call(work_on, [work, first, last, own])
    builder.ret_void()
