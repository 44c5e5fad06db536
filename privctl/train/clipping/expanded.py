"""Parameters that a module reads outside the layers that own them, expanded to one copy for each example.

A state-space layer, for instance, reads the weight of its convolution without calling the convolution. For the time of
such a module's forward pass, each of these parameters is replaced by a tensor of the same shape that holds n copies.
Functions of it alone are mapped over the copies. Where one of them meets activations, the function is mapped over
examples, by ``vmap``, and gives activations again. The backward pass of the batch then has a gradient for each copy:
that of one example. Nothing is run twice.

Activations of the pass are told from other tensors by whether they require a gradient. Their first dimension must be
that of the examples, or of equally many rows for each; if it is not, the comparison with autograd fails.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from privctl.domain.errors import in_one_line
from privctl.parallel import is_out_of_memory
from privctl.train.clipping.rerun import UNRUNNABLE
from privctl.train.clipping.tap import COPIES
from privctl.train.clipping.terms import CHUNK_BYTES
from privctl.train.clipping.use import tensors_in, with_tensors

#: The most bytes of parameters that are expanded for one module: there is a copy of them for each example.
LARGEST_BYTES = CHUNK_BYTES // 4

#: Methods and functions that read no value.
_OF_SHAPE = frozenset(
    (
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.storage_offset, Tensor.is_contiguous),
        *(Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size, Tensor.get_device, Tensor.__len__),
        *(torch.is_floating_point, torch.is_complex, torch.numel),
    )
)
#: Functions that may repeat a tensor for each example.
_REPEATS = frozenset((Tensor.repeat, Tensor.expand))
#: Functions that autocast computes in half precision.
_MULTIPLIES = frozenset(
    (
        *(functional.linear, functional.conv1d, functional.conv2d, functional.conv3d, torch.einsum),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.mv),
        *(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.__matmul__, Tensor.__rmatmul__),
    )
)


class _NotMapped(Exception):
    """A function cannot be mapped over examples; the message says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the code of one module reads its expanded parameters.

    ``refuse`` is told why a function cannot be mapped. That function then gets the parameter itself, and the pass must
    be discarded. ``repeats`` remembers from the batch that is compared with autograd, while ``comparing``, by function
    and number of dimensions, whether the code repeats a tensor for each example: in another batch, any number may equal
    that of its examples.
    """

    refuse: Callable[[str], None]
    repeats: dict[tuple[str, int], bool]
    comparing: bool

    def is_for_each(self, name: str, dimensions: int, times: int, count: int) -> bool:
        """Whether repeating a tensor ``times`` along its first dimension makes one for each of ``count`` examples.

        Raises _NotMapped if the code does so here and not elsewhere, or if no compared batch did either.
        """
        found, use = times == count, (name, dimensions)
        if count > 1 and self.comparing:
            self.repeats.setdefault(use, found)
        if count > 1 and self.repeats.get(use) is not found:
            raise _NotMapped(f"{name} is used for each example and otherwise, or in this batch for the first time")
        return found


class Expanded(Tensor):
    """One of n copies of a parameter, in the eyes of the code that reads it; ``copies`` (n, *shape) holds all."""

    copies: Tensor
    reading: Reading

    @staticmethod
    def __new__(cls, copies: Tensor, reading: Reading) -> Expanded:
        """See the class."""
        of_one: Any = Tensor._make_wrapper_subclass(cls, copies.shape[1:], dtype=copies.dtype, device=copies.device)
        of_one.copies, of_one.reading = copies, reading
        found: Expanded = of_one
        return found

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Map ``func`` over the copies."""
        keywords = dict(kwargs or {})
        if func in _OF_SHAPE or _reads_no_value(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **keywords)
        leaves, form = tree_flatten((args, keywords))
        try:
            return _mapped(func, leaves, form)
        except (_NotMapped, *UNRUNNABLE) as error:
            if is_out_of_memory(error):
                raise
            first = next(leaf for leaf in leaves if isinstance(leaf, Expanded))
            reason = in_one_line(error, 120)
            first.reading.refuse(f"reads a parameter in a way that cannot be followed ({reason})")
            plain = [leaf.copies[0] if isinstance(leaf, Expanded) else leaf for leaf in leaves]
            positional, named = tree_unflatten(plain, form)
            return func(*positional, **named)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse: nothing must read the values of one copy alone."""
        raise RuntimeError("a parameter is read where its copies cannot be followed")


def _reads_no_value(func: Any) -> bool:
    """Whether ``func`` reads an attribute such as ``shape`` or ``dtype``, and not a tensor such as ``mT``."""
    if getattr(func, "__name__", "") != "__get__":
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return not isinstance(func(torch.empty((1, 1), device="meta")), Tensor | types.NoneType)


def _mapped(func: Any, leaves: list[Any], form: Any) -> Any:
    """``func`` mapped over the copies and the rows of each example. Raises _NotMapped, and what ``vmap`` raises."""
    if not torch.is_grad_enabled():
        raise _NotMapped("without gradients")
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        raise _NotMapped(f"{name} changes its argument")
    first = next(leaf for leaf in leaves if isinstance(leaf, Expanded))
    count, reading = len(first.copies), first.reading
    if func in _REPEATS and (repeated := _repeated(func, leaves, count)) is not None:
        return repeated
    activations = [leaf for leaf in leaves if _is_activation(leaf)]
    rows = [_rows_each(each, count) for each in activations]
    if len(set(rows)) > 1:
        raise _NotMapped(f"beside tensors of {', '.join(map(str, rows))} rows for each example")
    by_place = {
        place: leaf.copies if isinstance(leaf, Expanded) else leaf.unflatten(0, (count, -1))
        for place, leaf in enumerate(leaves)
        if _is_activation(leaf) or isinstance(leaf, Expanded)
    }

    def of_one(*own: Tensor) -> Any:
        given = list(leaves)
        for place, value in zip(by_place, own, strict=True):
            given[place] = value
        positional, named = tree_unflatten(given, form)
        return func(*positional, **named)

    found = vmap(of_one)(*(_as_multiplied(func, value) for value in by_place.values()))
    if not activations:
        return tree_map_only(Tensor, lambda each: Expanded(each, reading), found)
    return tree_map_only(Tensor, lambda each: _merged(each, rows[0]), found)


def _repeated(func: Any, leaves: list[Any], count: int) -> Tensor | None:
    """Activations (n d, ...), if ``func`` repeats a tensor (d, ...) for each of ``count`` examples.

    Then the copies are what it would make, but for the order in which memory is read.
    """
    first, *sizes = leaves
    if not isinstance(first, Expanded) or not all(isinstance(size, int) for size in sizes):
        return None
    dimensions = first.dim()
    if not dimensions or len(sizes) != dimensions or (func is Tensor.expand and first.shape[0] != 1):
        return None
    if not first.reading.is_for_each(func.__name__, dimensions, sizes[0], count):
        return None
    own = 1 if func is Tensor.repeat else -1
    copies: Tensor = func(first.copies, own, own, *sizes[1:])
    return copies.flatten(0, 1)


def _as_multiplied(func: Any, values: Tensor) -> Tensor:
    """Cast ``values`` as autocast would for ``func``; autocast itself does nothing inside ``vmap``."""
    device = values.device.type
    if func not in _MULTIPLIES or not torch.is_autocast_enabled(device) or values.dtype != torch.float32:
        return values
    return values.to(torch.get_autocast_dtype(device))


def _is_activation(leaf: object) -> bool:
    """Whether this is a tensor that depends on the batch; a parameter is not the result of any function."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, Expanded) and leaf.grad_fn is not None


def _rows_each(values: Tensor, count: int) -> int:
    """How many of the rows of activations belong to each of ``count`` examples."""
    if values.dim() == 0 or len(values) % count:
        raise _NotMapped(f"beside a tensor of shape {tuple(values.shape)}")
    return len(values) // count


def _merged(values: Tensor, rows: int) -> Tensor:
    """Activations (n r, ...) from (n, r, ...)."""
    if values.dim() < 2 or values.shape[1] != rows:
        raise _NotMapped(f"the result for one example has shape {tuple(values.shape[1:])}")
    return values.flatten(0, 1)


@contextmanager
def expanded(
    module: nn.Module,
    receivers: Mapping[str, Callable[[Tensor], None]],
    count: int,
    anchor: Tensor,
    reading: Reading,
) -> Iterator[None]:
    """Inside, the parameters of ``module`` named in ``receivers`` are expanded for ``count`` examples.

    The backward pass to the ``anchor`` hands the gradients (count, *shape) of each to its receiver. The
    ``reading`` is told how the module uses them. What the module returns must be given to
    ``require_activations``.
    """
    replaced = []
    try:
        for name, receive in receivers.items():
            path, _, local = name.rpartition(".")
            owner: dict[str, Any] = module.get_submodule(path)._parameters
            replaced.append((owner, local, owner[local]))
            owner[local] = Expanded(COPIES(receive, count, anchor, owner[local]), reading)
        yield
    finally:
        for owner, local, parameter in replaced:
            owner[local] = parameter


def has_copies(nest: object) -> bool:
    """Whether there are copies of parameters among the tensors in ``nest``."""
    return any(isinstance(each, Expanded) for each in tensors_in(nest))


def all_copies(nest: Any) -> Any:
    """``nest`` with all n copies, as rows of examples, in place of one."""
    tensors = [t.copies if isinstance(t, Expanded) else t for t in tensors_in(nest)]
    return with_tensors(nest, iter(tensors))


def one_of(copies: Any, like: Any) -> Any:
    """Nested ``copies`` in the eyes of the code that has ``like``: the inverse of ``all_copies``."""
    pairs = zip(tensors_in(copies), tensors_in(like), strict=True)
    tensors = [Expanded(t, each.reading) if isinstance(each, Expanded) else t for t, each in pairs]
    return with_tensors(copies, iter(tensors))


def require_activations(output: object) -> None:
    """Raise RuntimeError if the ``output`` of a module has copies that met no activations.

    Such are activations that require no gradient, as those that nothing trained has computed.
    """
    if has_copies(output):
        raise RuntimeError("a module returns a function of its parameters and of nothing that depends on the batch")


def may_expand(module: nn.Module, children: frozenset[str]) -> bool:
    """Whether the trained parameters of ``module`` and of these ``children`` of it are few enough for copies."""
    owners = [module, *(module.get_submodule(child) for child in children)]
    own = [p for owner in owners for p in owner.parameters(recurse=False) if p.requires_grad]
    return sum(p.numel() * p.element_size() for p in own) <= LARGEST_BYTES
