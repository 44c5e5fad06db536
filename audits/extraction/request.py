"""The options of an extraction audit."""

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

    Lengths are in tokens; prefix and suffix default to 50, or to what a shorter context permits; the prefix of a pair
    defaults to 0. ``least_prefix`` None leaves out records shorter than prefix and suffix. At most ``records`` are
    drawn from each file under ``seed``; None uses all. To save time, ``greedy_only`` skips sampling and ``exact_only``
    decoding beyond the first mismatch. ``adversary`` also searches prefixes, which takes far longer; ``untargeted``
    continues prompts from outside.

    ``split`` is the manifest of the split that both files belong to; None if privctl did not draw it.
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
