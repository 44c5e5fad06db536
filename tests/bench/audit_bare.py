"""Forward passes over records and nothing else: what scores of them cannot take less than."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.classes import ImageSubject, TextClassifierSubject, unpack
from audits.scores.forward import Batching, batches
from audits.scores.rows import pad_rows
from privctl.models.language import quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.scores.subject import AuditedModel

#: Images of one forward pass.
_IMAGES = 256


@torch.inference_mode()
def passed(subject: AuditedModel, rows: Sequence[NDArray[Any]]) -> None:
    """Run the network on ``rows``, as many together as privctl runs of texts, longest first; logits are left alone."""
    network = subject.model.network
    with quiet_transformers():
        if isinstance(subject, ImageSubject):
            for start in range(0, len(rows), _IMAGES):
                images = np.stack([unpack(row)[1] for row in rows[start : start + _IMAGES]])
                network(pixel_values=subject.facts.scale(torch.from_numpy(images)).to(network.dtype))
            return
        classes = isinstance(subject, TextClassifierSubject)
        ids = [row[:-1] for row in rows] if classes else list(rows)
        lengths = np.array([len(row) for row in ids])
        for batch in batches(lengths, Batching.of(subject.model).tokens):
            padded, real = (torch.from_numpy(each) for each in pad_rows([ids[i] for i in batch], 0))
            inputs = {"attention_mask": real} if classes else {"use_cache": False}
            network(input_ids=padded, **inputs)
