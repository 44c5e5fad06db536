"""One private training of ``finetune``: by which method and settings, run by what ``privctl retrain`` calls."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.train.settings.method_settings import MethodSettings
    from tests.bench.finetune_model import Made

DELTA = 1e-5
#: Tokens of a private record; what is longer is cut.
MAX_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is compared. ``method`` as ``privctl retrain`` has it, ``settings`` its own by their fields' names.

    ``epsilon`` is in nats for FERRET's published signs, None for a run without privacy; ``batch`` is the expected
    size. ``rate`` is the learning rate with which tuning begins. ``tune`` names the cell whose rate this one takes,
    ``base`` the one that it is compared with.
    """

    name: str
    method: str
    epsilon: float | None
    batch: int
    rate: float = 1e-3
    tune: str | None = None
    base: str | None = None
    epochs: float = 3
    train: tuple[str, ...] = ()
    optimizer: str = "adamw"
    settings: Mapping[str, Any] = field(default_factory=dict)


def trained(cell: Cell, pretrained: Made, rate: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train once; what came of it. Runs of one ``seed`` draw the same batches and the same noise where they can."""
    from privctl.train.preparation.prepare import prepare
    from privctl.train.run import run_training
    from privctl.train.settings.session import Session

    output = folder / "trained"
    remove(output)  # which a stopped run left
    began = time.process_time()
    with coins(seed):
        report = run_training(prepare(_request(cell, pretrained, rate, seed, output)), Session())
    assert report is not None
    remove(output)
    return {
        "cell": cell.name,
        "learning_rate": rate,
        "seed": seed,
        **losses_of(report),
        "seconds": time.process_time() - began,
        **_privacy(report),
    }


def remove(output: Path) -> None:
    """The model with what lies beside it."""
    for path in output.parent.glob(output.name + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def coins(seed: int) -> Iterator[None]:
    """Inside, what is drawn from the operating system depends on ``seed`` and on the code that asks for it.

    So two ways of choosing layers have the same batches and deviates, and differ by nothing but the layers.
    """
    asked = Counter[str]()

    def urandom(size: int) -> bytes:
        frame = sys._getframe(1)
        while frame.f_back is not None and "randomness" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_code.co_name == "shared_source" and frame.f_back is not None and _measures(frame.f_back):
            frame = frame.f_back
        place = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        asked[place] += 1
        return hashlib.shake_256(f"{seed} {place} {asked[place]}".encode()).digest(size)

    with patch.object(os, "urandom", urandom):
        yield


def _measures(frame: FrameType) -> bool:
    """Whether it asks for a measurement's batches, which are drawn beside the training's."""
    return "dpquant" in str(frame.f_globals.get("__name__"))


def _request(cell: Cell, pretrained: Made, rate: float, seed: int, output: Path) -> Any:
    from privctl.domain.mechanism import Optimizer
    from privctl.models.choices import LongTextPolicy
    from privctl.train.methods import method_named
    from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest

    released = cell.settings.get("release", "published") if cell.method == "ferret" else ""
    delta = None if cell.epsilon is None or released == "published" else DELTA
    own = _settings(cell, pretrained, seed)
    return RetrainRequest(
        method=method_named(cell.method),
        model=ModelRequest(path=pretrained.model, train=cell.train),
        data=DataRequest(
            train=pretrained.members, held_out=pretrained.held_out, long=LongTextPolicy.TRUNCATE, max_length=MAX_LENGTH
        ),
        budget=BudgetRequest(epsilon=cell.epsilon, delta=delta),
        output=output,
        epochs=cell.epochs,
        batch_size=cell.batch,
        learning_rate=rate,
        optimizer=Optimizer(cell.optimizer),
        micro_examples=128,
        micro_tokens=4096,
        seed=seed,
        device="cpu",
        force=True,
        **({} if own is None else {"settings": own}),
    )


def _settings(cell: Cell, pretrained: Made, seed: int) -> MethodSettings | None:
    from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode, Sensitivity
    from privctl.train.methods.ferret.settings import FerretSettings, Publish, ReleaseKind, UpdateScale
    from privctl.train.settings.choices import FormatName

    kinds = {"release": ReleaseKind, "publish": Publish, "update_scale": UpdateScale, "layers": LayerMode}
    kinds["sensitivity"] = Sensitivity
    options = {name: kinds[name](value) if name in kinds else value for name, value in cell.settings.items()}
    if "public_records" in options:
        options["public_records"] = getattr(pretrained, options["public_records"])
    public = seed.to_bytes(16, "big")
    if cell.method == "ferret":
        return FerretSettings(public_seed=public, **options)
    if cell.method == "dpquant":
        return DpquantSettings(format=FormatName("luq-fp4"), public_seed=public, **options)
    return None


def losses_of(report: PrivacyReport) -> dict[str, Any]:
    """Held-out losses in nats a token: before the training, after it, and after each epoch."""
    found = next(e for e in report.evidence if e.quantity == "held-out loss, nats")
    assert found.details is not None
    epochs = [value for name, value in found.details.items() if name.startswith("epoch")]
    return {"before": found.details["before"], "loss": found.estimate, "epochs": epochs}


def _privacy(report: PrivacyReport) -> dict[str, Any]:
    kept = ("noise_multiplier", "updates", "fired", "fired_steps", "number_of_groups", "epsilon_share_of_measurements")
    found = {name: report.parameters[name] for name in kept if report.parameters.get(name) is not None}
    if shares := report.parameters.get("low_precision_share"):
        found["low_precision_share"] = mean(shares)
        found["quantized"] = [each["quantized"] for each in report.parameters["layer_schedule"]]
    if report.guarantees:
        found["epsilon"], found["delta"] = report.guarantees[0].epsilon, report.guarantees[0].delta
    return found


def _ferret(name: str, rate: float, **others: Any) -> Cell:
    """With noise, for a guarantee."""
    settings = {"release": "gaussian", **others.pop("settings", {})}
    options = {"epsilon": 8, "batch": 10, "base": "ferret", **others}
    return Cell(name=name, method="ferret", rate=rate, settings=settings, **options)


def _many(directions: int, publish: str = "value") -> Cell:
    """Several directions a tensor."""
    return _ferret(
        f"ferret, {directions} directions, {publish}s", 0.005, batch=40, optimizer="sgd",
        base="ferret, all fire, values",
        settings={"publish": publish, "update_scale": "root-dimension", "directions": directions},
    )  # fmt: skip


def _quantized(name: str, layers: str, **settings: Any) -> Cell:
    prefix = _BY_COMPUTE if "compute_target" in settings else _BY_COUNT
    base = f"{prefix}random" if layers == "dpquant" else "dp-sgd"
    return Cell(
        name=name, method="dpquant", epsilon=8, batch=256, tune="dp-sgd", base=base,
        settings={"layers": layers, **settings},
    )  # fmt: skip


def _chosen(prefix: str, **amount: float) -> tuple[Cell, ...]:
    """Every way to choose an amount of layers."""
    return (
        _quantized(f"{prefix}random", "random", **amount),
        _quantized(f"{prefix}static", "static", **amount),
        _quantized(f"{prefix}dpquant", "dpquant", **amount, sensitivity="private"),
        _quantized(f"{prefix}dpquant, synthetic inputs", "dpquant", **amount),
        _quantized(f"{prefix}dpquant, public records", "dpquant", **amount, public_records="public"),
    )


_BY_COMPUTE, _BY_COUNT = "4 bits, 75 % of multiply-adds, ", "4 bits, 75 % of layers, "
_VALUES = {"publish": "value", "update_scale": "root-dimension"}
_ALWAYS = {"fire_probability": 1.0}
_SMALL = ("*ln_*", "*bias")

CELLS = (
    Cell(name="plain", method="plain", epsilon=None, batch=64),
    Cell(name="dp-sgd", method="dp-sgd", epsilon=8, batch=256),
    Cell(name="dp-sgd, norms and biases", method="dp-sgd", epsilon=8, batch=256, rate=4e-3, train=_SMALL),
    Cell(name="ferret, published, 2 nats", method="ferret", epsilon=2, batch=10, rate=6e-5, base="dp-sgd"),
    _ferret("ferret", 6e-5, base="dp-sgd"),
    _ferret("ferret, all fire", 2e-4, settings=_ALWAYS),
    _ferret("ferret, all fire, values", 0.005, batch=40, optimizer="sgd", settings=_ALWAYS | _VALUES),
    _many(16),
    _many(64),
    _many(64, publish="sign"),
    _ferret("ferret, all fire, norms and biases", 1e-3, train=_SMALL, settings=_ALWAYS),
    _quantized("4 bits, all layers", "all"),
    *_chosen(_BY_COMPUTE, compute_target=0.75),
    *_chosen(_BY_COUNT, fraction=0.75),
)
