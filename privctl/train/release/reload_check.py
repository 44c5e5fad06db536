"""Checks that the written model, when loaded by others, is the trained network and gives the same outputs.

A folder is loaded as others load it, by transformers alone. Its tensors must be those of the network that is saved,
none missing and none left over, its configuration the same, and its answers those of the network as it was measured:
adapters not yet merged, on the device it was trained on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from privctl.domain.errors import InputError
from privctl.models.choices import TaskName
from privctl.models.encoding import TextFacts
from privctl.models.guard.keys import read_object
from privctl.models.images import logits_in
from privctl.models.kinds import KINDS, ModelClass
from privctl.models.loading import TrainingModel
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors
from privctl.models.tasks.answers import question_mask, separator_of
from privctl.models.tasks.base import evaluation_mode
from privctl.train.clipping.products import full_precision

#: By how much answers may differ at least, of the largest: rounding on one kind of device, and between two.
TOLERANCE, TOLERANCE_ELSEWHERE = 1e-4, 1e-3
#: How often rounding is tried out; answers may differ by the most that it did.
_TRIALS = 3
#: Synthetic inputs: how many, their tokens, and their pixels per side if the model takes any size.
_ROWS, _TOKENS, _PIXELS = 2, 12, 64
_SEED = 20
#: What transformers notes of itself in a configuration.
_NOTES = ("_name_or_path", "architectures", "dtype", "transformers_version")
_ABSENT = object()
_SENTENCE = 'The quick brown fox jumps over 13 lazy dogs; naïve café, Москва, 東京 — what? ("No!")\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswers:
    """The ``answers`` (float32, on the CPU) of a network to made-up ``inputs``; ``tokenizer`` cuts a made-up text.

    ``tolerance`` is relative to the largest answer: what rounding can do to this network's answers.
    """

    kind: ModelClass
    inputs: Mapping[str, Tensor]
    answers: Tensor
    tolerance: float
    tokenizer: Any = None

    def require(self, folder: Path, network: nn.Module, output: Path) -> None:
        """Raise InputError unless transformers loads ``folder`` as the saved ``network``, with these answers.

        Errors call the folder ``output``. On a CPU the weights are mapped from the file, not copied.
        """
        fault = next(self._faults(folder, network), None)
        if fault is not None:
            raise InputError(
                f"{output} would not be the trained model: {fault}; nothing was written, so check that the installed "
                "transformers fits the model's config.json"
            )

    def _faults(self, folder: Path, network: nn.Module) -> Iterator[str]:
        try:
            with quiet_transformers(), torch.random.fork_rng(devices=[]):
                loaded, info = self.kind.auto.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False, output_loading_info=True
                )
        except Exception as error:  # whatever transformers raises, others will meet it too
            yield f"transformers cannot load it ({str(error).strip().splitlines()[0] if str(error) else error!r})"
            return
        yield from _unfit(info)
        yield from _other_network(loaded, network, read_object(folder / "config.json"))
        yield from self.other_tokens(folder)
        try:
            logits = answers(loaded, self.inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            yield f"loaded by transformers it fails: {error}"
            return
        if logits.shape != self.answers.shape:
            yield f"loaded by transformers it gives {tuple(logits.shape)} answers, not {tuple(self.answers.shape)}"
        elif (far := distance(logits, self.answers)) > self.tolerance:
            yield (
                f"loaded by transformers its answers differ by {far:.2g} of the largest, where {self.tolerance:g} is "
                "rounding"
            )

    def other_tokens(self, folder: Path) -> Iterator[str]:
        """What is wrong with the tokenizer in ``folder``, where one belongs there."""
        if self.tokenizer is None:
            return
        try:
            with quiet_transformers():
                loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
                same = _tokens(loaded) == _tokens(self.tokenizer)
        except Exception as error:
            yield f"transformers cannot load its tokenizer ({error})"
            return
        if not same:
            yield "loaded by transformers its tokenizer makes other tokens of the same text"


def witness_of(model: TrainingModel, network: nn.Module) -> ReferenceAnswers:
    """The witness of ``network``, which is ``model``'s, whatever it is wrapped in. Raises InputError where it fails."""
    device = next(network.parameters()).device
    inputs = _texts(model.text) if model.text is not None else _sounds(model) if model.sounds else _images(model)
    if model.task is TaskName.SEQ2SEQ_LM:
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)
    if model.task is TaskName.QUESTION_ANSWERING:
        separator = separator_of(model.network, model.tokenizer)
        if separator is not None:
            inputs["global_attention_mask"] = question_mask(inputs, separator)
    with network_errors(model.path, network, f"made-up {' and '.join(inputs)}"):
        logits = answers(network, inputs)
    return ReferenceAnswers(
        kind=KINDS[model.task],
        inputs=inputs,
        answers=logits,
        tolerance=max(TOLERANCE if device.type == "cpu" else TOLERANCE_ELSEWHERE, rounding_of(network, inputs, logits)),
        tokenizer=model.tokenizer,
    )


def answers(network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The network's logits for ``inputs``, float32 on the CPU; without dropout, and in full precision."""
    device = next(network.parameters()).device
    moved = {name: tensor.to(device) for name, tensor in inputs.items()}
    modes = evaluation_mode(network), full_precision(device), torch.compiler.set_stance("force_eager")
    with modes[0], modes[1], modes[2], _without_cache(network):
        logits = logits_in(network(**moved))
    return logits.float().cpu()


@contextmanager
def _without_cache(network: Any) -> Iterator[None]:
    """Networks keep no state for later tokens in the block: there are none, and some hybrid ones fail at it."""
    config: Any = getattr(network, "config", None)
    before = getattr(config, "use_cache", None)
    if before is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = before


def rounding_of(network: nn.Module, inputs: Mapping[str, Tensor], expected: Tensor) -> float:
    """By how much rounding moves the answers ``expected``, relative to the largest of them; tried out.

    Tensors at other addresses are summed in another order. Where large activations cancel, as in a network trained at
    a high learning rate, that shows far above the answers' last digit. Every layer's outputs are moved at random by
    2^-23 of their size, as in stochastic arithmetic (Vignes 1993).
    """
    drawn = torch.Generator().manual_seed(_SEED)

    def move(_module: nn.Module, _given: Any, made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point() or not made.numel():
            return made
        noise = torch.randn(made.shape, generator=drawn).to(made)
        return made + noise * made.abs() * torch.finfo(torch.float32).eps

    layers = [module for module in network.modules() if not any(module.children())]
    hooks = [layer.register_forward_hook(move) for layer in layers]
    try:
        return max(distance(answers(network, inputs), expected) for _ in range(_TRIALS))
    finally:
        for hook in hooks:
            hook.remove()


def distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest of ``expected``; infinite where only one is finite."""
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(actual)):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = expected[finite].abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((actual - expected)[finite].abs().max() / largest)


def _texts(facts: TextFacts) -> dict[str, Tensor]:
    """Rows of tokens by a public draw, of which the last is padded."""
    drawn = torch.Generator().manual_seed(_SEED)
    length = min(facts.context or _TOKENS, _TOKENS)
    ids = torch.randint(facts.vocabulary, (_ROWS, length), generator=drawn)
    mask = torch.ones_like(ids)
    ids[-1, -(length // 3) :], mask[-1, -(length // 3) :] = facts.pad, 0
    if facts.once is not None:
        ids[ids == facts.once] = (facts.once + 1) % facts.vocabulary
        ids[:, 0] = facts.once
    return {"input_ids": ids, "attention_mask": mask}


def _images(model: TrainingModel) -> dict[str, Tensor]:
    assert model.images is not None
    size = model.images.size or (_PIXELS, _PIXELS)
    drawn = torch.Generator().manual_seed(_SEED)
    return {"pixel_values": torch.randn(_ROWS, model.images.channels, *size, generator=drawn)}


def _sounds(model: TrainingModel) -> dict[str, Tensor]:
    """A second of noise, where the model states no length."""
    assert model.sounds is not None
    drawn = np.random.default_rng(_SEED)
    shape = (_ROWS, model.sounds.samples or model.sounds.rate)
    return model.sounds.padded([model.sounds.features(each) for each in drawn.standard_normal(shape, np.float32)])


def _unfit(info: Mapping[str, Any]) -> Iterator[str]:
    """What transformers says of weights that it made up, could not use, or found of other shapes."""
    for key, word in (
        ("missing_keys", "finds no"),
        ("unexpected_keys", "has no place for"),
        ("mismatched_keys", "expects another shape of"),
        ("error_msgs", "reports"),
    ):
        names = sorted(str(name) for name in info.get(key) or ())
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"transformers {word} {names[0]}{more}"


def _other_network(loaded: Any, network: Any, written: Mapping[str, Any]) -> Iterator[str]:
    """How ``loaded`` differs from ``network``; ``written`` is its configuration, to which a network may add (LeViT)."""
    if type(loaded) is not type(network):
        yield f"transformers makes a {type(loaded).__name__} of it, and a {type(network).__name__} was trained"
        return
    here, there = _settings(network.config), _settings(loaded.config)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) not in (there.get(name), written.get(name, _ABSENT)):
            yield f"its config.json has {name} {there.get(name)!r}, and the network {here.get(name)!r}"
    trained, read = _tensors(network), _tensors(loaded)
    stored = network.state_dict().keys()
    for name in sorted(trained.keys() | read.keys()):
        mine, its = trained.get(name), read.get(name)
        if mine is None or its is None or not _equal(mine, its) or (name in stored and mine.dtype != its.dtype):
            yield f"transformers loads another {name} than the network has{_zeroed(network, mine, its)}"


def _zeroed(network: Any, mine: Tensor | None, its: Tensor | None) -> str:
    """What else to say where transformers only sets the row of the padding token to zero as it loads it (Youtu)."""
    pad = getattr(network.config, "pad_token_id", None)
    if mine is None or its is None or pad is None or mine.dim() != 2 or mine.shape != its.shape or its[pad].any():
        return ""
    same = torch.arange(len(mine)) != pad
    if not _equal(mine.detach().cpu()[same], its.detach().cpu()[same]):
        return ""
    return ", in that it sets the row of the padding token to zero; take pad_token_id out of the model's config.json"


def _settings(config: Any) -> dict[str, Any]:
    """The configuration as JSON keeps it, without what transformers notes of itself."""
    settings: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return {name: value for name, value in settings.items() if name not in _NOTES}


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are not saved among them."""
    return {**dict(network.named_buffers()), **network.state_dict()}


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether both hold the same numbers; constants that are computed may be stored in two formats."""
    kind = torch.promote_types(one.dtype, other.dtype)
    return torch.equal(one.detach().cpu().to(kind), other.detach().cpu().to(kind))


def _tokens(tokenizer: Any) -> tuple[Any, ...]:
    """What a made-up text becomes, and the ids of special tokens."""
    special = " ".join(sorted(set(tokenizer.all_special_tokens)))
    ids = copy.deepcopy(tokenizer)([_SENTENCE, special], truncation=False)["input_ids"]
    return ids, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id
