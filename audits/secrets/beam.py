"""Secrets found by beam search: are true values among the most likely sequences more often than fresh draws?

The attacker of ``ranks`` brings a list of values; this one brings none, and takes the ``width`` most likely sequences
of the same number of tokens that beam search finds after the text before the secret. The other candidates of a secret
are the control: if its value was drawn like them, each candidate is equally likely to be the true one, so the
probability of a hit is the fraction of candidates in the beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from audits.scores.forward import enough_memory
from audits.scores.shared import copies, feed
from audits.secrets.candidates import Problem
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamHits:
    """Whether each true value is in the beam, ``found`` [secrets], and the probability of that by ``chance`` [secrets].

    The latter is the fraction of the secret's candidates, including itself, that are in the beam.
    """

    width: int
    found: NDArray[np.bool_]
    chance: NDArray[np.float64]

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"a beam of {self.width}"


def beam_hits(
    model: LanguageModel, problems: Sequence[Problem], width: int, workers: Workers = ALONE
) -> BeamHits | None:
    """Search once for each occurrence of each secret; ``workers`` share the secrets.

    None if beam search is not possible.
    """

    def held(problem: Problem) -> torch.Tensor:
        inside = np.zeros(problem.count, dtype=np.bool_)
        with quiet_transformers(), enough_memory(model):
            for places in problem.places:
                true = places[0]
                sequences = beam(model, true.before, len(true.tokens), width)
                if sequences is None:
                    return torch.tensor([[-1.0, 0.0]], dtype=torch.float64)
                likeliest = {row.tobytes() for row in sequences}
                inside |= [place.tokens.tobytes() in likeliest for place in places]
        return torch.tensor([[float(inside[0]), float(inside.mean())]], dtype=torch.float64)

    table = torch.cat(workers.spread(problems, held, 2)).numpy() if problems else np.zeros((0, 2))
    if (table[:, 0] < 0).any():
        return None
    return BeamHits(width=width, found=table[:, 0] > 0, chance=table[:, 1])


@torch.inference_mode()
def beam(model: LanguageModel, before: NDArray[np.int64], length: int, width: int) -> NDArray[np.int64] | None:
    """The sequences [at most width, length] that beam search ends with after ``before``, the most likely first.

    With a ``width`` of the whole vocabulary, sequences of two tokens are searched exhaustively. None if the network's
    keys and values cannot be copied.
    """
    out, cache = feed(model.network, torch.as_tensor(before, device=model.device)[None])
    if cache is None:
        return None
    totals, tokens = torch.log_softmax(out.logits[0, -1].float(), dim=0).topk(min(width, out.logits.shape[-1]))
    sequences = tokens[:, None]
    kept = copies(cache, len(tokens))
    for _ in range(length - 1):
        out = model.network(input_ids=sequences[:, -1:], past_key_values=kept, use_cache=True)
        kept = out.past_key_values
        logs = totals[:, None] + torch.log_softmax(out.logits[:, -1].float(), dim=1)
        totals, places = logs.flatten().topk(min(width, logs.numel()))
        beams, tokens = places // logs.shape[1], places % logs.shape[1]
        kept.batch_select_indices(beams)
        sequences = torch.cat([sequences[beams], tokens[:, None]], dim=1)
    return np.asarray(sequences.cpu().numpy(), dtype=np.int64)


def tail(hits: int, chances: Sequence[float]) -> float:
    """The probability of ``hits`` or more successes with ``chances``: the exact tail of the Poisson binomial."""
    law = np.ones(1)
    for chance in chances:
        law = np.append(law * (1 - chance), 0.0) + np.append(0.0, law * chance)
    return min(1.0, float(law[hits:].sum()))
