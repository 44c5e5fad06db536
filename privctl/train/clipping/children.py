"""Outputs of a module's children, kept so that the module can be run again without running the children.

A module's own parameter often comes after its children, such as a factor that scales their output. Then the children
need not be run again to find the gradients of that parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.use import tensors_in, with_tensors

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

#: A call of a child: the child's name in its parent, and its output, which may be nested.
ChildCall = tuple[str, Any]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """The modules nearest below ``module`` that it can call, by path; empty if some module is below two of them."""
    found: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, _CONTAINERS):
            found |= {f"{name}.{path}": inner for path, inner in children_of(child).items()}
        else:
            found[name] = child
    below = [id(inner) for child in found.values() for inner in child.modules()]
    return found if len(below) == len(set(below)) else {}


class ChildOutputs:
    """Keeps what the children of ``module`` return in the latest call of it, from ``begin`` to ``end``."""

    def __init__(self, module: nn.Module) -> None:
        self._children = children_of(module)
        self._calls: list[ChildCall] | None = None
        self._versions: list[int] = []
        self._own_hooks: frozenset[int] = frozenset()
        self._wanted = frozenset(self._children)

    def watch(self) -> list[RemovableHandle]:
        """Put hooks on the children, after those that change outputs."""
        return [
            child.register_forward_hook(self._keep(name), with_kwargs=True) for name, child in self._children.items()
        ]

    def trust(self, handles: Sequence[RemovableHandle]) -> None:
        """Set the hooks whose results may be kept: those of ``handles``. Others may act on each call."""
        self._own_hooks = frozenset(handle.id for handle in handles)

    def begin(self, wanted: frozenset[str] | None) -> None:
        """Begin a call of the module, in which the outputs of the children ``wanted`` are kept, or of all if None."""
        self._calls, self._versions = [], []
        self._wanted = frozenset(self._children) if wanted is None else wanted

    def end(self, outputs: Sequence[Tensor]) -> tuple[ChildCall, ...]:
        """The calls since ``begin``, with detached tensors, in order; ``outputs`` are the module's own.

        A child is left out if what it returned was changed in place afterwards, or is part of the module's own outputs,
        which others may change.
        """
        calls, self._calls = self._calls or [], None
        returned = {t.untyped_storage()._cdata for t in outputs}
        versions = iter(self._versions)
        left_out = {
            name
            for name, output in calls
            for tensor in tensors_in(output)
            if (tensor._version != next(versions)) | (tensor.untyped_storage()._cdata in returned)
        }
        kept = [call for call in calls if call[0] not in left_out]
        return tuple(with_tensors(kept, iter([t.detach() for t in tensors_in(kept)])))

    def forget(self) -> None:
        """Drop what was kept."""
        self._calls = None

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(child: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            if self._calls is None or name not in self._wanted:
                return
            if not _is_plain(output) or not self._own_hooks.issuperset(child._forward_hooks):
                self._wanted -= {name}
                return
            self._calls.append((name, output))
            self._versions.extend(t._version for t in tensors_in(output))

        return keep


def _is_plain(output: object) -> bool:
    """Whether ``output`` consists of nothing but tensors, None and numbers in lists, tuples and dicts."""
    if isinstance(output, dict):
        return type(output) is dict and all(map(_is_plain, output.values()))
    if isinstance(output, list | tuple):
        return type(output) in (list, tuple) and all(map(_is_plain, output))
    return output is None or isinstance(output, Tensor | bool | int | float)


@contextmanager
def reusing(module: nn.Module, calls: Sequence[ChildCall]) -> Iterator[None]:
    """Inside, the children of ``module`` that are named in ``calls`` return the outputs given there, in order.

    A call too many raises RuntimeError.
    """
    outputs: dict[str, list[Any]] = {}
    for name, output in calls:
        outputs.setdefault(name, []).append(output)
    changed = []
    try:
        for name, given in outputs.items():
            child = module.get_submodule(name)
            changed.append((child, child.__dict__.get("forward")))
            child.forward = _given(iter(given))
        yield
    finally:
        for child, before in changed:
            if before is None:
                del child.forward
            else:
                child.forward = before


def _given(outputs: Iterator[Any]) -> Callable[..., Any]:
    def forward(*_: Any, **__: Any) -> Any:
        try:
            return next(outputs)
        except StopIteration:
            raise RuntimeError("a module calls its child more often when it is run again") from None

    return forward


@contextmanager
def noting_dependent(module: nn.Module, sources: Sequence[Tensor]) -> Iterator[set[str]]:
    """Yields the names of the children of ``module`` that are called inside with inputs that depend on ``sources``."""
    dependent: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: Any, keywords: Any) -> None:
            inputs = [t for t in tensors_in((arguments, keywords)) if t.requires_grad]
            if inputs and name not in dependent:
                ones = [torch.ones_like(t) for t in inputs]
                reached = torch.autograd.grad(inputs, list(sources), ones, retain_graph=True, allow_unused=True)
                if any(gradient is not None for gradient in reached):
                    dependent.add(name)

        return hook

    children = children_of(module).items()
    handles = [child.register_forward_pre_hook(note(name), with_kwargs=True) for name, child in children]
    try:
        yield dependent
    finally:
        for handle in handles:
            handle.remove()
