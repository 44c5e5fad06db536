"""What an extraction audit is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from audits.extraction.adversarial import Adversary
from audits.extraction.law import SamplingLaw
from audits.extraction.summary import QueryBudget
from audits.extraction.untargeted import UntargetedRequest
from privctl.data.several import DataPath


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """Which texts to extract, how they are cut, and how the model is queried.

    Lengths are in tokens. ``least_prefix`` None leaves out records shorter than prefix and suffix. At most ``records``
    are drawn from each file under ``seed``; None takes all. ``greedy_only`` skips sampling and ``exact_only`` what
    comes after the first mismatch, which is quicker. ``adversary`` searches prefixes too, which takes far longer;
    ``untargeted`` continues prompts from outside. Lengths that are None are 50, or what a shorter context leaves; of a
    pair's prefix it is 0.
    ``split`` is the manifest of the split that both files are of, None where privctl did not draw it.
    """

    train: DataPath
    heldout: DataPath | None = None
    split: Path | None = None
    prefix_tokens: int | None = None
    suffix_tokens: int | None = None
    least_prefix: int | None = None
    law: SamplingLaw = field(default_factory=SamplingLaw)
    queries: QueryBudget = field(default_factory=QueryBudget)
    greedy_only: bool = False
    exact_only: bool = False
    adversary: Adversary | None = None
    untargeted: UntargetedRequest | None = None
    records: int | None = None
    seed: int = 0
