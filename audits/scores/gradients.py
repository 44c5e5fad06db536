"""Gradients of records' losses: their norms, and their alignment with the update from another model's weights.

Records are differentiated one at a time, so per-example gradients need no support by the layers. Each takes about three
forward passes, and memory for one gradient of all weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from audits.scores.classes import unpack
from audits.scores.forward import enough_memory
from audits.scores.rows import pad_rows
from audits.scores.tasks import CAUSAL_LM, IMAGE_CLASSIFICATION, SEQ2SEQ_LM, TEXT_CLASSIFICATION
from privctl.data.columns import HeadKind
from privctl.domain.progress import Advance, silent
from privctl.models.choices import FloatFormat
from privctl.models.images import image_logits
from privctl.models.pairs import decoder_inputs
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors
from privctl.models.tasks.classification import label_losses
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.scores.subject import AuditedModel

#: Parameter name -> weights, or their gradient.
Weights = Mapping[str, Tensor]


def why_no_gradients(subject: AuditedModel) -> str:
    """Why records cannot be differentiated; empty if they can."""
    if subject.task not in _LOSSES:
        return f"it differentiates the loss of a whole record, which is not offered for {subject.task}"
    if subject.model.base_bits is not None:
        return f"it differentiates by all weights, and the base's are held in {subject.model.base_bits} bits"
    if subject.model.precision is FloatFormat.BFLOAT16:
        return "--precision bfloat16 rounds the weights that it differentiates by; leave that out"
    return ""


def weights_of(subject: AuditedModel) -> dict[str, Tensor]:
    """The differentiable parameters of the network, each once."""
    return {name: weight for name, weight in subject.model.network.named_parameters() if weight.is_floating_point()}


def why_no_update(subject: AuditedModel, other: AuditedModel) -> str:
    """Why the weights of ``other`` and ``subject`` cannot be subtracted; empty if they can."""
    subject_shapes, other_shapes = (
        {name: weight.shape for name, weight in weights_of(model_subject).items()} for model_subject in (subject, other)
    )
    if subject_shapes == other_shapes:
        return ""
    return "the model given by --reference has other tensors; give the one that training began with"


def update_between(start: AuditedModel, end: AuditedModel) -> dict[str, Tensor]:
    """The weights of ``end`` minus those of ``start``, on the device of ``start``."""
    ends = weights_of(end)
    return {name: ends[name].detach().to(weight) - weight.detach() for name, weight in weights_of(start).items()}


def gradients(
    subject: AuditedModel,
    rows: Sequence[NDArray[Any]],
    update: Weights | None = None,
    workers: Workers = ALONE,
    advance: Advance = silent,
) -> NDArray[np.float64]:
    """For each row, the norm of its loss's gradient, and the cosine of the negative gradient and ``update``, [rows, 2].

    The loss is the mean over the scored parts of the row, in nats. The cosine is 0 if either vector is zero.
    ``workers`` share the rows.
    """

    def measured(some: Sequence[NDArray[Any]]) -> Tensor:
        norms_and_products = torch.zeros(len(some), 2, dtype=torch.float64)
        length = None if update is None else _norm(update.values())
        with quiet_transformers(), enough_memory(subject.model), _differentiable(subject) as weights:
            for i, row in enumerate(some):
                with network_errors(subject.model.path, subject.model.network):
                    loss = _LOSSES[subject.task](subject.scorer, row)
                gradient = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
                named = {name: tensor for name, tensor in zip(weights, gradient, strict=True) if tensor is not None}
                norms_and_products[i, 0] = norm = _norm(named.values())
                if update is not None and length is not None and norm * length != 0:
                    along = torch.stack(
                        [(tensor * update[name]).sum(dtype=torch.float32) for name, tensor in named.items()]
                    )
                    norms_and_products[i, 1] = -along.sum() / (norm * length)
                advance(1)
        return norms_and_products

    return np.asarray(workers.spread_rows(rows, measured, 2).numpy())


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    lengths = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors])
    whole: Tensor = torch.linalg.vector_norm(lengths)
    return whole


@contextmanager
def _differentiable(subject: AuditedModel) -> Iterator[dict[str, Tensor]]:
    """Enable gradients with respect to the weights within the block."""
    weights = weights_of(subject)
    before = {name: weight.requires_grad for name, weight in weights.items()}
    try:
        with torch.enable_grad():
            for tensor in weights.values():
                tensor.requires_grad_(True)
            yield weights
    finally:
        for name, tensor in weights.items():
            tensor.requires_grad_(before[name])


def _text_loss(scorer: Any, row: NDArray[np.int64]) -> Tensor:
    ids = torch.from_numpy(row).to(scorer.model.device)[None]
    logits = scorer.model.network(input_ids=ids, use_cache=False).logits[0, :-1]
    return functional.cross_entropy(logits.float(), ids[0, 1:])


def _pair_loss(scorer: Any, row: NDArray[np.int64]) -> Tensor:
    source, target = row[1 : 1 + int(row[0])], row[1 + int(row[0]) :]
    ids, real = pad_rows([source], 0)
    given = {
        "input_ids": ids,
        "attention_mask": real,
        "decoder_input_ids": decoder_inputs(target[None], [len(target)], scorer.start),
    }
    device = scorer.model.device
    tensors = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
    logits = scorer.model.network(**tensors, use_cache=False).logits[0]
    return functional.cross_entropy(logits.float(), torch.from_numpy(target).to(device))


def _labelled_text_loss(scorer: Any, row: NDArray[np.int64]) -> Tensor:
    behind, device = scorer.behind, scorer.model.device
    ids = torch.from_numpy(row[:-behind]).to(device)[None]
    logits = scorer.model.network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    stated = torch.from_numpy(row[-behind:].copy()).to(device)
    return _labels_loss(
        scorer.problem, logits, stated.view(torch.float64) if scorer.problem is HeadKind.NUMBER else stated
    )


def _image_loss(scorer: Any, row: NDArray[np.uint8]) -> Tensor:
    network, device = scorer.model.network, scorer.model.device
    label, pixels, targets = unpack(row, scorer.behind)
    scaled = scorer.facts.scale(torch.from_numpy(pixels[None]).to(device))
    stated = torch.tensor([label]) if scorer.problem is HeadKind.ONE else torch.from_numpy(targets)
    return _labels_loss(scorer.problem, image_logits(network, scaled.to(network.dtype)), stated.to(device))


def _labels_loss(problem: HeadKind, logits: Tensor, stated: Tensor) -> Tensor:
    """The loss of one record, given its label's number [1], flags [outputs], or number [1]."""
    labels = stated.long() if problem is HeadKind.ONE else stated.float()[None]
    return label_losses(problem, logits, labels).sum()


#: Task -> the loss of one row, given its scorer.
_LOSSES: dict[str, Callable[[Any, Any], Tensor]] = {
    CAUSAL_LM: _text_loss,
    SEQ2SEQ_LM: _pair_loss,
    TEXT_CLASSIFICATION: _labelled_text_loss,
    IMAGE_CLASSIFICATION: _image_loss,
}
