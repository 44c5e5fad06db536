"""Low-rank adapters (Hu et al. 2021, LoRA) through peft: new or given, merged at the end or released alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from privctl.domain.errors import CommandError
from privctl.models.adapters import on_base, peft_library
from privctl.models.four_bit import in_four_bits
from privctl.models.normalisation import batch_norms, freeze
from privctl.models.quiet import quiet_transformers
from privctl.train.network.merging import merge
from privctl.train.settings.request import ModelRequest

if TYPE_CHECKING:
    from torch import nn
#: Class name suffixes of networks whose head is not a language model's.
_HEADED = (
    "ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForTokenClassification",
    "ForQuestionAnswering",
)  # fmt: skip


def adapted(network: nn.Module, request: ModelRequest, seed: int, device: torch.device | None = None) -> nn.Module:
    """The network with its adapters, and everything else frozen; unchanged if no adapters are requested or given.

    Given adapters are read from their folder; new ones are on all linear layers, initialized from ``seed``. If adapters
    are released alone, a classifier's head is trained and released with them. A base in 4 bits, and its adapters, are
    moved to ``device``. Raises InputError for an adapter that does not fit, and CommandError for settings that do not.
    """
    if request.adapter is None and request.lora_rank is None:
        return network
    training, norms = network.training, batch_norms(network)
    if request.base_bits is not None:
        in_four_bits(network, device or torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        joined = (
            _new(network, request) if request.adapter is None else on_base(network, request.adapter, trainable=True)
        )
    joined.train(training)
    freeze(network, norms)
    wrapped: nn.Module = joined
    return wrapped


def _new(network: nn.Module, request: ModelRequest) -> Any:
    if request.lora_rank is None or request.lora_rank < 1:
        raise CommandError(f"--lora-rank is {request.lora_rank}; it must be at least 1")
    peft = peft_library()
    more: dict[str, Any] = {}
    heads = _heads(network) if request.save_adapter else {}
    if heads:
        more = {"modules_to_save": list(heads), "exclude_modules": [name for names in heads.values() for name in names]}
    settings = peft.LoraConfig(
        r=request.lora_rank, lora_alpha=2 * request.lora_rank, target_modules="all-linear", **more
    )
    try:
        with quiet_transformers():  # peft uses an interface that transformers has deprecated
            return peft.get_peft_model(network, settings)
    except ValueError as error:
        raise CommandError(f"--lora-rank does not fit {request.path}: {str(error).splitlines()[0]}") from None


def _heads(network: Any) -> dict[str, list[str]]:
    """The modules of a classifier outside its body, each with the names of its layers; empty for a language model."""
    if not type(network).__name__.endswith(_HEADED):
        return {}
    return {
        name: [".".join(filter(None, (name, inner))) for inner, m in module.named_modules() if not list(m.children())]
        for name, module in network.named_children()
        if name != network.base_model_prefix and any(True for _ in module.parameters())
    }  # fmt: skip


def merged(network: nn.Module, request: ModelRequest) -> nn.Module:
    """The network to release: with the adapters merged into its weights, or unchanged if they are released alone.

    Raises InputError if a merged layer does not compute what it did with its adapter.
    """
    return network if request.lora_rank is None or request.adapter_only else merge(network)
