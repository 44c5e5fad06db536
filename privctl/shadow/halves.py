"""A stream of batches for all shadow models, of which each model uses the records in its own half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.domain.progress import Advance
from privctl.parallel import Workers
from privctl.shadow.pool import ShadowPool
from privctl.train.network.adapters import adapted, merged
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import Passes

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn


@dataclass(frozen=True, slots=True)
class HalfBatches:
    """The records of each batch of ``stream`` that are ``included`` [records]. Implements ``BatchSource``."""

    stream: Passes
    included: NDArray[np.bool_]

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``. On average, half of the stream's batch."""
        chosen = self.stream.batch(step)
        return chosen[self.included[chosen]]


def stream_of(pool: ShadowPool) -> Passes:
    """Batches of the whole pool, of twice the requested size, as each model uses its own half of them."""
    training = pool.request.training
    return Passes(len(pool.records), min(2 * training.batch_size, len(pool.records)), training.seed)


def train_one(
    pool: ShadowPool,
    network: nn.Module,
    included: NDArray[np.bool_],
    device: torch.device,
    advance: Advance,
) -> nn.Module:
    """The ``network`` trained on its half. Raises InputError if the training diverges."""
    model = pool.request.training.model
    trained = adapted(network, model, pool.request.training.seed).to(device)
    Trainer(
        network=trained,
        task=pool.task,
        recipe=pool.recipe,
        clipping=None,
        batches=HalfBatches(stream_of(pool), included),
        noise=None,
        workers=Workers(),
        device=device,
        advance=advance,
    ).run()
    return merged(trained, model)
