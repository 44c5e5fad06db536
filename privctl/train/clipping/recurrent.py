"""Recurrent layers, run again step by step for the gradients of the gates' pre-activations.

These are output gradients of two linear layers: one that reads a step's input, and one that reads the previous state.
An LSTM's backward pass is written out in ``lstm``; that of the others is autograd's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from privctl.train.clipping.linear import bias, outer
from privctl.train.clipping.lstm import LstmDirection, run_lstm
from privctl.train.clipping.terms import GradientTerm
from privctl.train.clipping.use import Inseparable, ModuleCall

States = tuple[Tensor, ...]  # the hidden state and, for an LSTM, the cell state
_NONE = torch.empty(0)
#: The keyword of a call under which ``with_output`` keeps the outputs.
_OUTPUT = "outputs by example"


@dataclass(slots=True)
class _Direction:
    """One direction of one layer: the inputs of its linear maps, and zero leaves (n, T, p) added to their outputs.

    An LSTM or a plain RNN sums the contributions of inputs and states, so one leaf serves both. ``before`` are the
    states before each step, and ``unprojected`` those after it, which an LSTM may project.
    """

    suffix: str
    inputs: Tensor
    from_inputs: Tensor
    from_states: Tensor
    projected: Tensor
    before: Tensor = _NONE
    unprojected: Tensor = _NONE

    def leaves(self) -> list[Tensor]:
        """The tensors with respect to which the layer is differentiated."""
        return [self.from_inputs, self.from_states, self.projected]

    def terms(self, names: frozenset[str], gradients: list[Tensor]) -> dict[str, GradientTerm]:
        """The terms of this direction's parameters."""
        pairs = {
            "weight_ih": (self.inputs, gradients[0]),
            "weight_hh": (self.before, gradients[1]),
            "weight_hr": (self.unprojected, gradients[2]),
        }
        by_name: dict[str, GradientTerm] = {
            f"{name}{self.suffix}": outer(*pair) for name, pair in pairs.items() if f"{name}{self.suffix}" in names
        }
        of_both: GradientTerm | None = None
        for name, gradient in (("bias_ih", gradients[0]), ("bias_hh", gradients[1])):
            if f"{name}{self.suffix}" in names:
                same = of_both is not None and gradients[0] is gradients[1]
                of_both = by_name[f"{name}{self.suffix}"] = of_both if same and of_both else bias(gradient)
        return by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequences:
    """Inputs (n, T, d), initial states (layers, n, h), and which steps are present (n, T, 1); None if all are.

    ``outputs`` (n, T, p) are the module's own; None if some step is left out, or if they are rounded.
    """

    inputs: Tensor
    states: States | None
    present: Tensor | None
    outputs: Tensor | None


def with_output(module: nn.Module, keywords: dict[str, Any], output: Any) -> dict[str, Any]:
    """The ``keywords`` of a call and a copy of its outputs (n, T, p), if these are all states of an LSTM's last layer.

    It is a copy because others may change what a module returned.
    """
    if not isinstance(module, nn.LSTM) or module.proj_size:
        return keywords
    outputs = output[0]
    if not isinstance(outputs, Tensor) or outputs.dim() != 3 or outputs.dtype != module.weight_ih_l0.dtype:
        return keywords
    by_example = outputs if module.batch_first else outputs.transpose(0, 1)
    return {**keywords, _OUTPUT: by_example.detach().clone(memory_format=torch.contiguous_format)}


def recurrent(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's RNN, LSTM and GRU, with any number of layers and directions, on tensors or packed sequences.

    Dropout between layers is drawn again from the same random state; if a device draws it differently, as a fused GPU
    kernel may, the comparison with autograd fails. Raises Inseparable for inputs without a dimension of examples.
    """
    assert isinstance(module, nn.RNNBase)
    sequences = _sequences(module, use)
    device = use.setting.device
    with torch.enable_grad(), use.unrecorded(), use.setting.restored(), torch.autocast(device.type, enabled=False):
        outputs, directions = _run(module, sequences)
    with torch.no_grad():
        wanted = [(o, g.to(o.dtype)) for o, g in zip(outputs, _gradients(module, use), strict=True) if g is not None]
    leaves = [leaf for direction in directions for leaf in direction.leaves()]
    by_leaf = torch.autograd.grad(
        [output for output, _ in wanted], leaves, [g for _, g in wanted], allow_unused=True, materialize_grads=True
    )
    terms: dict[str, GradientTerm] = {}
    for i, each in enumerate(directions):
        gradients = list(by_leaf[3 * i : 3 * i + 3])
        if not isinstance(module, nn.GRU):
            gradients[1] = gradients[0]
        terms |= each.terms(use.names, gradients)
    return terms


def _sequences(module: nn.RNNBase, use: ModuleCall) -> _Sequences:
    named: dict[str, Any] = dict(zip(("input", "hx"), use.arguments, strict=False)) | dict(use.keywords)
    inputs, states = named["input"], named.get("hx")
    states = (states,) if isinstance(states, Tensor) else states
    present = None
    if isinstance(inputs, PackedSequence):
        if module.dropout and module.training and module.num_layers > 1:
            raise Inseparable("draws dropout for packed sequences, which cannot be drawn again; set dropout=0")
        inputs, lengths = pad_packed_sequence(inputs, batch_first=True)
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        present = (steps < lengths.to(inputs.device)[:, None])[..., None]
    elif inputs.dim() == 3 and not module.batch_first:
        inputs = inputs.transpose(0, 1)
    if inputs.dim() != 3 or len(inputs) != use.count:
        where = "first" if module.batch_first else "second"
        raise Inseparable(f"has no {where} dimension of {use.count}, the examples of its batch; give it one")
    dtype = next(module.parameters()).dtype
    return _Sequences(
        inputs=inputs.to(dtype),
        states=None if states is None else tuple(state.to(dtype) for state in states),
        present=present,
        outputs=None if use.setting.autocast[0] else use.keywords.get(_OUTPUT),
    )


def _gradients(module: nn.RNNBase, use: ModuleCall) -> list[Tensor | None]:
    """The gradients of the outputs, as (n, T, p), and of the last states."""
    outputs, *states = use.gradients
    packed = use.arguments[0] if use.arguments else use.keywords["input"]
    if outputs is not None and isinstance(packed, PackedSequence):
        outputs = pad_packed_sequence(packed._replace(data=outputs), batch_first=True)[0]
    elif outputs is not None and not module.batch_first:
        outputs = outputs.transpose(0, 1)
    return [outputs, *states]


def _run(module: nn.RNNBase, sequences: _Sequences) -> tuple[list[Tensor], list[_Direction]]:
    """Run all layers; returns the outputs (n, T, p) and last states, and every direction of every layer."""
    sides = 2 if module.bidirectional else 1
    outputs, directions, last = sequences.inputs, [], []
    for layer in range(module.num_layers):
        if layer and module.dropout:
            # Torch draws dropout for a contiguous tensor whose first dimension is the steps.
            steps_first = outputs.transpose(0, 1).contiguous()
            outputs = functional.dropout(steps_first, module.dropout, module.training).transpose(0, 1)
        parts = []
        for side in range(sides):
            number = layer * sides + side
            states = _initial_states(module, sequences, number)
            suffix = f"_l{layer}{'_reverse' if side else ''}"
            direction = _direction(module, suffix, outputs)
            directions.append(direction)
            known = None
            if sequences.outputs is not None and layer == module.num_layers - 1:
                known = sequences.outputs.chunk(sides, 2)[side]
            part, states = _run_direction(
                module, direction, outputs, states, sequences.present, known, backwards=bool(side)
            )
            parts.append(part)
            last.append(states)
        outputs = torch.cat(parts, 2)
    return [outputs, *(torch.stack(states) for states in zip(*last, strict=True))], directions


def _initial_states(module: nn.RNNBase, sequences: _Sequences, number: int) -> States:
    if sequences.states is not None:
        return tuple(state[number] for state in sequences.states)
    sizes = [module.proj_size or module.hidden_size]
    if isinstance(module, nn.LSTM):
        sizes.append(module.hidden_size)
    return tuple(sequences.inputs.new_zeros(len(sequences.inputs), size) for size in sizes)


def _direction(module: nn.RNNBase, suffix: str, inputs: Tensor) -> _Direction:
    gates = len(getattr(module, f"weight_ih{suffix}"))

    def leaf(size: int) -> Tensor:
        return inputs.new_zeros(()).expand(*inputs.shape[:2], size).requires_grad_()

    return _Direction(
        suffix=suffix,
        inputs=inputs.detach(),
        from_inputs=leaf(gates),
        from_states=leaf(gates if isinstance(module, nn.GRU) else 0),
        projected=leaf(module.proj_size),
    )


def _run_direction(
    module: nn.RNNBase,
    direction: _Direction,
    inputs: Tensor,
    states: States,
    present: Tensor | None,
    known: Tensor | None,
    *,
    backwards: bool,
) -> tuple[Tensor, States]:
    """Run one direction over all steps; returns outputs (n, T, p), which may be ``known``, and the last states."""
    own_weights = {
        name: value.detach()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        if (value := getattr(module, f"{name}{direction.suffix}", None)) is not None
    }
    if isinstance(module, nn.LSTM):
        lstm = LstmDirection(weights=own_weights, present=present, backwards=backwards)
        ran = run_lstm(lstm, inputs, direction.from_inputs, direction.projected, states, known)
        direction.before, direction.unprojected = ran.before, ran.unprojected
        return ran.outputs, (ran.hidden, ran.cell)
    (state,) = states
    steps = (
        functional.linear(inputs, own_weights["weight_ih"], own_weights.get("bias_ih")) + direction.from_inputs
    ).unbind(1)
    from_states = direction.from_states.unbind(1)
    order = list(range(len(steps)))
    outputs, before = [], []
    for step in reversed(order) if backwards else order:
        before.append(state.detach())
        from_state = functional.linear(state, own_weights["weight_hh"], own_weights.get("bias_hh"))
        if isinstance(module, nn.GRU):
            from_state = from_state + from_states[step]
        new = _cell(module, steps[step], from_state, state)
        state = new if present is None else torch.where(present[:, step], new, state)
        outputs.append(state)
    if backwards:
        outputs.reverse()
        before.reverse()
    direction.before = torch.stack(before, 1)
    return torch.stack(outputs, 1), (state,)


def _cell(module: nn.RNNBase, from_input: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """The state of an RNN or a GRU after one step, as torch's documentation defines it."""
    if isinstance(module, nn.GRU):
        kept = module.hidden_size
        reset, update = (from_input[:, : 2 * kept] + from_state[:, : 2 * kept]).sigmoid().chunk(2, 1)
        candidate = (from_input[:, 2 * kept :] + reset * from_state[:, 2 * kept :]).tanh()
        return (1 - update) * candidate + update * state
    assert isinstance(module, nn.RNN)
    total = from_input + from_state
    return total.tanh() if module.nonlinearity == "tanh" else total.relu()
