"""How large a model may be: peak memory of a training step over its parameters, by every method, and a fit of it.

A GPT-2 of a few widths makes one step in a fresh process for each way of training. FERRET's step is one in which the
token embedding fires, the tensor that lies earliest and is among the largest: the derivative, and the update. With
AdamW every group has fired before, so that all moments are kept. Peaks are fitted by what they are made of, a constant,
the parameters and the width (activations); how many parameters fit into a limit is extrapolated
from that, and for some ways measured at that very size.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.bench.common import count_what_is_held, forget_peak, forked, status_mib

if TYPE_CHECKING:
    from torch import nn

WIDTHS = (256, 384, 512, 768)
LAYERS, HEAD, EXAMPLES, POSITIONS = 6, 64, 4, 128
INFERENCE, PLAIN, DP_SGD = "inference", "plain, adamw", "dp-sgd, adamw"
METHODS = ("difference", "forward", "partial", "backward")
OPTIMIZERS = ("sgd", "adamw")
WAYS = (
    INFERENCE,
    *(f"ferret {method}, sgd" for method in METHODS),
    "ferret difference, adamw",
    PLAIN,
    DP_SGD,
)
#: Ways whose peak is also measured at the size that the fit allows.
CHECKED = ("ferret difference, sgd", "ferret difference, adamw", DP_SGD)

#: Bytes of a parameter itself.
_WEIGHT = 4.0
_MODULES = (
    "scipy.optimize",
    "transformers.models.gpt2.modeling_gpt2",
    "torch._decomp.decompositions_for_jvp",
    "privctl.train.steps.gradient_noise",
    "privctl.train.clipping",
    "privctl.train.directional",
    "privctl.train.methods.ferret.update",
)

Step = Callable[[], object]


def largest(limit_mib: float) -> dict[str, Any]:
    """Peaks by width, their fits, and the most parameters that fit into ``limit_mib`` beside the libraries."""
    for module in _MODULES:  # so that they count in no one's memory
        import_module(module)
    sizes = {width: parameters(width) for width in WIDTHS}
    variants: dict[str, Any] = {}
    for variant in WAYS:
        peaks = {width: _measured(variant, width) for width in WIDTHS}
        found = fit([(sizes[width], width, peak) for width, peak in peaks.items()])
        width = widest(found, limit_mib)
        variants[variant] = {
            "peak_mib": list(peaks.values()),
            **found,
            "extrapolated": {"width": width, "parameters": parameters(width), "peak_mib": _predicted(found, width)},
        }
        if variant in CHECKED:
            variants[variant]["measured_there_mib"] = _measured(variant, width)
    return {
        "limit_mib": limit_mib,
        "layers": LAYERS,
        "examples": EXAMPLES,
        "positions": POSITIONS,
        "widths": list(WIDTHS),
        "parameters": list(sizes.values()),
        "ways": variants,
    }


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Of the table of the bench: peak at the greatest width, that by inference, and what the fit says."""
    lines = []
    base = found["ways"][INFERENCE]["peak_mib"][-1]
    shape = f"GPT-2 {LAYERS}x{found['widths'][-1]}, {found['parameters'][-1] / 1e6:.0f} M"
    for variant, one in found["ways"].items():
        peak, there = one["peak_mib"][-1], one["extrapolated"]
        memory = f"largest in {found['limit_mib']:.0f} MiB by fit (off {one['residual']:.1%}): "
        memory += f"{there['parameters'] / 1e6:.0f} M"
        if "measured_there_mib" in one:
            memory += f", measured there {one['measured_there_mib']:.0f} MiB"
        lines.append([shape, f"{variant}; {memory}", "-", f"{peak:.0f}", f"{peak / base:.2f}"])
    return lines


def fit(points: Sequence[tuple[int, int, float]]) -> dict[str, Any]:
    """Of (parameters, width, peak MiB): bytes a parameter, MiB a width, MiB in all cases; ``residual`` is the largest.

    The residual is relative. Nothing is negative, and a parameter takes its own four bytes at least.
    """
    import numpy as np
    from scipy.optimize import nnls

    peaks = np.array([peak for _, _, peak in points])
    parts = np.array([[count / 2**20, width, 1.0] for count, width, _ in points]) / peaks[:, None]
    least = np.array([_WEIGHT, 0.0, 0.0])
    found = least + nnls(parts, 1 - parts @ least)[0]
    return {
        "bytes_a_parameter": float(found[0]),
        "mib_a_width": float(found[1]),
        "mib": float(found[2]),
        "residual": float(np.abs(parts @ found - 1).max()),
    }


def widest(found: Mapping[str, float], limit_mib: float) -> int:
    """The greatest width, a multiple of ``HEAD``, whose predicted peak is within the limit."""
    width = HEAD
    while _predicted(found, width + HEAD) <= limit_mib and width < 1 << 16:
        width += HEAD
    return width


def _predicted(found: Mapping[str, float], width: int) -> float:
    return found["bytes_a_parameter"] * parameters(width) / 2**20 + found["mib_a_width"] * width + found["mib"]


def parameters(width: int) -> int:
    """Of the model of this ``width``."""
    from tests.bench.dp_sgd_shapes import VOCABULARY

    block = 12 * width * width + 13 * width
    return LAYERS * block + (2 * VOCABULARY + POSITIONS + 2) * width


def model(width: int) -> nn.Module:
    """A GPT-2 with an output layer of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.bench.dp_sgd_shapes import VOCABULARY

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=width, n_layer=LAYERS, n_head=width // HEAD,
            tie_word_embeddings=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
            eos_token_id=1, use_cache=False,
        )
    )  # fmt: skip


def _measured(variant: str, width: int) -> float:
    found = forked(lambda: {"mib": _peak(variant, width)})
    print(f"{variant}, width {width}: {found}", file=sys.stderr, flush=True)
    return float(found.get("mib", math.nan))


def _peak(variant: str, width: int) -> float:
    """The most memory of a step that is not the first, above what the libraries take, in MiB."""
    count_what_is_held()
    before = status_mib("VmRSS")
    step = _step(variant, width)
    step()
    gc.collect()
    forget_peak()
    step()
    return status_mib("VmHWM") - before


def _step(variant: str, width: int) -> Step:
    import torch

    from tests.bench.dp_sgd_parties import BASE, OURS, PARTIES, Work
    from tests.bench.dp_sgd_shapes import SHAPES

    torch.manual_seed(0)
    network, shape = model(width), SHAPES["GPT-2 6x512"]
    if sum(p.numel() for p in network.parameters()) != parameters(width):
        raise ValueError(f"the model of width {width} has not {parameters(width)} parameters")
    batch = shape.batch(EXAMPLES, POSITIONS)
    work = Work(
        model=network, losses_of=lambda called: shape.losses(called, batch), count=EXAMPLES, clip=1.0, noise=1.0,
        device=torch.device("cpu"), origin=(),
    )  # fmt: skip
    if variant in (PLAIN, DP_SGD):
        return PARTIES[BASE if variant == PLAIN else OURS](work)
    if variant == INFERENCE:
        return lambda: _inferred(work)
    method, optimizer = variant.removeprefix("ferret ").split(", ")
    return _fired(work, method, optimizer)


def _inferred(work: Any) -> None:
    import torch

    with torch.no_grad():
        work.losses_of(work.model)


def _fired(work: Any, method: str, optimizer: str) -> Step:
    """What a step of FERRET-MAX does in which the first tensor fires; all have fired before."""
    from privctl.domain.mechanism import Optimizer
    from privctl.train.directional import Derivatives, FiredGroup, direction
    from privctl.train.methods.ferret.groups import trainable
    from privctl.train.methods.ferret.publish import signs
    from privctl.train.methods.ferret.update import UpdateRule, Updates

    named = trainable(work.model)
    names = list(named)
    rule = UpdateRule(steps=len(names) + 8, learning_rate=1e-5, optimizer=Optimizer(optimizer))
    updates = Updates(named, [(name,) for name in names], rule, [1] * len(names))
    derivatives, steps = Derivatives(work.model, method), iter(range(rule.steps))

    def publish(place: int, amount: float | None) -> None:
        step, name = next(steps), names[place]
        updates.catch_up(step)
        along = direction(b"bench", step, place, {name: named[name].shape})
        if amount is None:
            fired = [FiredGroup(index=place, parameters=(name,))]
            amount = float(signs(derivatives.batch(lambda: work.losses_of(work.model), fired, [along]))[0])
        updates.apply(step, place, along, amount)

    for place in range(len(names)):
        publish(place, 1.0)
    return lambda: publish(0, None)
