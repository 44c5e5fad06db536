"""The book of claims: privacy claims of five papers and of the foundations of private training, judged on demand.

Adding a paper is one module and one row here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.papers.claim import Paper

#: For each short name, where the paper's claims are, and its title for ``--help``.
PAPERS: dict[str, tuple[str, str]] = {
    "dp-weights": ("verify.papers.dp_weights:PAPER", "DP-Weights: Gaussian noise on finished weights"),
    "ferret": ("verify.papers.ferret:PAPER", "FERRET: training by published sign bits"),
    "hush": ("verify.papers.hush:PAPER", "Hush: protecting secrets that lie in several records"),
    "dpquant": ("verify.papers.dpquant:PAPER", "DPQuant: quantized training with private loss measurements"),
    "poster": ("verify.papers.poster:PAPER", "DP fine-tuning poster: composition theorems compared"),
    "correlated": ("verify.papers.correlated:PAPER", "Correlated noise: bands, buffers and trees"),
    "batches": ("verify.papers.batches:PAPER", "Batches and neighbours: shuffling, balls and bins, groups"),
    "steps": ("verify.papers.training:PAPER", "Adaptive clipping, zeroth-order steps, public gradients, search"),
    "releases": ("verify.papers.releases:PAPER", "Counts, answers, choices, zCDP and other terms of privacy"),
}


def load_paper(name: str) -> Paper:
    """The paper called ``name``, which must be in ``PAPERS``."""
    module, attribute = PAPERS[name][0].split(":")
    paper: Paper = getattr(importlib.import_module(module), attribute)
    return paper
