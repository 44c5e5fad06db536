"""The program for norms from Gram matrices, for LLVM: see ``gram_code``.

A Gram matrix is computed in tiles of a few rows by fewer columns, from the first column to the diagonal. The lanes
of a register hold partial sums of one entry, so rows are read as they are stored, without packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llvmlite import ir

from privctl.machine_code.building import (
    DOUBLE,
    FLOAT,
    INT,
    POINTER,
    WorkFunction,
    at,
    broadcast,
    integer,
    internal,
    load,
    loop,
    multiply_add,
    prefetching,
    shuffled,
    store,
    vector,
    zeros,
)

#: Numbers that describe a tensor in the table that ``squares`` reads.
ENTRIES = 4
#: Lanes of the parts of a register that shuffles are fast within.
_SEGMENT = 4
#: Results for each example and layer.
RESULTS = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """The ``lanes`` of a register, and the rows and columns of a tile: their accumulators fill most registers.

    ``rows`` are a multiple of ``columns``, so that tiles end at the diagonal, and these divide ``lanes``.
    """

    lanes: int
    rows: int
    columns: int


#: One accumulator an entry: 16 of 32 registers of AVX-512, 12 of 16 of AVX2, SSE and NEON.
AVX512, AVX2, OTHER = Tile(16, 4, 4), Tile(8, 6, 2), Tile(4, 6, 2)


class GramFields(NamedTuple):
    """The part of the array of work after its header.

    ``table`` describes the layers' input a (n, T, d) and then each layer's output gradients g (n, T, p), by
    ``ENTRIES`` integers each: the address, the distance of two examples and of two positions in float32 numbers, and d
    or p, a multiple of the lanes. ``results`` has ``RESULTS`` float64 numbers for each example and layer.

    ``rows`` is ``positions`` rounded up to whole tiles. ``width``, the distance of two rows of a Gram matrix, is a
    multiple of the lanes and at least ``rows``.
    """

    table: int
    layers: int
    positions: int
    rows: int
    width: int
    results: int

    @property
    def scratch_numbers(self) -> int:
        """The float32 numbers of two Gram matrices."""
        return 2 * self.rows * self.width


def assembly(tile: Tile) -> str:
    """LLVM IR of ``squares``, a ``building.WorkFunction``.

    The results for an example and a layer are the squared norm of sum_t g_t a_t^T, and the sums over t of |a_t| |g_t|,
    |a_t| and |g_t|.
    """
    module = ir.Module("gram")
    gram, combine = _gram(module, tile), _combine(module, tile)
    work = WorkFunction(module, "squares", GramFields._fields)
    builder, scratch = work.builder, work.scratch
    layers, positions, rows, width = work.numbers("layers", "positions", "rows", "width")
    table, results = work.addresses("table", "results")
    second = at(builder, scratch, builder.mul(rows, width), FLOAT)

    def gram_of(tensor: ir.Value, example: ir.Value, out: ir.Value) -> None:
        start = builder.mul(tensor, integer(ENTRIES))
        address, of_examples, of_positions, size = (
            builder.load(at(builder, table, builder.add(start, integer(entry)), INT), typ=INT)
            for entry in range(ENTRIES)
        )
        numbers = at(builder, builder.inttoptr(address, POINTER), builder.mul(example, of_examples), FLOAT)
        builder.call(gram, [numbers, positions, size, of_positions, width, out])

    def of_example(example: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        gram_of(integer(0), example, scratch)

        def of_layer(layer: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            gram_of(builder.add(layer, integer(1)), example, second)
            place = builder.mul(builder.add(builder.mul(example, layers), layer), integer(RESULTS))
            builder.call(combine, [scratch, second, positions, width, at(builder, results, place, DOUBLE)])
            return ()

        loop(builder, integer(0), layers, 1, of_layer)
        return ()

    loop(builder, work.first, work.last, 1, of_example)
    return work.finish()


def _gram(module: ir.Module, tile: Tile) -> ir.Function:
    """Define ``gram(values, positions, size, step, width, out)``: the lower triangle.

    Entries above the diagonal, and rows beyond ``positions``, are undefined.
    """
    function = internal(module, "gram", [POINTER, INT, INT, INT, INT, POINTER])
    values, positions, size, step, width, out = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    fused, fetch = multiply_add(module, tile.lanes), prefetching(module)
    last = builder.sub(positions, integer(1))

    def row(index: ir.Value) -> ir.Value:
        """The address of a row; of the last one in place of those beyond it."""
        index = builder.select(builder.icmp_unsigned("<", index, last), index, last)
        return at(builder, values, builder.mul(index, step), FLOAT)

    def of_rows(top: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
        left = [row(builder.add(top, integer(i))) for i in range(tile.rows)]

        def of_tile(start: ir.Value, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            right = [row(builder.add(start, integer(j))) for j in range(tile.columns)]
            # One of the next rows, another in each tile, on its way from memory; beyond the last, of the next example.
            turn = builder.urem(builder.udiv(start, integer(tile.columns)), integer(tile.rows))
            ahead = builder.add(builder.add(top, integer(tile.rows)), turn)
            coming = at(builder, values, builder.mul(ahead, step), FLOAT)

            def products(feature: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
                others = [load(builder, address, feature, vector(tile.lanes)) for address in right]
                ours = [load(builder, address, feature, vector(tile.lanes)) for address in left]
                fetch(builder, at(builder, coming, feature, FLOAT))
                pairs = [(one, other) for one in ours for other in others]
                return [builder.call(fused, [*pair, total]) for pair, total in zip(pairs, sums, strict=True)]

            none = [zeros(tile.lanes)] * (tile.rows * tile.columns)
            partial = loop(builder, integer(0), size, tile.lanes, products, none)
            partial += none[: -len(partial) % tile.lanes]
            entries = [
                _folded(builder, partial[group : group + tile.lanes]) for group in range(0, len(partial), tile.lanes)
            ]
            for i in range(tile.rows):
                lanes = [(i * tile.columns + j) % tile.lanes for j in range(tile.columns)]
                entry = entries[i * tile.columns // tile.lanes]
                place = builder.add(builder.mul(builder.add(top, integer(i)), width), start)
                store(builder, out, place, shuffled(builder, entry, entry, lanes))
            return ()

        loop(builder, integer(0), builder.add(top, integer(tile.rows)), tile.columns, of_tile)
        return ()

    loop(builder, integer(0), positions, tile.rows, of_rows)
    builder.ret_void()
    return function


def _combine(module: ir.Module, tile: Tile) -> ir.Function:
    """Define ``combine(one, other, positions, width, results)`` of two lower triangles; see ``assembly``."""
    function = internal(module, "combine", [POINTER, POINTER, INT, INT, POINTER])
    one, other, positions, width, results = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    doubles = ir.VectorType(DOUBLE, tile.lanes)
    sqrt = ir.Function(module, ir.FunctionType(DOUBLE, [DOUBLE]), "llvm.sqrt.f64")
    fused = multiply_add(module, tile.lanes)

    def of_row(row: ir.Value, totals: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Add the row's part to the sums of products, of those on the diagonal, and of lengths."""
        total, on_diagonal, lengths, of_one, of_other = totals
        start = builder.mul(row, width)

        def products(column: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            place = builder.add(start, column)
            kept = _up_to(builder, row, column, tile.lanes)
            pair = [
                builder.select(kept, load(builder, matrix, place, vector(tile.lanes)), zeros(tile.lanes))
                for matrix in (one, other)
            ]
            return [builder.call(fused, [*pair, sums[0]])]

        (found,) = loop(
            builder, integer(0), builder.add(row, integer(1)), tile.lanes, products,
            [zeros(tile.lanes)],
        )  # fmt: skip
        squares = [
            builder.fpext(builder.load(at(builder, matrix, builder.add(start, row), FLOAT), typ=FLOAT), DOUBLE)
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

    zero = ir.Constant(DOUBLE, 0.0)
    total, on_diagonal, *sums = loop(
        builder, integer(0), positions, 1, of_row, [ir.Constant(doubles, [0.0] * tile.lanes), *[zero] * (RESULTS)]
    )
    below: ir.Value = zero
    for lane in range(tile.lanes):
        below = builder.fadd(below, builder.extract_element(total, ir.Constant(ir.IntType(32), lane)))
    square = builder.fsub(builder.fadd(below, below), on_diagonal)  # the part above the diagonal is the same
    for i, result in enumerate([square, *sums]):
        builder.store(result, at(builder, results, integer(i), DOUBLE))
    builder.ret_void()
    return function


def _folded(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """One vector with the sum of each of ``vectors``, which are as many as they have lanes.

    A processor takes an operation for each of these shuffles: they move numbers within segments, or whole segments.
    """
    lanes = len(vectors)

    def summed(low: Sequence[int], distance: int) -> list[ir.Value]:
        """Of each pair, the ``low`` lanes plus those ``distance`` beyond."""
        high = [lane + distance for lane in low]
        return [
            builder.fadd(shuffled(builder, *pair, low), shuffled(builder, *pair, high))
            for pair in zip(vectors[::2], vectors[1::2], strict=True)
        ]

    starts = range(0, lanes, _SEGMENT)
    vectors = summed([s + source + i for s in starts for i in range(2) for source in (0, lanes)], 2)
    vectors = summed([s + source + i for s in starts for source in (0, lanes) for i in range(2)], 2)
    while len(vectors) > 1:
        even = range(0, 2 * lanes, 2 * _SEGMENT)
        vectors = summed([s + i for s in even for i in range(_SEGMENT)], _SEGMENT)
    return vectors[0]


def _up_to(builder: ir.IRBuilder, row: ir.Value, start: ir.Value, lanes: int) -> ir.Value:
    """Which of the ``lanes`` columns from ``start`` on are not beyond the diagonal in this ``row``."""
    places = ir.Constant(ir.VectorType(INT, lanes), list(range(lanes)))
    return builder.icmp_unsigned("<=", places, broadcast(builder, builder.sub(row, start), lanes))
