"""The tables of ``docs/scale.md``: memory and cost of trainings, and which mixtures of experts train."""

from __future__ import annotations

import json
from typing import Any

from tests.docs.figures import results
from tests.docs.pages import ROOT, as_table

_GIB = 2**30
#: What tensors may take of a card of 80 GB: a tenth is left to libraries and to what an allocator cannot use.
FITS = 72
#: The language models of transformers whose configuration names experts, and by default has some.
EXPERTS = frozenset({
    "afmoe", "aria_text", "axk1", "axk2", "bailing_hybrid", "cohere2_moe", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "deepseek_v4", "dots1", "dots3_note_text", "ernie4_5_moe", "exaone_moe", "flex_olmo", "flint",
    "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid",
    "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "hy_v4", "inkling2_text", "inkling_text", "jamba", "jetmoe",
    "kimi_linear", "kolibri1", "laguna", "lfm2_moe", "llama4_text", "longcat_flash", "mellum", "mimo_v2_flash",
    "minimax", "minimax_m2", "minimax_m3_vl_text", "mistral4", "mixtral", "nemotron_h", "olmoe", "phimoe",
    "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "qwen4_exp_text", "solar_open", "zaya",
})  # fmt: skip


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    found = results("memory")
    return {
        "memory one card": _one_card(found),
        "memory shards": _in_shards(found),
        "clipping passes": _passes(results("clipping-passes")["counted"]),
        "memory checks": _checks(found),
        "memory shard checks": _shard_checks(found),
        "costs": _costs(found),
        "experts": _experts(),
    }


def _gib(amount: int) -> str:
    gib = amount / _GIB
    return f"**{gib:.1f}**" if gib <= FITS else f"{gib:.0f}"


def _one_card(found: dict[str, Any]) -> str:
    return _memory(found["trainings"], "one_card")


def _in_shards(found: dict[str, Any]) -> str:
    kept = [
        training
        for training in found["trainings"]
        if training["each_of_cards"] is not None and training["checkpointed"]
    ]
    return _memory(kept, "each_of_cards")


def _memory(trainings: list[dict[str, Any]], key: str) -> str:
    """Rows of size and way; columns of micro-batches, without checkpointing and with it."""
    columns = sorted({(training["checkpointed"], training["examples"]) for training in trainings})
    rows: dict[tuple[str, str], dict[tuple[bool, int], int]] = {}
    for training in trainings:
        rows.setdefault((training["size"], training["way"]), {})[training["checkpointed"], training["examples"]] = (
            training[key]
        )
    plain = len({checkpointed for checkpointed, _ in columns}) > 1
    names = [
        f"{examples}{', `--checkpointing`' if checkpointed and plain else ''}" for checkpointed, examples in columns
    ]
    return as_table(
        ["model", "trained", *names],
        [[*row, *(_gib(cells[column]) for column in columns)] for row, cells in rows.items()],
    )


def _passes(counted: list[dict[str, Any]]) -> str:
    """Rows of sizes; one pass beside two for each micro-batch, of one card and of shards."""
    cells = {(one["size"], one["examples"], one["passes"]): one for one in counted}
    examples = sorted({one["examples"] for one in counted})
    rows = [
        [size, *(_gib(cells[size, n, passes][key]) for key in ("one_card", "each_of_cards") for n in examples
                 for passes in (1, 2))]
        for size in dict.fromkeys(one["size"] for one in counted)
    ]  # fmt: skip
    names = [
        f"{n}{where}{', 2 passes' if passes == 2 else ''}"
        for where in ("", " in shards") for n in examples for passes in (1, 2)
    ]  # fmt: skip
    return as_table(["model", *names], rows)


def _checks(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{one['measured_mib']:.0f}", f"{one['counted_mib']:.0f}", f"{100 * one['error']:+.1f} %"]
        for name, one in found["checks"].items()
    ]
    return as_table(["model", "measured peak, MiB", "counted, MiB", "error"], rows)


def _shard_checks(found: dict[str, Any]) -> str:
    rows = [
        [one["model"], str(one["processes"]), f"{one['held_mib']:.0f}", f"{one['computed_mib']:.0f}",
         f"{100 * one['error']:+.1f} %"]
        for one in found["shard_checks"]
    ]  # fmt: skip
    return as_table(["model", "processes", "most held in one, MiB", "computed, MiB", "error"], rows)


def _costs(found: dict[str, Any]) -> str:
    models = found["costs"]["models"]
    variants = list(next(iter(models.values()))["hours"])
    rows = [
        [name, *(f"{one['hours'][variant]:.0f}" for variant in variants), f"{one['update_s']:.3f}"]
        for name, one in models.items()
    ]
    return as_table(["model", *variants, "noise and AdamW, s a step"], rows)


def _experts() -> str:
    outcomes = json.loads((ROOT / "tests" / "zoo" / "outcomes.json").read_text(encoding="utf-8"))
    by_outcome: dict[str, list[str]] = {}
    for task, kind, command, outcome, _ in outcomes:
        if task == "causal-lm" and command == "dp-sgd" and kind in EXPERTS:
            by_outcome.setdefault(outcome, []).append(f"`{kind}`")
    rows = [
        [outcome, str(len(by_outcome[outcome])), ", ".join(sorted(by_outcome[outcome]))]
        for outcome in sorted(by_outcome, reverse=True)
    ]
    return as_table(["`retrain dp-sgd`", "number", "architectures"], rows)
