"""What a private step asks of a GPU, counted without one: waits, kernels, bytes copied and bytes held, by ways of it.

*Each looked at* is how steps were made before: every micro-batch was waited for, to see whether all of it was finite,
and a frozen base lay in float32. Models are of no size; counts of kernels and waits do not depend on their widths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import transformers as hf
from torch import Tensor, nn

from privctl.models.encoding import TextFacts
from privctl.models.synthetic import synthetic
from privctl.models.tasks.language import CausalLanguage
from privctl.parallel import Workers
from privctl.train.clipping import Clipping
from privctl.train.directional import direction, directions
from privctl.train.network.half_precision import hold_base
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.epoch_stats import EpochStats
from privctl.train.steps.gradient_noise import GradientNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.precision import FullPrecision, Precision
from privctl.train.steps.sampling import Passes
from tests.bench.common import publish
from tests.bench.emulated import Emulated, emulated
from tests.launches import Launches
from tests.train.contribution.planted import task

_LENGTH, _ROWS, _VOCABULARY = 128, 4, 60
#: Way -> in bfloat16, each micro-batch looked at, frozen base in bfloat16.
WAYS = {
    "float32, checked per micro-batch": (False, True, False),
    "bfloat16, checked per micro-batch": (True, True, False),
    "bfloat16": (True, False, True),
}


def gpt2() -> nn.Module:
    """Two blocks, the output layer tied to the embedding."""
    config = hf.GPT2Config(
        vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=160, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Two blocks, as in a file that stores bfloat16."""
    config = hf.LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=160, intermediate_size=320, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=_LENGTH,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config)
    model.load_state_dict({name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()})
    return model


def llama_with_adapters() -> nn.Module:
    """The same, frozen, under adapters of rank 4."""
    import peft

    model: nn.Module = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules="all-linear"))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT-2 2x160": gpt2,
    "Llama 2x160": llama,
    "Llama 2x160, adapters of rank 4": llama_with_adapters,
}


def texts(count: int) -> CausalLanguage:
    """So many texts of the greatest length."""
    plain = task()
    facts = TextFacts(tokenizer=plain.facts.tokenizer, context=_LENGTH, vocabulary=_VOCABULARY, pad=0)
    corpus = synthetic(CausalLanguage(corpus=plain.corpus, facts=facts), [_LENGTH] * count)
    assert isinstance(corpus, CausalLanguage)
    return corpus


def step(
    model: nn.Module,
    micro_batches: int,
    *,
    bf16: bool,
    looked_at: bool,
    noise: GradientNoise | None = None,
    precision: Precision | None = None,
) -> dict[str, float]:
    """The counts of the second of three steps of so many micro-batches: the first also compares with autograd."""
    examples = _ROWS * micro_batches
    recipe = TrainingSettings(
        method="dp-sgd" if noise else "clipped", noise_multiplier=1.0 if noise else 0.0, steps=3, batch_size=examples,
        sample_rate=0.1, learning_rate=1e-3, micro_examples=_ROWS, bf16=bf16,
    )  # fmt: skip
    found: list[dict[str, float]] = []

    def ended(_: float) -> None:
        found.append(
            {"waits": counted.syncs.total(), "kernels": counted.kernels.total(), "copied": counted.copied,
             "held": counted.tensors.most}
        )  # fmt: skip
        counted.forget()

    with ExitStack() as stack:
        counted: Emulated = stack.enter_context(emulated())
        trainer = Trainer(
            network=model, task=texts(examples), recipe=recipe, clipping=Clipping(norm=0.1),
            batches=Passes(examples, examples, seed=0), noise=noise, workers=Workers(), device=torch.device("cpu"),
            advance=ended, precision=precision or FullPrecision(),
        )  # fmt: skip
        if looked_at:
            trainer._batch._check_each = True
            stack.enter_context(mock.patch.object(EpochStats, "finite_since", return_value=True))
        trainer.run()
    return found[1]


def library_waits(model: nn.Module) -> int:
    """The waits of transformers itself in a forward pass."""
    corpus = texts(_ROWS)
    with torch.no_grad(), Launches() as alone:
        corpus.losses(model, corpus.batch(range(_ROWS), torch.device("cpu"), 0))
    return alone.syncs.total()


def costs(make: Callable[[], nn.Module], micro_batches: int) -> Iterator[tuple[str, dict[str, float]]]:
    """By way: the counts of one micro-batch, and of a step beside its micro-batches."""
    for variant, (bf16, looked_at, held) in WAYS.items():
        torch.manual_seed(0)
        model = make().eval()
        if held:
            hold_base(model)
        larger, smaller = (step(model, n, bf16=bf16, looked_at=looked_at) for n in (micro_batches, micro_batches - 1))
        one = {key: larger[key] - smaller[key] for key in ("waits", "kernels", "copied")}
        yield (
            variant,
            {
                **{f"{key}_a_micro_batch": value for key, value in one.items()},
                "waits_of_transformers": library_waits(model),
                **{f"{key}_a_step_beside": larger[key] - micro_batches * one[key] for key in ("waits", "kernels")},
                "weights_bytes": sum(p.nbytes for p in model.parameters()),
                "most_bytes_held_beside": larger["held"],
            },
        )


def copied_directions(model: nn.Module) -> dict[str, int]:
    """Bytes that a GPU gets where every tensor fires: of bits, and of the numbers that they stand for."""
    copied = 0

    def there(tensor: Tensor, _: torch.device) -> Tensor:
        nonlocal copied
        copied += tensor.nbytes
        return tensor

    shapes = [{name: parameter.shape} for name, parameter in model.named_parameters()]
    with mock.patch.object(directions, "moved", there):
        for index, shape in enumerate(shapes):
            direction(b"bench", 0, index, shape, "cuda")
    return {"numbers": 4 * sum(math.prod(s) for shape in shapes for s in shape.values()), "bits": copied}


def count(micro_batches: int, output: str | None) -> None:
    """Count and publish; the larger of two steps has so many micro-batches."""
    from tests.bench.device_methods import attentions, methods, noises

    found: dict[str, dict[str, Any]] = {}
    rows: list[Sequence[str]] = []
    for name, make in MODELS.items():
        found[name] = dict(costs(make, micro_batches))
        for variant, cost in found[name].items():
            rows.append([name, variant, *(f"{value:,.0f}" for value in cost.values())])
    headings = ["model", "way", *(key.replace("_", " ") for key in next(iter(found[name].values())))]
    data = {
        "rows_a_micro_batch": _ROWS,
        "tokens_a_row": _LENGTH,
        "models": found,
        "directions": {name: copied_directions(make()) for name, make in MODELS.items() if "adapters" not in name},
    }
    print(data["directions"])
    torch.set_num_threads(1)
    data |= {"methods": methods(micro_batches), "noise": noises(), "attention": attentions()}
    for name in ("methods", "noise", "attention"):
        print(json.dumps(data[name], indent=1))
    publish("device", headings, rows, data, output)
