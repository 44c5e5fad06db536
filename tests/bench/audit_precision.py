"""Audits in bfloat16 beside float32: how long scores take, and what attacks lose.

Targets are those of ``audit-peers`` in ``--folder``, and one of greater width that is trained here. On each, bare
passes in float32 and privctl's scores in both formats take turns; attacks that score a record by itself are compared
on the same records. ``networks`` have random weights: of these the passes alone are timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.audit_targets import SOURCES, Source
from tests.bench.common import RESULTS, ROOT, publish, save

_DATA = ROOT.parent / "shared" / "data"
#: Source and training of each target that is compared; one of each source.
TARGETS = (("sentences", "plain"), ("images", "plain"), ("dialogues", "clipped"), ("commands", "plain"))
#: The target of greater width: what it is called, the source of its records, and how it is made.
WIDE, WIDE_SOURCE = "commands, width 512", "commands"
_WIDE_SHAPE = {
    "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
_WIDE_TRAINING = {"epochs": 4, "learning_rate": 0.001, "batch_size": 32, "from_scratch": True}
_VOCABULARY = 2048
_PARTS = ["targets", "wide", "networks"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the shared data")
    parser.add_argument("--folder", type=Path, required=True, help="where audit-peers keeps its targets")
    parser.add_argument("--rounds", type=int, default=5, help="in which everything takes turns")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="others keep their result")


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    import torch

    torch.set_num_threads(1)
    sources = {source.name: source for source in SOURCES}
    if "targets" in options.parts:
        for name, method in TARGETS:
            target = sources[name].target(options.folder, method)
            _keep(options, "targets", {f"{name}, {method}": measured(sources[name], target, options)})
    if "wide" in options.parts:
        source = sources[WIDE_SOURCE]
        _keep(options, "targets", {WIDE: measured(source, _wide(source, options), options)})
    if "networks" in options.parts:
        _keep(options, "networks", {name: timed(make, options.rounds) for name, make in _networks().items()})
    data = _known(options)
    targets, networks = data.get("targets", {}), data.get("networks", {})
    rows = [
        [name, f"{each['bare_seconds']:.3g}", f"{each['float32']:.2f}", f"{each['bfloat16']:.2f}",
         ", ".join(f"{attack} {found['difference']:+.4f}" for attack, found in each.get("attacks", {}).items())]
        for name, each in {**targets, **networks}.items()
    ]  # fmt: skip
    headings = ["target", "bare float32, s", "float32", "bfloat16", "AUC, bfloat16 less float32"]
    publish("audit-precision", headings, rows, data, options.output)


def _known(options: argparse.Namespace) -> dict[str, Any]:
    """What is stored."""
    path = Path(options.output) if options.output else RESULTS / "audit-precision.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: each for name, each in found.items() if name in ("instructions", "targets", "networks")}


def _keep(options: argparse.Namespace, part: str, found: Mapping[str, Any]) -> None:
    """Store what was ``found`` of one part, beside what is there."""
    known = _known(options)
    whole = {**known, "instructions": _instructions(), part: {**known.get(part, {}), **found}}
    save("audit-precision", whole, options.output)


def measured(source: Source, target: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Processor seconds by bare passes in float32, what scores take of these, and AUCs in both formats."""
    from audits.membership.records import prepare
    from audits.scores.subject import load_subject, read
    from privctl.models.choices import FloatFormat
    from tests.bench.audit_bare import passed

    subject = load_subject(target, device="cpu")
    rounded = load_subject(target, device="cpu", precision=FloatFormat.BFLOAT16)
    sides = [source.side(options.folder, side) for side in ("members", "nonmembers")]
    rows = prepare(subject, *(read(subject, side) for side in sides)).rows
    spent = in_turns(
        {
            "bare": lambda: passed(subject, rows),
            "float32": lambda: subject.scorer.score(rows),
            "bfloat16": lambda: rounded.scorer.score(rows),
        },
        options.rounds,
    )
    return {**spent, "records": len(rows), "attacks": compared(target, sides, options)}


def in_turns(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    """The median processor seconds of the first way, and by a round's median and extremes what others take of it."""
    spent: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(rounds + 1):
        for name, variant in variants.items():
            began = time.process_time()
            variant()
            if i:  # the first round warms up
                spent[name].append(time.process_time() - began)
    first, *others = variants
    found: dict[str, Any] = {f"{first}_seconds": median(spent[first])}
    for name in others:
        ratios = [one / base for one, base in zip(spent[name], spent[first], strict=True)]
        found |= {name: median(ratios), f"{name}_range": [min(ratios), max(ratios)]}
    return found


def compared(target: Path, sides: list[Path], options: argparse.Namespace) -> dict[str, Any]:
    """By attack the AUCs in both formats and their difference, with its interval by DeLong's for pairs (95 %)."""
    from audits.record_scores.parts import attacks_in, read_parts
    from audits.record_scores.scoring import ScoringRequest, score_records
    from audits.statistics.metrics import auc
    from privctl.domain.progress import unseen
    from privctl.models.choices import FloatFormat
    from tests.bench.paired_areas import area_difference

    found = {}
    for precision in FloatFormat:
        output = options.folder / f"{precision}.parquet"
        request = ScoringRequest(
            model=target, members=sides[0], nonmembers=sides[1], output=output, device="cpu", precision=precision,
            force=True,
        )  # fmt: skip
        score_records(request, unseen)
        found[precision] = read_parts([output], "id", "member", attacks_in([output]))
    before, after = found[FloatFormat.FLOAT32], found[FloatFormat.BFLOAT16]
    attacks = {}
    for name in before.scores:
        pairs = [(each.scores[name][each.member], each.scores[name][~each.member]) for each in (after, before)]
        apart, _, interval = area_difference(*pairs)
        attacks[name] = {
            "float32": auc(*pairs[1]).value, "bfloat16": auc(*pairs[0]).value, "difference": apart, **interval,
        }  # fmt: skip
    return attacks


def _wide(source: Source, options: argparse.Namespace) -> Path:
    """A language model of greater width, trained from random weights unless it is there."""
    import shutil

    import privctl

    folder = options.folder / source.name
    start, target = folder / "wide-start", folder / "wide"
    if not target.exists():
        start.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(options.data / "stories260k" / name, start / name)
        config = json.loads((options.data / "stories260k" / "config.json").read_text())
        (start / "config.json").write_text(json.dumps({**config, **_WIDE_SHAPE}))
        privctl.retrain("plain", start, data=source.side(options.folder, "members"), output=target, **_WIDE_TRAINING)
    return target


def _networks() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """Networks of random weights, each with what it is run on."""
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ResNetConfig,
        ResNetForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    def text(network: Any) -> tuple[Any, dict[str, Any]]:
        return network, {"input_ids": torch.randint(0, _VOCABULARY, (8, 128)), "use_cache": False}

    def image(network: Any) -> tuple[Any, dict[str, Any]]:
        return network, {"pixel_values": torch.rand(64, 3, 32, 32)}

    def gpt2(width: int) -> tuple[Any, dict[str, Any]]:
        heads = max(1, width // 64)
        shape = {"vocab_size": _VOCABULARY, "n_positions": 256, "n_embd": width, "n_layer": 2, "n_head": heads}
        return text(GPT2LMHeadModel(GPT2Config(**shape)))

    def llama(width: int) -> tuple[Any, dict[str, Any]]:
        shape = {"hidden_size": width, "intermediate_size": 11 * width // 4, "num_attention_heads": max(1, width // 64)}
        return text(LlamaForCausalLM(LlamaConfig(vocab_size=_VOCABULARY, num_hidden_layers=2, **shape)))

    def vit(width: int) -> tuple[Any, dict[str, Any]]:
        shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
        config = ViTConfig(image_size=32, patch_size=4, num_hidden_layers=2, num_labels=10, **shape)
        return image(ViTForImageClassification(config))

    def resnet(width: int) -> tuple[Any, dict[str, Any]]:
        sizes = [width // 4, width // 2, width]
        config = ResNetConfig(
            embedding_size=width // 4, hidden_sizes=sizes, depths=[1, 1, 1], layer_type="basic", num_labels=10
        )
        return image(ResNetForImageClassification(config))

    cases = [(gpt2, 64), (gpt2, 128), (gpt2, 256), (gpt2, 768), (llama, 64), (llama, 256), (llama, 512), (llama, 1024)]
    cases += [(vit, 64), (vit, 192), (vit, 384), (resnet, 64), (resnet, 512)]
    names = {gpt2: "GPT-2", llama: "Llama", vit: "ViT", resnet: "ResNet"}
    return {f"{names[make]}, width {width}": lambda make=make, width=width: make(width) for make, width in cases}


def timed(make: Callable[[], tuple[Any, dict[str, Any]]], rounds: int) -> dict[str, Any]:
    """Processor seconds of a pass in float32, and what the same pass takes of these in bfloat16."""
    import copy

    import torch

    from privctl.models.choices import FloatFormat
    from privctl.models.precision import convert

    torch.manual_seed(0)
    network, inputs = make()
    network.eval().requires_grad_(False)
    rounded = copy.deepcopy(network)
    convert(rounded, FloatFormat.BFLOAT16)
    halved = {
        name: each.to(torch.bfloat16) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in inputs.items()
    }
    with torch.inference_mode():
        variants = {"bare": lambda: network(**inputs), "bfloat16": lambda: rounded(**halved)}
        return {"float32": 1.0, **in_turns(variants, 2 * rounds)}


def _instructions() -> list[str]:
    """What PyTorch finds on this processor for products of bfloat16."""
    import torch

    found = getattr(torch.cpu, "get_capabilities", dict)()
    return sorted(name for name, has in found.items() if has is True and "bf16" in name)
