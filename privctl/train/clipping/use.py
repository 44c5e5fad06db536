"""One use of a module in a forward pass, as its rule gets it once the backward pass has reached it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from privctl.train.clipping.terms import memory_key

_DROPOUTS = frozenset(
    getattr(place, name)
    for place in (functional, torch)
    for name in dir(place)
    if "dropout" in name and not name.startswith(("_", "native")) and callable(getattr(place, name))
)
_ATTENTION = functional.scaled_dot_product_attention
#: The position of the dropout rate among the arguments of attention.
_DROPOUT_ARGUMENT = 4
#: Replaces uniform random numbers, such as those that decide which layers are dropped.
_UNIFORM_MEAN = 0.5
_UNIFORM: dict[Any, Callable[..., torch.Tensor]] = {torch.rand: torch.empty, torch.rand_like: torch.empty_like}


class Inseparable(Exception):
    """A module's examples cannot be told apart; the message continues "module 'x' (Linear) ...".

    ``shared`` means that it has one row for all of them.
    """

    def __init__(self, message: str, *, shared: bool = False) -> None:
        super().__init__(message)
        self.shared = shared


@dataclass(slots=True)
class TimeSpent:
    """Seconds spent on running a module again, counted while ``measured``, which synchronizes with the device."""

    seconds: float = 0.0
    measured: bool = False

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Count the time spent inside."""
        if not self.measured:
            yield
            return
        _synchronize(device)
        start = time.perf_counter()
        yield
        _synchronize(device)
        self.seconds += time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a module's output depended on besides its inputs: the random state before it ran, and autocast's state."""

    random: tuple[Tensor, Tensor | None] | None
    device: torch.device
    autocast: tuple[bool, torch.dtype]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this context inside, so that the module repeats its earlier computation."""
        devices = [self.device] if self.random and self.random[1] is not None else []
        with (
            torch.random.fork_rng(devices, enabled=self.random is not None, device_type=self._fork_type()),
            self.autocasting(),
        ):
            if self.random:
                torch.set_rng_state(self.random[0])
                if self.random[1] is not None:
                    torch.get_device_module(self.device).set_rng_state(self.random[1], self.device)
            yield

    def autocasting(self) -> AbstractContextManager[None]:
        """Autocast as it was, without the random state."""
        enabled, dtype = self.autocast
        return torch.autocast(self.device.type, dtype=dtype, enabled=enabled)

    def random_now(self) -> list[Tensor]:
        """The current random states that a module may draw from."""
        return random_states(self.device)

    def _fork_type(self) -> str:
        return "cuda" if self.device.type == "cpu" else self.device.type


def random_states(device: torch.device) -> list[Tensor]:
    """The current random states of the CPU and of ``device``."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


class WithoutDraws(TorchFunctionMode):
    """Inside, dropout drops nothing, Bernoulli draws are all one, and uniform random numbers are all 0.5.

    Other functions, such as ``torch.randn``, still draw random numbers.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func`` without random numbers."""
        named = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else named["input"]
        if func is _ATTENTION:
            args = (
                (*args[:_DROPOUT_ARGUMENT], 0.0, *args[_DROPOUT_ARGUMENT + 1 :])
                if len(args) > _DROPOUT_ARGUMENT
                else args
            )
            return func(*args, **({**named, "dropout_p": 0.0} if "dropout_p" in named else named))
        if func in _UNIFORM:
            named.pop("generator", None)
            return _UNIFORM[func](*args, **named).fill_(_UNIFORM_MEAN)
        if func is torch.bernoulli:
            return torch.ones_like(args[0] if args else named["input"])
        if func is torch.Tensor.bernoulli_:
            return args[0].fill_(1)
        return func(*args, **named)


def setting(device: torch.device, *, stochastic: bool) -> CallContext:
    """The current context; the random state is copied only for a module that may draw from it."""
    random = None
    if stochastic:
        device_state = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        random = (torch.get_rng_state(), device_state)
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return CallContext(random=random, device=device, autocast=autocast)


@dataclass(slots=True)
class LastCast:
    """Caches the last cast, so that layers that read the same tensor (query, key and value) share it.

    Autocast caches it in the same way. The source is held until the next cast, so its memory is not reused.
    """

    _source: Tensor | None = None
    _cast: Tensor | None = None

    def to(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """``values`` in ``dtype``; they must not be modified while this cache is in use."""
        if values.dtype == dtype:
            return values
        if (
            self._cast is None
            or self._source is None
            or self._cast.dtype != dtype
            or memory_key(self._source) != memory_key(values)
        ):
            self._source, self._cast = values, values.to(dtype)
        return self._cast

    def forget(self) -> None:
        """Drop the cached tensors."""
        self._source = self._cast = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """A call of a module and the gradients of its outputs.

    ``arguments`` and ``keywords`` are those of the call, detached. ``gradients`` holds the gradient of the summed
    losses for each floating-point output tensor in order, or None if no loss depends on it. ``names`` are the module's
    own trained parameters. ``children`` holds calls of its children, in order: their names and detached outputs, where
    these were kept. Inside ``unrecorded()`` modules can be called without being recorded. ``count`` is the number of
    examples. ``whole`` means that the module is differentiated with all its submodules, which may mix examples.
    ``ways``, ``agreed`` and ``spent`` are kept from one use of the module to the next: how its examples were separated
    (None if its output does not depend on ``names``), whether a rule's formula gave the module's output, and the time
    that running the module again took.
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    gradients: tuple[Tensor | None, ...]
    names: frozenset[str]
    setting: CallContext
    unrecorded: Callable[[], AbstractContextManager[None]]
    count: int
    whole: bool
    ways: dict[Any, list[Any]]
    agreed: dict[str, bool]
    spent: TimeSpent
    casts: LastCast = field(default_factory=LastCast)
    children: tuple[tuple[str, Any], ...] = ()

    def in_one_precision(self) -> tuple[Tensor, Tensor]:
        """``first`` and ``gradient`` in the lower of their precisions, in which autocast multiplied."""
        inputs, gradient = self.first, self.gradient
        lower = min(inputs.dtype, gradient.dtype, key=lambda dtype: torch.finfo(dtype).bits)
        return self.casts.to(inputs, lower), gradient.to(lower)

    def without_autocast(self) -> ModuleCall:
        """The same call with its tensors in float32 where they have fewer bits, and without autocast."""
        nest = self.arguments, dict(self.keywords), self.gradients, self.children
        longer = [t.float() if t.is_floating_point() and t.itemsize < 4 else t for t in tensors_in(nest)]
        arguments, keywords, gradients, children = with_tensors(nest, iter(longer))
        plain = replace(self.setting, autocast=(False, self.setting.autocast[1]))
        return replace(
            self, arguments=arguments, keywords=keywords, gradients=gradients, children=children, setting=plain
        )

    @property
    def first(self) -> Tensor:
        """The only input of an ordinary layer, given by position or by keyword."""
        value = self.arguments[0] if self.arguments else next(iter(self.keywords.values()))
        assert isinstance(value, Tensor)
        return value

    @property
    def gradient(self) -> Tensor:
        """The gradient of an ordinary layer's only output."""
        assert len(self.gradients) == 1
        assert self.gradients[0] is not None
        return self.gradients[0]


_SEQUENCES = (list, tuple)


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _SEQUENCES):
        for inner in value:
            yield from tensors_in(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nested structure with its tensors replaced in order."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, _SEQUENCES):
        item = [with_tensors(v, tensors) for v in value]
        return type(value)(*item) if hasattr(value, "_fields") else type(value)(item)
    if isinstance(value, Mapping):
        items = {key: with_tensors(item, tensors) for key, item in value.items()}
        return items if type(value) is dict else type(value)(**items)
    return value
