"""Proves from autograd's graph that the rows of every tensor stay those of their examples, in the examples' order.

A tensor's rows, its entries along the first dimension, are in n blocks of equal size, one for each example. The proof
knows operations that compute a block of their output from the same block of each input, whatever is in it, by their
names and dimensions; every other operation, and one that moves rows, leaves the question open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
#: Whether an operation, given its graph node and the shapes of its inputs and outputs, computes blocks from blocks.
_Rule = Callable[[Any, Sequence[Shape], Sequence[Shape]], bool]

_LEAF = "AccumulateGrad"
_WORD = 1 << 64  # a negative dimension is stored as an unsigned number


def keeps_blocks(losses: Tensor) -> bool:
    """Whether each row of every tensor that ``losses`` (n,) were computed from is proved to affect its own loss only.

    Rows are those of the examples in blocks, (n k, ...). False means that no proof was found.
    """
    count, seen, waiting = len(losses), set(), [losses.grad_fn]
    shapes: dict[Any, list[Shape]] = {}  # torch takes up to 150 microseconds to give those of one node
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        read = [(each, number) for each, number in node.next_functions if each is not None]
        read = [(each, number) for each, number in read if not each.name().endswith(_LEAF)]
        try:
            for each in (node, *(each for each, _ in read)):
                if each not in shapes:
                    shapes[each] = _output_shapes(each)
            if not _keeps(node, [shapes[each][number] for each, number in read], shapes[node], count):
                return False
        except (AttributeError, IndexError, TypeError):  # another version of torch may name things otherwise
            return False
        waiting += [each for each, _ in read]
    return True


def operations(losses: Tensor) -> int:
    """A number that tells graphs of other operations apart, whatever the sizes of their tensors."""
    names, seen, waiting = [], set(), [losses.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node not in seen:
            seen.add(node)
            names.append((node.name(), len(node.next_functions)))
            waiting += [each for each, _ in node.next_functions if each is not None]
    return hash(tuple(names))


def _output_shapes(node: Any) -> list[Shape]:
    return [tuple(each.shape) for each in node._input_metadata]


def _keeps(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape], count: int) -> bool:
    """Whether this operation keeps blocks; ``inputs`` are the shapes of those inputs that depend on the batch."""
    # A convolution's tap has an output without entries, which orders backward passes.
    inputs, outputs = ([shape for shape in shapes if shape != (0,)] for shapes in (inputs, outputs))
    if not all(shape and shape[0] % count == 0 for shape in (*outputs, *inputs)):
        return False
    name = node.name().rstrip("0123456789").removesuffix("Backward")
    if name in _VIEWS:
        return True
    rule = _RULES.get(name)
    return rule is not None and len({s[0] for s in (*outputs, *inputs)}) == 1 and rule(node, inputs, outputs)


def _by_entry(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    # Tensors of fewer dimensions are aligned at the last, not at the first.
    return len({len(shape) for shape in (*inputs, *outputs)}) == 1


def _by_row(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return True


def _along(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return 0 not in _dimensions(node._saved_dim, len(inputs[0]))


def _stacked(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return 0 not in _dimensions(node._saved_dim, len(outputs[0]))


def _transposed(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return 0 not in _dimensions((node._saved_dim0, node._saved_dim1), len(inputs[0]))


def _permuted(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return _dimensions(node._saved_dims[:1], len(inputs[0])) == [0]


def _batched(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return all(len(shape) > 2 for shape in inputs)


def _normalized(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return _of_first(node, inputs, outputs) and len(node._saved_normalized_shape) < len(inputs[0])


def _by_statistics(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return _of_first(node, inputs, outputs) and not node._saved_training


def _of_first(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    """Whether only the first input depends on the batch; for products with weights, it has the rows."""
    return not any(each for each, _ in node.next_functions[1:])


def _of_second(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    return not any(each for place, (each, _) in enumerate(node.next_functions) if place != 1)


def _indexed(node: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> bool:
    """Whether the first dimension is indexed with all rows in their order, as where one position of each is taken."""
    first: Tensor | None = node._saved_indices[0]
    return first is not None and first.dtype is not torch.bool and first.tolist() == list(range(outputs[0][0]))


def _dimensions(given: Any, count: int) -> list[int]:
    """The dimensions ``given``, of a tensor with ``count``, counted from the first."""
    each = given if isinstance(given, Sequence) else (given,)
    return [(d - _WORD if d >= _WORD // 2 else d) % count for d in each]


#: Operations that read entries in the same order.
_VIEWS = frozenset(("ReshapeAlias", "Squeeze", "UnsafeView", "Unsqueeze", "View"))
_NAMES: Mapping[_Rule, str] = {
    _by_entry: "Abs Add Alias Clamp ClampMax ClampMin Clone Cos Div Elu Erf Exp Expm1 Expand Gelu Hardsigmoid Hardswish"
    " Hardtanh LeakyRelu Lerp Log Log1P LogSigmoid MaskedFill Maximum Minimum Mish Mul NativeDropout Neg Pow Reciprocal"
    " Relu Repeat Rsqrt Rsub Selu Sigmoid Silu Sin Softplus Sqrt Sub Tanh Tap Threshold ToCopy Where"
    " BinaryCrossEntropy BinaryCrossEntropyWithLogits HuberLoss MseLoss SmoothL1Loss",
    _by_row: "AdaptiveAvgPool2D AvgPool2D ConstantPadNd MaxPool2DWithIndices NllLoss NllLoss2D ParameterCopies"
    " UpsampleBilinear2D UpsampleNearest1D UpsampleNearest2D _ConvolutionTap",
    _along: "Amax Amin Cat Cumsum Gather Glu IndexSelect LinalgVectorNorm LogSoftmax Logsumexp Max Mean Min SafeSoftmax"
    " Select Slice Softmax Split SplitWithSizes Std Sum Unbind Var",
    _stacked: "Stack",
    _transposed: "Transpose",
    _permuted: "Permute",
    _batched: "Bmm Baddbmm ScaledDotProductCudnnAttention ScaledDotProductEfficientAttention"
    " ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu",
    _of_first: "Convolution Mm NativeGroupNorm",
    _of_second: "Addmm",
    _normalized: "FusedRmsNorm NativeLayerNorm",
    _by_statistics: "CudnnBatchNorm NativeBatchNorm",
    _indexed: "Index",
}
_RULES: Mapping[str, _Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
