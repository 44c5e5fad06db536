"""Checks that the written model, loaded by transformers, is the trained network and gives the same outputs.

The folder is loaded as users of the model would load it. It must have the same tensors as the saved network, none
missing and none extra, the same configuration, and the outputs of the network that was evaluated, before adapters were
merged and on the device of training.
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

#: The smallest tolerance of outputs, relative to the largest: for the same kind of device, and for another one.
TOLERANCE, TOLERANCE_ELSEWHERE = 1e-4, 1e-3
#: The number of trials with random rounding errors, of which the largest deviation is tolerated.
_TRIALS = 3
#: Synthetic inputs: their number, their tokens, and the pixels per side if the model takes any size.
_ROWS, _TOKENS, _PIXELS = 2, 12, 64
_SEED = 20
#: Keys of a configuration that transformers adds itself.
_NOTES = ("_name_or_path", "architectures", "dtype", "transformers_version")
_ABSENT = object()
_SENTENCE = 'The quick brown fox jumps over 13 lazy dogs; naïve café, Москва, 東京 — what? ("No!")\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswers:
    """The outputs (``answers``, float32, on the CPU) of a network for synthetic ``inputs``, and its ``tokenizer``.

    ``tolerance`` is how much rounding can change the outputs, relative to the largest.
    """

    kind: ModelClass
    inputs: Mapping[str, Tensor]
    answers: Tensor
    tolerance: float
    tokenizer: Any = None

    def require(self, folder: Path, network: nn.Module, output: Path) -> None:
        """Raise InputError unless transformers loads ``folder`` as the saved ``network``, with these outputs.

        Errors name the folder ``output``. On a CPU the weights are mapped from the file, not copied.
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
        except Exception as error:  # users of the model would get the same error, whatever its type
            yield f"transformers cannot load it ({str(error).strip().splitlines()[0] if str(error) else error!r})"
            return
        yield from _loading_problems(info)
        yield from _differences(loaded, network, read_object(folder / "config.json"))
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
        """What is wrong with the tokenizer in ``folder``, if the model has one."""
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


def reference_answers(model: TrainingModel, network: nn.Module) -> ReferenceAnswers:
    """The reference outputs of the ``model``'s ``network``, possibly wrapped. Raises InputError if it fails."""
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
        tolerance=max(
            TOLERANCE if device.type == "cpu" else TOLERANCE_ELSEWHERE, rounding_error(network, inputs, logits)
        ),
        tokenizer=model.tokenizer,
    )


def answers(network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The network's logits for ``inputs``, as float32 on the CPU, without dropout and in full precision."""
    device = next(network.parameters()).device
    moved = {name: tensor.to(device) for name, tensor in inputs.items()}
    modes = evaluation_mode(network), full_precision(device), torch.compiler.set_stance("force_eager")
    with modes[0], modes[1], modes[2], _without_cache(network):
        logits = logits_in(network(**moved))
    return logits.float().cpu()


@contextmanager
def _without_cache(network: Any) -> Iterator[None]:
    """Disable the key-value cache inside the block: it is not needed, and some hybrid networks fail with it."""
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


def rounding_error(network: nn.Module, inputs: Mapping[str, Tensor], expected: Tensor) -> float:
    """An estimate of how much rounding changes the outputs ``expected``, relative to the largest of them.

    Sums over tensors at other addresses may be in another order. If large activations cancel, as in a network trained
    with a high learning rate, the outputs then differ in far more than the last digit. Every layer's outputs are
    perturbed at random by a relative 2^-23, as in stochastic arithmetic (Vignes 1993).
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
    """The largest difference, relative to the largest of ``expected``; infinite if an entry is finite in only one."""
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(actual)):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = expected[finite].abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((actual - expected)[finite].abs().max() / largest)


def _texts(facts: TextFacts) -> dict[str, Tensor]:
    """Rows of random tokens with a fixed seed, the last of them padded."""
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
    """Random noise of the model's length, or of one second if it has none."""
    assert model.sounds is not None
    drawn = np.random.default_rng(_SEED)
    shape = (_ROWS, model.sounds.samples or model.sounds.rate)
    return model.sounds.padded([model.sounds.features(wave) for wave in drawn.standard_normal(shape, np.float32)])


def _loading_problems(info: Mapping[str, Any]) -> Iterator[str]:
    """What transformers reports of missing weights, unexpected ones and ones of other shapes."""
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


def _differences(loaded: Any, network: Any, written: Mapping[str, Any]) -> Iterator[str]:
    """How ``loaded`` differs from ``network``; ``written`` is the saved configuration, to which LeViT adds keys."""
    if type(loaded) is not type(network):
        yield f"transformers makes a {type(loaded).__name__} of it, and a {type(network).__name__} was trained"
        return
    before, after = _settings(network.config), _settings(loaded.config)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) not in (after.get(name), written.get(name, _ABSENT)):
            yield f"its config.json has {name} {after.get(name)!r}, and the network {before.get(name)!r}"
    trained, read = _tensors(network), _tensors(loaded)
    stored = network.state_dict().keys()
    for name in sorted(trained.keys() | read.keys()):
        mine, its = trained.get(name), read.get(name)
        if mine is None or its is None or not _equal(mine, its) or (name in stored and mine.dtype != its.dtype):
            yield f"transformers loads another {name} than the network has{_zeroed(network, mine, its)}"


def _zeroed(network: Any, mine: Tensor | None, its: Tensor | None) -> str:
    """An addition to the message if transformers only zeroes the row of the padding token when it loads (Youtu)."""
    pad = getattr(network.config, "pad_token_id", None)
    if mine is None or its is None or pad is None or mine.dim() != 2 or mine.shape != its.shape or its[pad].any():
        return ""
    same = torch.arange(len(mine)) != pad
    if not _equal(mine.detach().cpu()[same], its.detach().cpu()[same]):
        return ""
    return ", in that it sets the row of the padding token to zero; take pad_token_id out of the model's config.json"


def _settings(config: Any) -> dict[str, Any]:
    """The configuration as JSON values, without the keys that transformers adds itself."""
    settings: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return {name: value for name, value in settings.items() if name not in _NOTES}


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, including those that are not saved."""
    return {**dict(network.named_buffers()), **network.state_dict()}


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether both have the same values; computed constants may be stored in different formats."""
    kind = torch.promote_types(one.dtype, other.dtype)
    return torch.equal(one.detach().cpu().to(kind), other.detach().cpu().to(kind))


def _tokens(tokenizer: Any) -> tuple[Any, ...]:
    """The tokens of a fixed text, and the ids of special tokens."""
    special = " ".join(sorted(set(tokenizer.all_special_tokens)))
    ids = copy.deepcopy(tokenizer)([_SENTENCE, special], truncation=False)["input_ids"]
    return ids, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id
