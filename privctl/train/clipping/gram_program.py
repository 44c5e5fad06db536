"""The program for norms from Gram matrices, for LLVM: see ``gram_code``.

A Gram matrix is computed in tiles of a few rows by fewer columns, from the first column to the diagonal. The lanes
of a register hold partial sums of one entry, so rows are read as they are stored, without packing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llvmlite import ir

#: Numbers that describe a tensor in the table that ``squares`` reads.
ENTRIES = 4
#: Results for each example and layer.
RESULTS = 4

_FLOAT, _DOUBLE, _INT, _POINTER = ir.FloatType(), ir.DoubleType(), ir.IntType(64), ir.PointerType()


@dataclass(frozen=True, slots=True)
class Tile:
    """The ``lanes`` of a register, and the rows and columns of a tile: their accumulators fill most registers.

    ``rows`` are a multiple of ``columns``, so that tiles end at the diagonal, and these divide ``lanes``.
    """

    lanes: int
    rows: int
    columns: int

    @property
    def vector(self) -> ir.VectorType:
        """The type of a register of float32 numbers."""
        return ir.VectorType(_FLOAT, self.lanes)


#: One accumulator an entry: 16 of 32 registers of AVX-512, 12 of 16 of AVX2, SSE and NEON.
AVX512, AVX2, OTHER = Tile(16, 4, 4), Tile(8, 6, 2), Tile(4, 6, 2)


def assembly(tile: Tile) -> str:
    """LLVM IR of ``squares(work, first, last, scratch)`` and of ``share(work)``.

    ``work`` is an array of integers, as ``Work`` names them. ``squares`` does the examples from ``first`` to before
    ``last``; ``scratch`` holds ``scratch_size`` float32 numbers, which are zero before the first call. ``share`` does
    the share of the calling thread of an OpenMP team, in its own part of ``scratch``.

    The table describes the layers' input a (n, T, d) and then each layer's output gradients g (n, T, p), by
    ``ENTRIES`` integers each: the address, the distance of two examples and of two positions in float32 numbers, and d
    or p, a multiple of the lanes. For each example and layer, the ``RESULTS`` float64 results are the squared norm of
    sum_t g_t a_t^T, and the sums over t of |a_t| |g_t|, |a_t| and |g_t|.
    """
    module = ir.Module("gram")
    squares = _squares(module, _gram(module, tile), _combine(module, tile))
    _share(module, squares)
    return str(module)


class Work(NamedTuple):
    """What ``assembly`` calls ``work``: addresses and counts.

    ``rows`` is ``positions`` rounded up to whole tiles. ``width``, the distance of two rows of a Gram matrix, is a
    multiple of the lanes and at least ``rows``. The last two are functions of OpenMP.
    """

    table: int
    layers: int
    positions: int
    rows: int
    width: int
    examples: int
    scratch: int
    results: int
    thread_number: int = 0
    team_size: int = 0

    @property
    def scratch_size(self) -> int:
        """The float32 numbers of two Gram matrices."""
        return 2 * self.rows * self.width


def _field(builder: ir.IRBuilder, work: ir.Value, name: str) -> ir.Value:
    return builder.load(_at(builder, work, _int(Work._fields.index(name)), _INT), typ=_INT)


def _squares(module: ir.Module, gram: ir.Function, combine: ir.Function) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER, _INT, _INT, _POINTER]), "squares")
    work, first, last, scratch = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    layers, positions, rows, width = (_field(builder, work, name) for name in ("layers", "positions", "rows", "width"))
    table, results = (builder.inttoptr(_field(builder, work, name), _POINTER) for name in ("table", "results"))
    second = _at(builder, scratch, builder.mul(rows, width), _FLOAT)

    def gram_of(tensor: ir.Value, example: ir.Value, out: ir.Value) -> None:
        start = builder.mul(tensor, _int(ENTRIES))
        address, of_examples, of_positions, size = (
            builder.load(_at(builder, table, builder.add(start, _int(entry)), _INT), typ=_INT)
            for entry in range(ENTRIES)
        )
        numbers = _at(builder, builder.inttoptr(address, _POINTER), builder.mul(example, of_examples), _FLOAT)
        builder.call(gram, [numbers, positions, size, of_positions, width, out])

    def of_example(example: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        gram_of(_int(0), example, scratch)

        def of_layer(layer: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            gram_of(builder.add(layer, _int(1)), example, second)
            place = builder.mul(builder.add(builder.mul(example, layers), layer), _int(RESULTS))
            builder.call(combine, [scratch, second, positions, width, _at(builder, results, place, _DOUBLE)])
            return ()

        _loop(builder, _int(0), layers, 1, of_layer)
        return ()

    _loop(builder, first, last, 1, of_example)
    builder.ret_void()
    return function


def _share(module: ir.Module, squares: ir.Function) -> None:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), "share")
    (work,) = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    asked = ir.FunctionType(ir.IntType(32), [])
    thread, team = (
        builder.zext(_called(builder, _field(builder, work, name), asked), _INT)
        for name in ("thread_number", "team_size")
    )
    examples, rows, width = (_field(builder, work, name) for name in ("examples", "rows", "width"))
    first, last = (builder.udiv(builder.mul(examples, share), team) for share in (thread, builder.add(thread, _int(1))))
    scratch = builder.inttoptr(_field(builder, work, "scratch"), _POINTER)
    own = builder.mul(thread, builder.mul(_int(2), builder.mul(rows, width)))
    builder.call(squares, [work, first, last, _at(builder, scratch, own, _FLOAT)])
    builder.ret_void()


def _called(builder: ir.IRBuilder, address: ir.Value, kind: ir.FunctionType) -> ir.Value:
    return builder.call(builder.inttoptr(address, kind.as_pointer()), [])


def _gram(module: ir.Module, tile: Tile) -> ir.Function:
    """Define ``gram(values, positions, size, step, width, out)``: the lower triangle, with zeros to its right.

    Rows beyond ``positions``, up to whole tiles, are undefined.
    """
    function = _internal(module, "gram", [_POINTER, _INT, _INT, _INT, _INT, _POINTER])
    values, positions, size, step, width, out = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    multiply_add = ir.Function(
        module, ir.FunctionType(tile.vector, [tile.vector] * 3), f"llvm.fmuladd.v{tile.lanes}f32"
    )
    last = builder.sub(positions, _int(1))

    def row(index: ir.Value) -> ir.Value:
        """The address of a row; of the last one in place of those beyond it."""
        index = builder.select(builder.icmp_unsigned("<", index, last), index, last)
        return _at(builder, values, builder.mul(index, step), _FLOAT)

    def of_rows(top: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        left = [row(builder.add(top, _int(i))) for i in range(tile.rows)]

        def of_tile(start: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            right = [row(builder.add(start, _int(j))) for j in range(tile.columns)]

            def products(feature: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
                others = [_load(builder, address, feature, tile) for address in right]
                ours = [_load(builder, address, feature, tile) for address in left]
                pairs = [(one, other) for one in ours for other in others]
                return [builder.call(multiply_add, [*pair, total]) for pair, total in zip(pairs, sums, strict=True)]

            zeros = [ir.Constant(tile.vector, [0.0] * tile.lanes)] * (tile.rows * tile.columns)
            partial = _loop(builder, _int(0), size, tile.lanes, products, zeros)
            partial += zeros[: -len(partial) % tile.lanes]
            entries = [
                _folded(builder, partial[group : group + tile.lanes]) for group in range(0, len(partial), tile.lanes)
            ]
            for i in range(tile.rows):
                lanes = [(i * tile.columns + j) % tile.lanes for j in range(tile.columns)]
                entry = entries[i * tile.columns // tile.lanes]
                own_row = builder.add(top, _int(i))
                found = _below_diagonal(builder, _shuffled(builder, entry, entry, lanes), own_row, start)
                place = builder.add(builder.mul(own_row, width), start)
                builder.store(found, _at(builder, out, place, _FLOAT), align=4)
            return ()

        _loop(builder, _int(0), builder.add(top, _int(tile.rows)), tile.columns, of_tile)
        return ()

    _loop(builder, _int(0), positions, tile.rows, of_rows)
    builder.ret_void()
    return function


def _combine(module: ir.Module, tile: Tile) -> ir.Function:
    """Define ``combine(one, other, positions, width, results)`` of two Gram matrices; see ``assembly``."""
    function = _internal(module, "combine", [_POINTER, _POINTER, _INT, _INT, _POINTER])
    one, other, positions, width, results = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    doubles = ir.VectorType(_DOUBLE, tile.lanes)
    sqrt = ir.Function(module, ir.FunctionType(_DOUBLE, [_DOUBLE]), "llvm.sqrt.f64")
    multiply_add = module.globals[f"llvm.fmuladd.v{tile.lanes}f32"]

    def of_row(row: ir.Value, totals: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Add the row's part to the sums of products, of those on the diagonal, and of lengths."""
        total, on_diagonal, lengths, of_one, of_other = totals
        start = builder.mul(row, width)

        def products(column: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            place = builder.add(start, column)
            pair = [_load(builder, matrix, place, tile) for matrix in (one, other)]
            return [builder.call(multiply_add, [*pair, sums[0]])]

        (found,) = _loop(
            builder, _int(0), builder.add(row, _int(1)), tile.lanes, products,
            [ir.Constant(tile.vector, [0.0] * tile.lanes)],
        )  # fmt: skip
        squares = [
            builder.fpext(builder.load(_at(builder, matrix, builder.add(start, row), _FLOAT), typ=_FLOAT), _DOUBLE)
            for matrix in (one, other)
        ]
        roots = [builder.call(sqrt, [square]) for square in squares]
        return [
            builder.fadd(total, builder.fpext(found, doubles)),
            builder.fadd(on_diagonal, builder.fmul(*squares)),
            builder.fadd(lengths, builder.fmul(*roots)),
            builder.fadd(of_one, roots[0]),
            builder.fadd(of_other, roots[1]),
        ]

    zero = ir.Constant(_DOUBLE, 0.0)
    total, on_diagonal, *sums = _loop(
        builder, _int(0), positions, 1, of_row, [ir.Constant(doubles, [0.0] * tile.lanes), *[zero] * (RESULTS)]
    )
    below: ir.Value = zero
    for lane in range(tile.lanes):
        below = builder.fadd(below, builder.extract_element(total, ir.Constant(ir.IntType(32), lane)))
    square = builder.fsub(builder.fadd(below, below), on_diagonal)  # the part above the diagonal is the same
    for i, result in enumerate([square, *sums]):
        builder.store(result, _at(builder, results, _int(i), _DOUBLE))
    builder.ret_void()
    return function


def _folded(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """One vector with the sum of each of ``vectors``, which are as many as they have lanes."""
    lanes, width = len(vectors), 1
    while len(vectors) > 1:
        even = [
            source + start + i for start in range(0, lanes, 2 * width) for source in (0, lanes) for i in range(width)
        ]
        odd = [lane + width for lane in even]
        vectors = [
            builder.fadd(_shuffled(builder, *pair, even), _shuffled(builder, *pair, odd))
            for pair in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        width *= 2
    return vectors[0]


def _below_diagonal(builder: ir.IRBuilder, entries: ir.Value, row: ir.Value, start: ir.Value) -> ir.Value:
    """The ``entries`` of a ``row``, from column ``start`` on, with zeros above the diagonal."""
    count = entries.type.count
    kept = ir.Constant(ir.VectorType(ir.IntType(1), count), ir.Undefined)
    for i in range(count):
        inside = builder.icmp_unsigned("<=", builder.add(start, _int(i)), row)
        kept = builder.insert_element(kept, inside, ir.Constant(ir.IntType(32), i))
    return builder.select(kept, entries, ir.Constant(entries.type, [0.0] * count))


def _loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
    initial: Sequence[ir.Value] = (),
) -> list[ir.Value]:
    """Emit a loop over indices; ``body`` takes an index and the values carried so far, and gives the next ones."""
    before, check = builder.block, builder.append_basic_block()
    inside, after = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(check)
    builder.position_at_end(check)
    index = builder.phi(_INT)
    index.add_incoming(start, before)
    carried = [builder.phi(value.type) for value in initial]
    for phi, value in zip(carried, initial, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_unsigned("<", index, stop), inside, after)
    builder.position_at_end(inside)
    for phi, value in zip(carried, body(index, carried), strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, _int(step)), builder.block)
    builder.branch(check)
    builder.position_at_end(after)
    return carried


def _internal(module: ir.Module, name: str, arguments: list[ir.Type]) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    return function


def _int(number: int) -> ir.Constant:
    return ir.Constant(_INT, number)


def _at(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.gep(array, [place], source_etype=kind)


def _load(builder: ir.IRBuilder, array: ir.Value, place: ir.Value, tile: Tile) -> ir.Value:
    return builder.load(_at(builder, array, place, _FLOAT), typ=tile.vector, align=4)


def _shuffled(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Sequence[int]) -> ir.Value:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))
