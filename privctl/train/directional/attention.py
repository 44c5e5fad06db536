"""Attention with its forward-mode derivative in blocks of queries, without storing all probabilities at once.

Fused kernels have no forward mode. Torch's math implementation has one, but stores the scores, the probabilities and
the derivatives of both, each of size heads times positions squared. With S = s Q K' + M and P = softmax(S), row by row

    O = P V,    dS = s (dQ K' + Q dK') + dM,    dO = (P * dS) V - rowsum(P * dS) O + P dV.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from privctl.train.clipping.terms import CACHED_BYTES, chunk_bytes

_ATTENTION = functional.scaled_dot_product_attention
_ANY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_HALF = (torch.float16, torch.bfloat16)
#: The fewest rows of a block, as smaller matrix products are slow.
_FEWEST_ROWS = 16
#: Bytes of a block on a CPU, and how many tensors of the size of its scores exist at a time.
_CPU_BLOCK, _HELD = 4 * CACHED_BYTES, 3
#: Untyped, as torch's annotations of this module are incomplete.
_AD: Any = forward_ad


@contextmanager
def blockwise_attention() -> Iterator[None]:
    """Inside, at a level of dual numbers, compute attention in blocks, or by any kernel if no input has a derivative.

    Torch's math implementation is used for what the blocks do not support: dropout, tensors that are not
    four-dimensional, and attention that is called by torch's own functions, such as in ``nn.MultiheadAttention``.
    """
    with sdpa_kernel(SDPBackend.MATH), _Blockwise():
        yield


class _Blockwise(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or compute attention in blocks in its place."""
        named = dict(kwargs or {})
        if func is not _ATTENTION:
            return func(*args, **named)
        call = _AttentionCall.of(*args, **named)
        if not any(part.tangent is not None for part in call.parts()):
            with sdpa_kernel(_ANY):
                return func(*args, **named)
        if not call.covered():
            return func(*args, **named)
        with torch.autocast(call.query.value.device.type, enabled=False):
            return _AD.make_dual(*_attention(call))


@dataclass(frozen=True, slots=True)
class _DualTensor:
    """A tensor and its derivative along the direction, or None if it does not depend on that."""

    value: Tensor
    tangent: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> _DualTensor:
        """Unpack ``tensor``, cast to the precision in which autocast computes attention."""
        kind = tensor.device.type
        if tensor.is_floating_point() and torch.is_autocast_enabled(kind):
            tensor = tensor.to(torch.get_autocast_dtype(kind))
        value, tangent = _AD.unpack_dual(tensor)
        return cls(value, tangent)

    def apply(self, change: Any) -> _DualTensor:
        """Apply the linear function ``change`` to both."""
        return _DualTensor(change(self.value), None if self.tangent is None else change(self.tangent))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionCall:
    """The arguments of attention: query (n, heads, L, d), key (n, heads, S, d), value (n, heads, S, e), and options."""

    query: _DualTensor
    key: _DualTensor
    value: _DualTensor
    mask: _DualTensor | None
    dropout: float
    causal: bool
    scale: float
    grouped: bool

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> _AttentionCall:
        """Make a call from the arguments of torch's function."""
        return cls(
            query=_DualTensor.of(query),
            key=_DualTensor.of(key),
            value=_DualTensor.of(value),
            mask=None if attn_mask is None else _DualTensor.of(attn_mask),
            dropout=dropout_p,
            causal=is_causal,
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            grouped=enable_gqa,
        )

    def parts(self) -> Iterator[_DualTensor]:
        """The tensors that may have a derivative."""
        yield from (self.query, self.key, self.value)
        if self.mask is not None:
            yield self.mask

    def covered(self) -> bool:
        """Whether ``_attention`` supports this call."""
        q, k, v = self.query.value, self.key.value, self.value.value
        return (
            self.dropout == 0
            and not (self.causal and self.mask is not None)
            and q.dim() == k.dim() == v.dim() == 4
            and len(q) == len(k) == len(v)
            and k.shape[1] == v.shape[1]
            and (q.shape[1] == k.shape[1] or (self.grouped and q.shape[1] % k.shape[1] == 0))
            and min(q.shape) > 0
        )


def _attention(call: _AttentionCall) -> tuple[Tensor, Tensor]:
    """The output (n, heads, L, e) and its derivative along the direction."""
    query, key, value = call.query.value, call.key.value, call.value.value
    precise = torch.float32 if query.dtype in _HALF else query.dtype
    (n, heads, rows, _), positions, key_heads = query.shape, key.shape[2], key.shape[1]
    mask = None if call.mask is None else call.mask.apply(lambda m: m.expand(n, heads, rows, positions))
    output = query.new_empty(n, heads, rows, value.shape[3])
    output_tangent = torch.empty_like(output)
    examples, block_rows = _block(n, heads, rows, positions, query)
    for first in range(0, n, examples):
        which = slice(first, first + examples)
        keys, values = (part.apply(lambda t, which=which: t[which].to(precise)) for part in (call.key, call.value))
        for start in range(0, rows, block_rows):
            selected = which, slice(None), slice(start, start + block_rows)
            seen = min(start + block_rows, positions) if call.causal else positions
            block = _QueryBlock(
                query=call.query.apply(lambda t, selected=selected: t[selected].to(precise)),
                key=keys.apply(lambda t, seen=seen: t[:, :, :seen]),
                value=values.apply(lambda t, seen=seen: t[:, :, :seen]),
                mask=None if mask is None else mask.apply(lambda t, selected=selected: t[selected]),
                first_row=start if call.causal else None,
                scale=call.scale,
                key_heads=key_heads,
            )
            output[selected], output_tangent[selected] = block.attended()
    return output, output_tangent


def _block(n: int, heads: int, rows: int, positions: int, query: Tensor) -> tuple[int, int]:
    """The number of examples, and of query rows of each, in a block."""
    most = (chunk_bytes(query) if query.is_cuda else _CPU_BLOCK) // _HELD
    row = max(4, query.element_size()) * heads * positions
    return max(1, min(n, most // (row * rows))), min(rows, max(_FEWEST_ROWS, most // row))


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueryBlock:
    """Some query rows of some examples with all keys they attend to.

    ``first_row`` is the index of the first query row if attention is causal, else None.
    """

    query: _DualTensor
    key: _DualTensor
    value: _DualTensor
    mask: _DualTensor | None
    first_row: int | None
    scale: float
    key_heads: int

    def attended(self) -> tuple[Tensor, Tensor]:
        """The output (n, heads, rows, e) and its derivative."""
        n, heads, rows, _ = self.query.value.shape
        # Queries of heads that share a key are rows of one matrix, so keys need not be repeated.
        query = self.query.apply(lambda t: (t * self.scale).reshape(n, self.key_heads, -1, t.shape[3]))
        keys, values = self.key, self.value
        scores = query.value @ keys.value.mT
        probabilities = self._probabilities(scores.view(n, heads, rows, -1)).view_as(scores)
        output = probabilities @ values.value
        output_tangent = torch.zeros_like(output) if values.tangent is None else probabilities @ values.tangent
        tangent = self._score_tangent(query, keys, (n, heads, rows, scores.shape[-1]))
        if tangent is not None:
            tangent = tangent.view_as(probabilities).mul_(probabilities)
            output_tangent += tangent @ values.value
            output_tangent -= tangent.sum(-1, keepdim=True) * output
        return output.view(n, heads, rows, -1), output_tangent.view(n, heads, rows, -1)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """The softmax of the masked ``scores`` (n, heads, rows, seen), which are overwritten; 0 if all are masked."""
        if self.first_row is not None:
            rows, seen = scores.shape[2:]
            later = torch.ones(rows, seen, dtype=torch.bool, device=scores.device).triu_(self.first_row + 1)
            return scores.masked_fill_(later, -math.inf).softmax(-1)
        if self.mask is None:
            return scores.softmax(-1)
        mask = self.mask.value
        if mask.dtype == torch.bool:
            scores.masked_fill_(mask.logical_not(), -math.inf)
        else:
            scores += mask
        nothing = scores.amax(-1, keepdim=True) == -math.inf
        return scores.softmax(-1).masked_fill_(nothing, 0.0)

    def _score_tangent(self, query: _DualTensor, keys: _DualTensor, shape: tuple[int, ...]) -> Tensor | None:
        """The derivative of the scores, with this ``shape``; None if they have none."""
        parts = [
            left @ right.mT
            for left, right in ((query.tangent, keys.value), (query.value, keys.tangent))
            if left is not None and right is not None
        ]
        tangent = parts[0].add_(parts[1]) if len(parts) == 2 else next(iter(parts), None)
        if tangent is not None:
            tangent = tangent.view(shape)
        if self.mask is not None and self.mask.tangent is not None:
            moved = self.mask.tangent.to(query.value.dtype)
            tangent = moved.clone(memory_format=torch.contiguous_format) if tangent is None else tangent.add_(moved)
        return tangent
