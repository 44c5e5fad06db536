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
    *("references", "exact", "shadow", "task", "resize", "train", "held_out", "prefix_tokens", "suffix_tokens"),
    *("least_prefix", "temperature", "top_k", "top_p", "queries", "query_probability"),
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
    *("keep_scores", "cache", "no_cache", "device", "log", "leaks", "text_column", "label_column"),
)
#: Options that always have a value -> the value that they have if they are not given.
DEFAULTS = {"temperature": 1.0, "queries": 100, "query_probability": 0.5, "least_auc": 0.55}


def every_option(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` of one subcommand, with those of the others set to None."""
    return {**dict.fromkeys((*OF_A_MODEL, "claim", "delta", "least_auc")), **options}


def is_given(name: str, value: Any) -> bool:
    """Whether the option ``name`` has another ``value`` than if it is left out; ``--no-exact`` is False."""
    if value is None or value == () or (value is False and name != "exact"):
        return False
    return name not in DEFAULTS or value != DEFAULTS[name]


def flag_of(name: str) -> str:
    """The command-line flag of the option ``name``."""
    return "--attack" if name == "attacks" else f"--{name.replace('_', '-')}"
