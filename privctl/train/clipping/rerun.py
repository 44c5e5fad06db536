"""Runs a module's forward pass again on the same inputs, and differentiates it for one example at a time.

If the gradients of the examples' rows, each run alone, add up to the batch's gradient, these are used, computed by
torch.func.vmap or one after another. Otherwise the batch is run again and differentiated once for each example.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from privctl.parallel import is_out_of_memory
from privctl.train.clipping.children import ChildCall, noting_dependent, reusing
from privctl.train.clipping.terms import chunks
from privctl.train.clipping.use import Inseparable, ModuleCall, WithoutDraws, tensors_in, with_tensors

#: Tolerance between the sum of separate examples' gradients and the batch's gradient, relative to a parameter's own
#: gradients plus ``_OVERALL_SHARE`` times those of all parameters, for a parameter whose gradient is rounding only.
_AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}
_OVERALL_SHARE = 1e-2
#: The tolerance under autocast, which rounds by 2^-9: of modules that agree without it, and of those that cannot be run
#: so. It is relative to the batch's gradient too, which is longer where those of examples have much in common.
_AGREEMENT_AUTOCAST, _AGREEMENT_AUTOCAST_ALONE = 2.0**-5, 1e-3
#: Errors that mean a module cannot be run on given inputs; a custom forward pass may raise nearly anything.
UNRUNNABLE = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError)

Gradients = dict[str, Tensor]


class Mode(StrEnum):
    """How a module is differentiated example by example, the fastest way first."""

    REPEATED = "its one output repeated for each example"
    EXPANDED = "its parameters copied for each example"
    MAPPED = "examples mapped over together"
    ALONE = "one example at a time"
    MASKED = "the whole batch once for each example"


class Part(Enum):
    """The part of an input tensor that belongs to one example."""

    ALL = 0  # all examples share it
    ROW = 1
    ROWS = 2  # the same number of consecutive rows for every example


class SeparationPlan(NamedTuple):
    """A mode, the part of each input tensor that belongs to one example, and the children that are not run again.

    The kept outputs of these children are among the input tensors.
    """

    mode: Mode
    parts: tuple[Part, ...]
    reused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RepeatableUse:
    """A use of a module that can be run again; the children in ``reused`` then return what they returned before."""

    module: nn.Module
    use: ModuleCall
    reused: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """The number of examples."""
        return self.use.count

    def signature(self) -> tuple[int, ...]:
        """The number of dimensions of each input tensor."""
        return tuple(t.dim() for t in self._inputs())

    def by(self, way: SeparationPlan) -> RepeatableUse:
        """The same use, with the outputs of the children that ``way`` does not run again."""
        return replace(self, reused=way.reused)

    def fits(self, way: SeparationPlan) -> bool:
        """Whether the inputs can be split as ``way`` requires."""
        inputs = self.by(way)._inputs()
        return len(inputs) == len(way.parts) and all(
            part is Part.ALL or len(t) == self.count or (part is Part.ROWS and len(t) % self.count == 0)
            for t, part in zip(inputs, way.parts, strict=True)
        )

    def values(self) -> Gradients:
        """The parameters that are differentiated."""
        return {name: self.module.get_parameter(name).detach() for name in sorted(self.use.names)}

    def batch_gradient(self) -> Gradients:
        """The whole batch's gradient."""
        return self._differentiate([self._gradients()])[0]

    def of_rows(self, rows: slice, way: SeparationPlan) -> Gradients:
        """Gradients (r, *shape) of the examples in ``rows``."""
        with self.use.spent.on(self.use.setting.device):
            match way.mode:
                case Mode.MAPPED:
                    return self.together(rows, way.parts)
                case Mode.ALONE:
                    return self.alone(rows, way.parts)
            return self.masked(rows)

    def masked(self, rows: slice) -> Gradients:
        """Gradients of some examples, from one backward pass through the batch for each."""
        by_row = []
        for row in range(*rows.indices(self.count)):
            by_row.append([torch.zeros_like(g) for g in self._gradients()])
            for row_value, gradient in zip(by_row[-1], self._gradients(), strict=True):
                own_gradient = self._rows_in(gradient, slice(row, row + 1))
                row_value[own_gradient] = gradient[own_gradient]
        return _stacked(self._differentiate(by_row))

    def alone(self, rows: slice, parts: tuple[Part, ...]) -> Gradients:
        """Gradients of some examples, each run alone in a batch of one."""
        row_gradients = []
        for row in range(*rows.indices(self.count)):
            own_rows = slice(row, row + 1)
            inputs = [
                t if part is Part.ALL else t[self._rows_in(t, own_rows)]
                for t, part in zip(self._inputs(), parts, strict=True)
            ]
            gradients = [g[self._rows_in(g, own_rows)] for g in self._gradients()]
            row_gradients.append(self._differentiate([gradients], inputs)[0])
        return _stacked(row_gradients)

    def together(self, rows: slice, parts: tuple[Part, ...]) -> Gradients:
        """Gradients of some examples, each run alone, vectorized by ``vmap``."""
        tensors = self._inputs()
        shared = [part is Part.ALL for part in parts]
        mapped = [self._by_example(t, rows) for t, all_of_it in zip(tensors, shared, strict=True) if not all_of_it]
        values = self.values()

        def single(inputs: list[Tensor], gradients: list[Tensor]) -> Gradients:
            mapped_inputs = iter(inputs)
            nest = [t if all_of_it else next(mapped_inputs) for t, all_of_it in zip(tensors, shared, strict=True)]
            outputs, pull = vjp(lambda v: self._outputs(v, nest), values)[:2]
            pulled: Gradients = pull([g.sum_to_size(o.shape) for o, g in zip(outputs, gradients, strict=True)])[0]
            return pulled

        gradients = [self._by_example(g, rows) for g in self._gradients()]
        with self.use.unrecorded(), self.use.setting.restored(), warnings.catch_warnings():
            # Operations without a batching rule run one example at a time; the user can do nothing about that.
            warnings.filterwarnings("ignore", "There is a performance drop")
            by_example: Gradients = vmap(single)(mapped, gradients)
        return by_example

    def _rows_in(self, tensor: Tensor, rows: slice) -> slice:
        """The rows that belong to some examples in a tensor with equally many rows of each."""
        share = len(tensor) // self.count
        start, stop, _ = rows.indices(self.count)
        return slice(start * share, stop * share)

    def _by_example(self, tensor: Tensor, rows: slice) -> Tensor:
        share = len(tensor) // self.count
        return tensor[self._rows_in(tensor, rows)].reshape(-1, share, *tensor.shape[1:])

    def _inputs(self) -> list[Tensor]:
        return [_row_major(t) for t in tensors_in((self.use.arguments, self.use.keywords, self._reused_calls()))]

    def _reused_calls(self) -> tuple[ChildCall, ...]:
        return tuple(call for call in self.use.children if call[0] in self.reused)

    def _differentiate(self, gradients: list[list[Tensor]], inputs: list[Tensor] | None = None) -> list[Gradients]:
        values = self._differentiable()
        with self.use.unrecorded():
            outputs = self._recorded(values, inputs)
            return [self._pull_back(values, outputs, row_gradient) for row_gradient in gradients]

    def _pull_back(self, values: Gradients, outputs: list[Tensor], gradients: list[Tensor]) -> Gradients:
        differentiable = [i for i, output in enumerate(outputs) if output.requires_grad]
        if not differentiable:
            return {name: torch.zeros_like(value) for name, value in values.items()}
        gradients_by_value = torch.autograd.grad(
            [outputs[i] for i in differentiable],
            list(values.values()),
            [gradients[i].sum_to_size(outputs[i].shape) for i in differentiable],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(values, gradients_by_value, strict=True))

    def _differentiable(self) -> Gradients:
        return {name: value.requires_grad_() for name, value in self.values().items()}

    def _recorded(self, values: Gradients, inputs: list[Tensor] | None = None) -> list[Tensor]:
        with torch.enable_grad(), self.use.unrecorded(), self.use.setting.restored():
            return self._outputs(values, self._inputs() if inputs is None else inputs)

    def _gradients(self) -> list[Tensor]:
        return [g for g in self.use.gradients if g is not None]

    def _outputs(self, values: Mapping[str, Tensor], tensors: list[Tensor]) -> list[Tensor]:
        """The floating-point output tensors that received a gradient."""
        nest = self.use.arguments, dict(self.use.keywords), self._reused_calls()
        arguments, keywords, calls = with_tensors(nest, iter(tensors))
        # A cache was filled by the first pass, so it is left out; if it matters, the gradients differ.
        arguments = tuple(None if _is_cache(value) else value for value in arguments)
        keywords = {name: None if _is_cache(value) else value for name, value in keywords.items()}
        with reusing(self.module, calls):
            output = functional_call(self.module, dict(values), arguments, keywords, tie_weights=False)
        floating = [t for t in tensors_in(output) if t.is_floating_point()]
        return [t for t, g in zip(floating, self.use.gradients, strict=False) if g is not None]

    def is_used(self) -> bool:
        """Whether the module's output depends on these parameters."""
        return any(output.requires_grad for output in self._recorded(self._differentiable()))

    def choose(self) -> SeparationPlan:
        """The fastest way whose examples' gradients add up to the batch's gradient.

        Raises Inseparable for a module taken as a whole that mixes its examples: run alone, they have other gradients.
        A module that draws random numbers is tested without them; if they cannot be turned off (see ``WithoutDraws``),
        mixing is not detected here.
        """
        reusing_children = replace(self, reused=self._independent_children())
        if reusing_children.reused and not reusing_children._draws_random_numbers():
            found = reusing_children._fastest_alone(self.batch_gradient())
            if found is not None:
                return found
        if self.count == 1:
            return SeparationPlan(Mode.ALONE, (Part.ALL,) * len(self.signature()))
        masked = SeparationPlan(Mode.MASKED, (Part.ALL,) * len(self.signature()))
        if not self._draws_random_numbers():
            return self._fastest_alone(self.batch_gradient()) or masked
        if self.use.whole:
            with WithoutDraws():
                if not self._draws_random_numbers():
                    self._fastest_alone(self.batch_gradient())
        return masked

    def _independent_children(self) -> frozenset[str]:
        """The children with kept outputs whose inputs do not depend on the parameters."""
        kept = {name for name, _ in self.use.children}
        if not kept:
            return frozenset()
        values = self._differentiable()
        with noting_dependent(self.module, list(values.values())) as dependent:
            self._recorded(values)
        return frozenset(kept - dependent)

    def _fastest_alone(self, expected: Gradients) -> SeparationPlan | None:
        """The fastest way that runs each example alone and gives the ``expected`` sum; None if there is none.

        Raises as ``choose`` does.
        """
        ran = False
        for parts in self._hypotheses():
            for mode in (Mode.MAPPED, Mode.ALONE):
                way = SeparationPlan(mode, parts, self.reused)
                agreed = self._agrees(way, expected)
                if agreed:
                    return way
                ran = ran or agreed is not None
                if agreed is not None:
                    break
        if ran and self.use.whole:
            raise Inseparable("gives its examples another gradient together than one by one, so that it mixes them")
        return None

    def _hypotheses(self) -> Iterator[tuple[Part, ...]]:
        """The parts of each tensor that one example may have, the likeliest first."""
        lengths = [len(t) if t.dim() > 0 else 0 for t in self._inputs()]
        plain = tuple(Part.ROW if length == self.count else Part.ALL for length in lengths)
        yield plain
        folded = tuple(
            Part.ROWS if length > self.count and length % self.count == 0 else part
            for length, part in zip(lengths, plain, strict=True)
        )
        if folded != plain:
            yield folded
        for index in [i for i, part in enumerate(plain) if part is Part.ROW]:
            yield (*plain[:index], Part.ALL, *plain[index + 1 :])  # may have as many rows as examples by coincidence

    def _agrees(self, way: SeparationPlan, expected: Gradients) -> bool | None:
        """Whether the examples' gradients add up to the ``expected`` ones; None if they cannot be computed.

        Under autocast they must do so without it too, because its rounding may hide that a module mixes examples.
        """
        if not self.use.setting.autocast[0]:
            return self._adds_up(way, expected, None)
        precise = replace(self, use=self.use.without_autocast())
        try:
            agreed = precise._adds_up(way, precise.batch_gradient(), None)
        except UNRUNNABLE as error:
            if is_out_of_memory(error):
                raise
            agreed = None
        if agreed is False:
            return False
        return self._adds_up(way, expected, _AGREEMENT_AUTOCAST if agreed else _AGREEMENT_AUTOCAST_ALONE)

    def _adds_up(self, way: SeparationPlan, expected: Gradients, tolerance: float | None) -> bool | None:
        """``_agrees`` in one precision, with the ``tolerance`` of parameters' types by default."""
        totals = {name: torch.zeros_like(value) for name, value in expected.items()}
        squares = dict.fromkeys(expected, 0.0)
        try:
            for rows in chunks(self.count, self.bytes_each()):
                for name, gradients in self.of_rows(rows, way).items():
                    totals[name] += gradients.sum(0)
                    squares[name] += float(gradients.double().square().sum())
        except UNRUNNABLE as error:
            if is_out_of_memory(error):
                raise
            return None  # such as a module that branches on values or needs a fixed batch size
        everything = _OVERALL_SHARE * sum(squares.values()) ** 0.5
        return all(
            float((totals[name] - tensor).norm())
            <= (_AGREEMENT.get(tensor.dtype, 1e-2) if tolerance is None else tolerance)
            * (squares[name] ** 0.5 + everything + (0.0 if tolerance is None else float(tensor.norm())))
            for name, tensor in expected.items()
        )

    def _draws_random_numbers(self) -> bool:
        """Whether the module draws random numbers, which would differ for examples run alone."""
        if self.use.setting.random is None:
            return False
        with torch.no_grad(), self.use.unrecorded(), self.use.setting.restored():
            before = self.use.setting.random_now()
            self._outputs(self.values(), self._inputs())
            after = self.use.setting.random_now()
        return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def bytes_each(self) -> int:
        """Roughly the bytes of one example's gradients and activations."""
        parts = sum(1 for _ in self.module.modules()) if self.use.whole else 1
        outputs = sum(g.numel() for g in self._gradients()) // self.count
        return 4 * sum(v.numel() for v in self.values().values()) + 16 * parts * outputs


def _stacked(row_gradients: list[Gradients]) -> Gradients:
    return {name: torch.stack([gradients[name] for gradients in row_gradients]) for name in row_gradients[0]}


def _row_major(tensor: Tensor) -> Tensor:
    """Convert a tensor in channels-last memory format to the contiguous one.

    Torch 2.13 crashes when a group norm in channels-last format computes gradients of its parameters but not of its
    input.
    """
    if tensor.dim() != 4 or not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _is_cache(value: object) -> bool:
    """Whether this is a cache of keys and values, to which a second pass would append."""
    return type(value).__name__.endswith("Cache")
