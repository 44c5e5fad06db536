"""Experts of a mixture (MoE): transformers' modules that hold the weights of all experts in two parameters.

A token's output is the sum, over the experts that its router chose, of routing weight times
``down(act(gate(x)) * up(x))``. For each expert the tokens of one example are the positions of two linear layers, whose
gradients are sums of outer products (see ``linear``). The module is computed once more, expert by expert, for the
inputs and output gradients of these layers, in the precision in which autocast computed it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privctl.parallel import is_out_of_memory
from privctl.train.clipping.generic import generic
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.measure import squares_of
from privctl.train.clipping.products import add_product, operand
from privctl.train.clipping.rerun import UNRUNNABLE
from privctl.train.clipping.terms import Dense, GradientTerm, Squares
from privctl.train.clipping.use import ModuleCall

#: Attributes that transformers sets on such modules.
_FLAGS = ("has_gate", "has_bias", "is_transposed")
#: Those that say that another formula applies; transformers 5.17 has neither the formulas nor the attributes.
_OTHER_FORMULAS = ("has_post_expert_norm", "_is_expert_parallel")
#: Arguments of ``forward``, by position; the names of the last two differ between models.
_ARGUMENTS = 3
#: Largest difference between the formula's output and the module's, relative to the norm of the latter. In half
#: precision, where some implementations multiply in it and others do not, outputs differ by its rounding: 2^-9 for each
#: of the numbers multiplied.
_AGREEMENT, _AGREEMENT_REDUCED = 1e-3, 2.0**-5


@dataclass(frozen=True, slots=True)
class ByExpert:
    """Gradients (n, E, ...) of a parameter that holds those of all E experts; None for an expert without tokens."""

    terms: tuple[GradientTerm | None, ...]
    shape: torch.Size

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        formed = [None if term is None else term.example_gradients(rows) for term in self.terms]
        some = next(gradients for gradients in formed if gradients is not None)
        whole = some.new_zeros((len(some), *self.shape))
        for expert, gradients in enumerate(formed):
            if gradients is not None:
                whole[:, expert] = gradients
        return whole

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        squares = [term.squares() for term in self._used()]
        return Squares(_sum_of([each.square for each in squares]), _sum_of([each.slack for each in squares]))

    def slack(self) -> Tensor:
        """The slack defined in ``Squares``, (n,) float64."""
        return _sum_of([term.slack() for term in self._used()])

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        for part, term in zip(total, self.terms, strict=True):
            if term is not None:
                summed = term.add_weighted(part, factors, fresh=fresh)
                if summed is not part:
                    part.copy_(summed)
            elif fresh:
                part.zero_()
        return total

    def _used(self) -> Iterator[GradientTerm]:
        return (term for term in self.terms if term is not None)


def _sum_of(values: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return torch.stack(list(values)).sum(0)


@dataclass(frozen=True, slots=True)
class ExpertTokens:
    """The tokens that chose one expert, in the order of their examples.

    ``token`` (m,) are their numbers in the batch, ``slot`` (m,) which of the token's choices the expert is, ``example``
    (m,) whose they are. ``places`` (n, c) are the numbers of each example's tokens among the m, and m where it has
    fewer than c.
    """

    token: Tensor
    slot: Tensor
    example: Tensor
    places: Tensor

    def by_example(self, values: Tensor, rows: slice = slice(None)) -> Tensor:
        """Arrange values (m, d) by the examples in ``rows``, (r, c, d), with zeros where one has fewer tokens."""
        return torch.cat([values, values.new_zeros((1, values.shape[1]))])[self.places[rows]]


@dataclass(frozen=True, slots=True)
class OuterOfTokens:
    """Gradients sum_t g_t a_t^T over an example's ``tokens``, from a (m, d) and g (m, p)."""

    tokens: ExpertTokens
    inputs: Tensor
    gradients: Tensor
    transposed: bool  # the parameter is (d, p)

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        return self._padded(rows).example_gradients(slice(None))

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        return squares_of([self._padded(slice(None))])

    def slack(self) -> Tensor:
        """The squared norms (n,) float64 if nothing cancelled; see ``Squares``."""
        sizes = [torch.linalg.vector_norm(values.float(), dim=1) for values in (self.inputs, self.gradients)]
        return self._sums((sizes[0] * sizes[1]).double()[:, None])[:, 0].square()

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        inputs, gradients = operand(self.inputs), operand(self.gradients)
        left, right = (inputs, gradients) if self.transposed else (gradients, inputs)
        smaller, scale = left.shape[1] < right.shape[1], factors[self.tokens.example, None]
        return add_product(total, left, right, left_scaled=smaller, scale=scale, fresh=fresh)

    def bias(self) -> Dense:
        """The term of the bias of the same layer."""
        return Dense(self._sums(self.gradients.to(torch.promote_types(self.gradients.dtype, torch.float32))))

    def _sums(self, values: Tensor) -> Tensor:
        """Sums (n, k) over each example's tokens of values (m, k)."""
        return values.new_zeros((len(self.tokens.places), values.shape[1])).index_add_(0, self.tokens.example, values)

    def _padded(self, rows: slice) -> Outer:
        inputs, gradients = self.tokens.by_example(self.inputs, rows), self.tokens.by_example(self.gradients, rows)
        return Outer(inputs, gradients, self.transposed)


def is_experts(module: nn.Module) -> bool:
    """Whether ``module`` is one of transformers' experts with the parameters of the formula, all in this process."""
    flags = {name: getattr(module, name, None) for name in _FLAGS}
    if not all(isinstance(flag, bool) for flag in flags.values()) or not hasattr(module, "_apply_gate"):
        return False
    if any(getattr(module, name, False) for name in _OTHER_FORMULAS):
        return False
    names = {f"{name}{end}" for name in _layers(module) for end in (("", "_bias") if flags["has_bias"] else ("",))}
    return {name for name, _ in module.named_parameters()} == names


def experts(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Transformers' experts; the generic rule where the formula is not what the module computes."""
    inputs: list[Any] = [*use.arguments, *use.keywords.values()]
    if (
        use.whole
        or len(inputs) != _ARGUMENTS
        or not all(isinstance(each, Tensor) and each.dim() == 2 for each in inputs)
    ):
        return generic(module, use)
    hidden, chosen, weights = inputs
    if len(hidden) % use.count or chosen.is_floating_point():
        return generic(module, use)
    if experts.__name__ not in use.agreed:
        use.agreed[experts.__name__] = _is_formula(module, use, hidden, chosen, weights)
    if not use.agreed[experts.__name__]:
        return generic(module, use)
    return _terms(module, use, hidden, chosen, weights)


def _terms(
    module: nn.Module, use: ModuleCall, hidden: Tensor, chosen: Tensor, weights: Tensor
) -> dict[str, GradientTerm]:
    first, last = _layers(module)
    found: dict[str, list[GradientTerm | None]] = {name: [] for name in use.names}
    for expert in range(len(module.get_parameter(first))):
        tokens = _tokens(chosen, expert, use.count)
        terms: dict[str, GradientTerm] = {}
        if len(tokens.token):
            with use.setting.autocasting():
                pair = _of_expert(module, use, hidden, weights, expert, tokens)
            for name, term in zip((first, last), pair, strict=True):
                terms |= {name: term, f"{name}_bias": term.bias()}
        for name, by_expert in found.items():
            by_expert.append(terms.get(name))
    return {
        name: ByExpert(tuple(by_expert), module.get_parameter(name).shape)
        for name, by_expert in found.items()
        if any(term is not None for term in by_expert)
    }


def _of_expert(
    module: nn.Module, use: ModuleCall, hidden: Tensor, weights: Tensor, expert: int, tokens: ExpertTokens
) -> tuple[OuterOfTokens, OuterOfTokens]:
    """The terms of one expert's two layers, in the precision in which autocast multiplied."""
    first, last = _layers(module)
    inputs, transposed = hidden[tokens.token], bool(module.is_transposed)
    with torch.enable_grad():
        between = _linear(module, first, expert, inputs).requires_grad_()
        activated = _activated(module, between)
    outputs = use.gradient[tokens.token] * weights[tokens.token, tokens.slot, None].to(use.gradient.dtype)
    down = module.get_parameter(last).detach()[expert]
    back = outputs @ (down.mT if transposed else down)
    (inside,) = torch.autograd.grad(activated, between, back.to(activated.dtype))
    autocast, dtype = use.setting.autocast
    multiplied = dtype if autocast else torch.promote_types(inputs.dtype, inside.dtype)

    def term(inputs: Tensor, gradients: Tensor) -> OuterOfTokens:
        return OuterOfTokens(tokens, inputs.to(multiplied), gradients.to(multiplied), transposed)

    return term(inputs, inside), term(activated.detach(), outputs)


def _is_formula(module: nn.Module, use: ModuleCall, hidden: Tensor, chosen: Tensor, weights: Tensor) -> bool:
    """Whether the formula gives the module's output for these inputs.

    Under autocast this is tested in full precision too, as rounding may hide a difference.
    """
    dtype = next(module.parameters()).dtype
    try:
        with torch.no_grad(), use.unrecorded():
            full = _differs_by(module, use.count, hidden.to(dtype), chosen, weights.to(dtype))
            if not use.setting.autocast[0]:
                return full <= _AGREEMENT
            with use.setting.autocasting():
                return full <= _AGREEMENT and (
                    _differs_by(module, use.count, hidden, chosen, weights) <= _AGREEMENT_REDUCED
                )
    except UNRUNNABLE as error:
        if is_out_of_memory(error):
            raise
        return False


def _differs_by(module: nn.Module, count: int, hidden: Tensor, chosen: Tensor, weights: Tensor) -> float:
    """The difference between the formula's output and the module's, relative to the latter; infinite if incomparable.

    Raises what the module does.
    """
    first, last = _layers(module)
    expected = module(hidden, chosen, weights)
    if not isinstance(expected, Tensor) or expected.shape != hidden.shape:
        return math.inf
    total = torch.zeros_like(hidden)
    for expert in range(len(module.get_parameter(first))):
        tokens = _tokens(chosen, expert, count)
        activated = _activated(module, _linear(module, first, expert, hidden[tokens.token]))
        output = _linear(module, last, expert, activated) * weights[tokens.token, tokens.slot, None]
        total.index_add_(0, tokens.token, output.to(total.dtype))
    distance, size = (total - expected).norm(), expected.norm()
    return float(distance / size) if size else float(distance)


def _layers(module: nn.Module) -> tuple[str, str]:
    """The names of the parameters before and after the activation."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def _activated(module: Any, between: Tensor) -> Tensor:
    activated: Tensor = module._apply_gate(between) if module.has_gate else module.act_fn(between)
    return activated


def _linear(module: nn.Module, name: str, expert: int, inputs: Tensor) -> Tensor:
    """The output of one layer of one expert, detached from the parameters."""
    weight = module.get_parameter(name).detach()[expert]
    output = inputs @ (weight if module.is_transposed else weight.mT)
    return output + module.get_parameter(f"{name}_bias").detach()[expert] if module.has_bias else output


def _tokens(chosen: Tensor, expert: int, count: int) -> ExpertTokens:
    """The tokens whose router chose ``expert`` in ``chosen`` (N, k), where the N tokens are those of n = ``count``."""
    token, slot = torch.where(chosen == expert)  # in the order of tokens
    example = token // (len(chosen) // count)
    counts = torch.bincount(example, minlength=count)
    places = torch.full((count, int(counts.max())), len(token), device=chosen.device)
    numbers = torch.arange(len(token), device=chosen.device)
    places[example, numbers - (counts.cumsum(0) - counts)[example]] = numbers
    return ExpertTokens(token, slot, example, places)
