"""Train one cell by the functions behind ``privctl retrain dpquant``, and read its report."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from examples.dpquant.records import Task
from examples.dpquant.settings import DELTA, EPSILON, FORMAT, TRAININGS, Cell
from examples.harness.commands import remove_model
from examples.harness.results import Row
from privctl.domain.guarantee import Status
from privctl.domain.report import PrivacyReport
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.show.progress import progress
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.run import run_dpquant
from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode, Sensitivity
from privctl.train.preparation.prepare import prepare
from privctl.train.run import run_training
from privctl.train.settings.choices import FormatName
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.settings.session import Session


def measured(task: Task, cell: Cell, folder: Path) -> Row:
    """Train one cell and return its row of the results. The model is removed afterwards; its report is kept."""
    output = folder / cell.key
    remove_model(output)  # left by a stopped run
    began = time.process_time()
    report = run_dpquant(prepare(_request(task, cell, output)), Session(progress=partial(progress, quiet=True)))
    assert report is not None
    remove_model(output)
    found: Row = {
        "key": cell.key,
        "task": cell.task,
        "private": cell.private,
        "layers": cell.layers,
        "fraction": cell.fraction,
        "seed": cell.seed,
        "seconds": time.process_time() - began,
        "accuracy": estimate(report, "held-out accuracy"),
        "loss": estimate(report, "held-out loss, nats"),
        "low_precision_share": estimate(report, "share of multiply-adds in low precision, mean over epochs"),
        "faster_by_model": estimate(report, "times as fast, on hardware that has the format"),
        "held_out": next(e.samples["examples"] for e in report.evidence if e.quantity == "held-out accuracy"),
    }
    return found | _privacy(report)


def pretrained(task: Task, folder: Path) -> Task:
    """``task`` with a model trained on its public data; unchanged where there is none."""
    if task.public is None:
        return task
    output, settings = folder / f"{task.name}-public", TRAININGS[task.name]
    if not output.exists():
        remove_model(output)  # the state of a stopped run
        request = RetrainRequest(
            method=method_named("plain"),
            model=_model(task),
            data=_data(task, task.public),
            task=TaskName.TEXT_CLASSIFICATION,
            output=output,
            epochs=settings.public_epochs,
            batch_size=settings.plain_batch_size,
            learning_rate=settings.plain_learning_rate,
            device="cpu",
            force=True,
        )
        run_training(prepare(request), Session(progress=partial(progress, quiet=True)))
    return replace(task, model=output, vocabulary=None, public=None)


def estimate(report: PrivacyReport, quantity: str) -> float | None:
    """The estimate of ``quantity`` in the report's evidence; None where there is none."""
    return next((e.estimate for e in report.evidence if e.quantity == quantity), None)


def _privacy(report: PrivacyReport) -> Row:
    if not report.guarantees:
        return {"epsilon": None}
    claimed = next((g for g in report.guarantees if g.status is Status.CLAIMED), None)
    return {
        "epsilon": report.guarantees[0].epsilon,
        "noise_multiplier": report.parameters["noise_multiplier"],
        "share_of_measurements": report.parameters.get("epsilon_share_of_measurements"),
        "claimed": None if claimed is None else {"epsilon": claimed.epsilon, "follows": claimed.follows},
        "last_chances": report.parameters.get("last_chances"),
        "layer_names": report.parameters["layer_names"],
    }


def _request(task: Task, cell: Cell, output: Path) -> RetrainRequest:
    """The request for a training. Its seed fixes initial weights, orders, draws of layers and rounding, not noise."""
    settings = TRAININGS[cell.task]
    return RetrainRequest(
        method=method_named("dpquant" if cell.private else "plain"),
        model=_model(task),
        data=_data(task, task.train),
        task=TaskName.TEXT_CLASSIFICATION if _is_text(task) else TaskName.IMAGE_CLASSIFICATION,
        budget=BudgetRequest(epsilon=EPSILON, delta=DELTA) if cell.private else BudgetRequest(),
        settings=DpquantSettings(
            format=FormatName(FORMAT),
            layers=LayerMode(cell.layers),
            sensitivity=Sensitivity.PRIVATE if cell.layers == LayerMode.DPQUANT else None,
            fraction=cell.fraction,
            public_seed=cell.seed.to_bytes(16, "big"),
        ),
        output=output,
        epochs=settings.epochs if cell.private else settings.plain_epochs,
        batch_size=settings.batch_size if cell.private else settings.plain_batch_size,
        learning_rate=settings.learning_rate if cell.private else settings.plain_learning_rate,
        seed=cell.seed,
        device="cpu",
        force=True,
    )


def _is_text(task: Task) -> bool:
    return task.train.suffix == ".jsonl"


def _model(task: Task) -> ModelRequest:
    vocabulary = None if task.vocabulary is None else str(task.vocabulary)
    return ModelRequest(path=task.model, norm=None if _is_text(task) else "frozen", vocabulary=vocabulary)


def _data(task: Task, train: Path) -> DataRequest:
    if not _is_text(task):
        return DataRequest(train=train, held_out=task.held_out, labels=task.labels)
    return DataRequest(
        train=train, held_out=task.held_out, labels=task.labels, long=LongTextPolicy.TRUNCATE, max_length=24
    )
