"""The options of ``privctl audit``, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Options that require a model and do not apply to an audit of scores.
OF_A_MODEL = (
    *(
        "members",
        "nonmembers",
        "split",
        "extraction_split",
        "attacks",
        "thorough",
        "group_by",
        "max_length",
        "reference",
        "canaries",
        "commitment",
        "canary_data",
    ),
    *("references", "exact", "shadow", "task", "resize", "train", "held_out", "least_prefix", "top_k", "top_p"),
    *(
        "greedy_only",
        "exact_only",
        "adversarial",
        "adversarial_budget",
        "adversarial_tokens",
        "prompts",
        "divergence",
        "continuations",
        "continuation_tokens",
        "sampling_seed",
        "records",
        "secrets",
        "data",
        "held_out_secrets",
        "held_out_data",
        "plan",
        "base",
        "base_bits",
        "precision",
        "candidates",
        "most_secrets",
        "beam",
    ),
    *("keep_scores", "cache", "no_cache", "device", "log", "leaks"),
)


def every_option(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` of one subcommand, with those of the others set to None."""
    return {**dict.fromkeys((*OF_A_MODEL, "claim", "delta", "text_column", "label_column")), **options}


def flag_of(name: str) -> str:
    """The command-line flag of the option ``name``."""
    return "--attack" if name == "attacks" else f"--{name.replace('_', '-')}"
