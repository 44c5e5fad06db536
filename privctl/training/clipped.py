"""Training in which every example's gradient is clipped: the run that a ``ClippedTraining`` describes, and no other.

Sensitivities are derived from those facts (THEORY A.2), so nothing here is left to the caller's word: the clipping, the
fixed normaliser, the constant learning rate and the visiting order are all made in this file from the facts alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from privctl.domain.errors import InputFault, UsageFault
from privctl.domain.mechanism import ClippedTraining, Optimizer

#: Called with the number of optimizer steps just done.
Advance = Callable[[int], None]

#: Per-example gradients take at most about this much memory at a time; how a batch is cut changes only rounding.
CHUNK_BYTES = 256 << 20

#: Scaling in float32 rounds each number by at most 2^-24; aiming this much lower keeps the rounded norm within C.
_INSIDE = 1 - 2.0**-22


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One epoch as it went, each example counted as it was met.

    ``loss`` is in nats a token; ``clipped_fraction`` is of gradients whose norm exceeded the clip norm. Both
    come from the private examples and are no part of a guarantee.
    """

    loss: float
    clipped_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedRun:
    """A run that was carried out: its facts hold because the loop made them so. ``epochs`` are in order."""

    facts: ClippedTraining
    seed: int
    epochs: tuple[EpochRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """The sum of a batch's clipped gradients by parameter name, with each example's loss and norm before clipping.

    ``losses`` (nats a token) and ``norms`` have shape (batch,); norms are float64.
    """

    gradients: dict[str, Tensor]
    losses: Tensor
    norms: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Right-padded sequences: ``tokens`` (n, length) int64, ``weights`` (n, length - 1) float32.

    A weight is 1 / (the example's predicted tokens) where a token is predicted and 0 where it is padding, so that the
    weighted sum of token losses is the example's mean. Causal attention never looks right, so padding reaches nothing.
    """

    tokens: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Sequence[int]) -> Batch:
        """The examples at ``indices``, in that order."""
        where = torch.as_tensor(indices, device=self.tokens.device)
        return Batch(tokens=self.tokens[where], weights=self.weights[where])

    def split(self, size: int) -> list[Batch]:
        """Consecutive batches of at most ``size``."""
        cuts = [slice(start, start + size) for start in range(0, len(self), size)]
        return [Batch(tokens=self.tokens[cut], weights=self.weights[cut]) for cut in cuts]


def pad(token_ids: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Batch:
    """Sequences of any lengths as one ``Batch``; raises InputFault for one with nothing to predict."""
    for i, ids in enumerate(token_ids):
        if len(ids) < 2:
            raise InputFault(f"record {i} has {len(ids)} tokens; a record to train on needs at least 2")
    length = max(map(len, token_ids))
    tokens = np.zeros((len(token_ids), length), np.int64)
    weights = np.zeros((len(token_ids), length - 1), np.float32)
    for i, ids in enumerate(token_ids):
        tokens[i, : len(ids)] = ids
        weights[i, : len(ids) - 1] = 1 / (len(ids) - 1)
    return Batch(tokens=torch.from_numpy(tokens).to(device), weights=torch.from_numpy(weights).to(device))


def visiting_order(seed: int, epoch: int, dataset_size: int) -> list[int]:
    """The order of one epoch: a permutation of the examples' positions, made from nothing but these three numbers."""
    order: list[int] = np.random.default_rng((seed, epoch)).permutation(dataset_size).tolist()
    return order


def clipped_sum(model: nn.Module, parameters: Mapping[str, Tensor], batch: Batch, clip_norm: float) -> ClippedSum:
    """Sum over the batch of each example's gradient, scaled down to L2 norm ``clip_norm`` where it is longer.

    The norm is that of all of ``parameters`` together (a tied weight is one of them, once). ``model`` must be in
    evaluation mode; its logits have shape (1, length, vocabulary) for one sequence. Abadi et al. 2016, algorithm 1.
    """
    floats = sum(p.numel() for p in parameters.values())
    chunks = batch.split(max(1, CHUNK_BYTES // (4 * floats)))
    sums = [_clipped_chunk(model, parameters, chunk, clip_norm) for chunk in chunks]
    gradients = sums[0].gradients
    for other in sums[1:]:
        for name, total in gradients.items():
            total += other.gradients[name]
    return ClippedSum(
        gradients=gradients,
        losses=torch.cat([s.losses for s in sums]),
        norms=torch.cat([s.norms for s in sums]),
    )


def train_clipped(
    model: nn.Module,
    token_ids: Sequence[Sequence[int]],
    facts: ClippedTraining,
    *,
    seed: int,
    advance: Advance = lambda _: None,
) -> ClippedRun:
    """Train ``model`` in place, exactly as ``facts`` says.

    ``model`` is a causal language model of transformers in float32, on any one device; its parameters that require a
    gradient are trained. ``token_ids`` holds the private examples without padding. ``seed`` makes the visiting order,
    which is not secret. Dropout is off and attention is eager, so that an example's gradient is its own; the model is
    left so.

    Raises UsageFault for facts this loop does not carry out, InputFault for examples or a model it cannot train on,
    and for a loss or gradient that is not finite.
    """
    _check_facts(facts, len(token_ids))
    parameters = _trainable(model)
    examples = pad(token_ids, next(iter(parameters.values())).device)
    _check_tokens(model, examples)
    model.eval()
    choose_attention = getattr(model, "set_attn_implementation", None)
    if callable(choose_attention):
        choose_attention("eager")  # not every fused kernel has a batching rule under vmap
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if facts.momentum else {}
    records = []
    for epoch in range(facts.epochs):
        order = visiting_order(seed, epoch, facts.dataset_size)
        losses, norms = [], []
        for start in range(0, facts.dataset_size, facts.batch_size):
            visited = order[start : start + facts.batch_size]
            total = clipped_sum(model, parameters, examples.take(visited), facts.clip_norm)
            _check_finite(total, visited, epoch)
            _step(parameters, total.gradients, velocity, facts)
            losses.append(total.losses)
            norms.append(total.norms)
            advance(1)
        clipped = torch.cat(norms) > facts.clip_norm
        records.append(EpochRecord(
            loss=float(torch.cat(losses).double().mean()), clipped_fraction=float(clipped.double().mean())
        ))  # fmt: skip
    return ClippedRun(facts=facts, seed=seed, epochs=tuple(records))


def _clipped_chunk(model: nn.Module, parameters: Mapping[str, Tensor], batch: Batch, clip_norm: float) -> ClippedSum:
    # Said outright, or transformers looks for padding among the tokens, which vmap cannot branch on.
    attended = torch.ones_like(batch.tokens[:1])

    def loss(values: Mapping[str, Tensor], tokens: Tensor, weights: Tensor) -> Tensor:
        call = {"input_ids": tokens[None], "attention_mask": attended, "use_cache": False}
        logits = functional_call(model, dict(values), (), call).logits[0, :-1]
        each = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None])[:, 0]
        return -(each * weights).sum()

    detached = {name: p.detach() for name, p in parameters.items()}
    per_example = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
    gradients, losses = per_example(detached, batch.tokens, batch.weights)
    squares = [torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64) ** 2 for g in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = (clip_norm * _INSIDE / norms).clamp(max=1).float()
    summed = {name: torch.tensordot(factors, g, dims=1) for name, g in gradients.items()}
    return ClippedSum(gradients=summed, losses=losses, norms=norms)


@torch.no_grad()
def _step(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    velocity: Mapping[str, Tensor],
    facts: ClippedTraining,
) -> None:
    """One update: decoupled weight decay, then (heavy-ball) descent along the sum divided by the fixed batch size."""
    for name, parameter in parameters.items():
        direction = gradients[name] / facts.batch_size  # also for a last, short batch
        if facts.momentum:
            direction = velocity[name].mul_(facts.momentum).add_(direction)
        if facts.weight_decay:
            parameter.mul_(1 - facts.learning_rate * facts.weight_decay)
        parameter.sub_(direction, alpha=facts.learning_rate)


def _check_facts(facts: ClippedTraining, count: int) -> None:
    if facts.optimizer not in (Optimizer.SGD, Optimizer.MOMENTUM):
        raise UsageFault(f"--optimizer {facts.optimizer} is not trained here; choose sgd or momentum")
    if facts.dataset_size != count:
        raise UsageFault(f"--dataset-size {facts.dataset_size} contradicts the data, which holds {count} records")
    if facts.total_steps != facts.epochs * facts.steps_per_epoch:
        raise UsageFault(
            f"--steps {facts.total_steps} would leave records out; {facts.epochs} epochs take "
            f"{facts.epochs * facts.steps_per_epoch} steps here"
        )


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters to train by name; ``named_parameters`` gives a tied weight once."""
    parameters: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputFault("the model has no parameter that requires a gradient; there is nothing to train")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise InputFault(f"parameter {name!r} is {parameter.dtype}; load the model as float32 to train it")
        if not torch.isfinite(parameter).all():
            raise InputFault(f"parameter {name!r} holds NaN or infinity; start from a sound model")
    return parameters


def _check_tokens(model: nn.Module, examples: Batch) -> None:
    """Out-of-range token ids would read another row or crash the device; sequences too long have no position."""
    config = getattr(model, "config", None)
    vocabulary, positions = (getattr(config, n, None) for n in ("vocab_size", "max_position_embeddings"))
    low, high = int(examples.tokens.min()), int(examples.tokens.max())
    if low < 0 or (vocabulary is not None and high >= vocabulary):
        raise InputFault(
            f"the records hold the token id {low if low < 0 else high}; the model knows 0 to "
            f"{(vocabulary or high + 1) - 1}; use the model's own tokenizer"
        )
    if positions is not None and examples.tokens.shape[1] > positions:
        raise InputFault(f"a record has {examples.tokens.shape[1]} tokens; the model reads at most {positions}")


def _check_finite(total: ClippedSum, visited: Sequence[int], epoch: int) -> None:
    """A gradient that is not finite cannot be clipped; to skip it quietly would change what the facts say."""
    sound = torch.isfinite(total.losses) & torch.isfinite(total.norms)
    if not sound.all():
        record = visited[operator.indexOf(sound.tolist(), False)]
        raise InputFault(
            f"record {record} has a loss or gradient that is not finite in epoch {epoch + 1}; "
            "the training diverged: lower --learning-rate, or check the model"
        )
