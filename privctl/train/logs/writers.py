"""Writes the metrics of a training for other programs: a CSV file, TensorBoard, Weights & Biases, MLflow.

Each sink uses its library's own writer. Without --show-unprotected, logs withhold private metrics as reports do, and
everything else that follows from the secret batches, such as time and memory. A step is logged once, also across
--resume: entries beyond the state that a run continues from are removed, hidden, or not written again.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privctl.domain.errors import FileSystemError, PrivctlError
from privctl.storage.atomic import write_bytes
from privctl.storage.reader import read_text
from privctl.train.logs.live import LiveMeasures
from privctl.train.logs.withheld import released
from privctl.train.preparation.log_places import BEGUN, CSV_HEADER, STATE, csv_path, saved_log_state, tensorboard_folder
from privctl.train.settings.choices import LogName
from privctl.train.settings.request import RetrainRequest

if TYPE_CHECKING:
    from torch import Tensor

#: The number of steps logged in a whole run, in addition to the ends of epochs.
_POINTS = 200
#: Metrics that depend on the size of a secret batch and on the length of its examples.
_OF_BATCHES = ("expected_records_per_second", "memory_bytes")


class LogSink(Protocol):
    """One log."""

    def write(self, step: int, measures: Mapping[str, float]) -> None:
        """Add the metrics of ``step``."""
        ...

    def close(self) -> None:
        """Finish the log."""
        ...


@dataclass(slots=True)
class CsvLog:
    """The file ``path`` with lines of step, measure, value, readable by its owner only and complete after every write.

    Existing lines are kept up to step ``after``.
    """

    path: Path
    after: int = 0
    _rows: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.after and self.path.is_file():
            rows = [tuple(row) for row in csv.reader(io.StringIO(read_text(self.path)))]
            self._rows = [row for row in rows[1:] if len(row) == len(CSV_HEADER) and _step(row[0]) <= self.after]
        self._save()

    def write(self, step: int, measures: Mapping[str, float]) -> None:
        """See ``LogSink``."""
        self._rows += [(str(step), name, repr(value)) for name, value in measures.items()]
        self._save()

    def close(self) -> None:
        """See ``LogSink``."""

    def _save(self) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([CSV_HEADER, *self._rows])
        write_bytes(self.path, text.getvalue().encode())


class TensorBoardLog:
    """Events in ``folder``, which only its owner can read; those beyond step ``after`` are hidden."""

    def __init__(self, folder: Path, after: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        module: Any = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(log_dir=str(folder), purge_step=after + 1)

    def write(self, step: int, measures: Mapping[str, float]) -> None:
        """See ``LogSink``."""
        for name, value in measures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See ``LogSink``."""
        self._writer.close()


class WandbLog:
    """A run of Weights & Biases named after ``output``. Of the machine, only its system and Python are sent.

    Its folder ``wandb`` next to ``output`` is readable by its owner only.
    """

    def __init__(self, output: Path, after: int, state: dict[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        settings = wandb.Settings(
            console="off",
            save_code=False,
            disable_git=True,
            silent=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        (output.parent / "wandb").mkdir(mode=0o700, exist_ok=True)
        self._run: Any = wandb.init(
            project="privctl",
            name=output.name,
            id=state.get("wandb"),
            resume="allow",
            dir=str(output.parent),
            settings=settings,
        )
        state["wandb"] = self._run.id

    def write(self, step: int, measures: Mapping[str, float]) -> None:
        """See ``LogSink``."""
        self._run.log(dict(measures), step=step)

    def close(self) -> None:
        """See ``LogSink``."""
        self._run.finish()


class MlflowLog:
    """A run of MLflow named after ``output``."""

    def __init__(self, output: Path, after: int, state: dict[str, Any]) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        known = state.get("mlflow")
        run: Any = self._mlflow.start_run(run_id=known, run_name=None if known else output.name)
        state["mlflow"] = run.info.run_id

    def write(self, step: int, measures: Mapping[str, float]) -> None:
        """See ``LogSink``."""
        self._mlflow.log_metrics(dict(measures), step=step)

    def close(self) -> None:
        """See ``LogSink``."""
        self._mlflow.end_run()


@dataclass(slots=True, kw_only=True)
class TrainingLog:
    """All sinks of a run of ``request``; the metrics of ``live`` are logged every ``every`` steps.

    ``last`` is called with each step that was logged.
    """

    request: RetrainRequest
    live: LiveMeasures
    every: int
    sinks: Sequence[LogSink]
    last: Callable[[int], None] = lambda _: None
    #: Sinks that cannot remove a logged step get no steps up to this one again.
    logged: int = 0
    clock: Callable[[], float] = time.monotonic

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``watch.Watch``."""
        self.live.step(begun, examples, losses)
        if begun % self.every == 0 or begun == self.live.job.recipe.steps:
            self._write(begun, self._measures_of_step(begun, self.live.now()))

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``watch.Watch``."""
        shown = measures if self.request.show_unprotected else released(self.request, [measures])[0]
        names = {"training_loss": "epoch_training_loss"}
        self._write(begun, {names.get(name, name): value for name, value in shown.items() if name != "step"})

    def _measures_of_step(self, begun: int, measures: Mapping[str, float]) -> Mapping[str, float]:
        """The ``measures`` that may be logged for the step ``begun``, without the epsilon of an earlier step."""
        values = dict(measures)
        if values.pop("epsilon_at_step", begun) != begun:
            del values["epsilon"]
        for name in () if self.live.shown else _OF_BATCHES:
            values.pop(name, None)
        return values

    def _write(self, step: int, measures: Mapping[str, float]) -> None:
        finite = {name: value for name, value in measures.items() if math.isfinite(value)}
        for sink in self.sinks:
            if finite and (step > self.logged or isinstance(sink, CsvLog | TensorBoardLog)):
                sink.write(step, finite)
        self.last(step)


@contextmanager
def opened_logs(
    request: RetrainRequest, live: LiveMeasures, *, steps: int, after: int, state: Path | None
) -> Iterator[TrainingLog | None]:
    """The run's logs, continued after step ``after``; None if there are none. ``state`` is the run's folder.

    Raises FileSystemError if a log cannot be opened.
    """
    if not request.logs:
        yield None
        return
    kept = saved_log_state(state)
    kept[BEGUN] = sorted({*kept.get(BEGUN, ()), *map(str, request.logs)})
    if state is not None and request.logs:
        write_bytes(state / STATE, json.dumps(kept).encode())
    sinks = [_sink(name, request.output, after, kept) for name in dict.fromkeys(request.logs)]
    logged = int(kept.get("logged", 0)) if after else 0

    def remember(step: int) -> None:
        kept["logged"] = max(step, int(kept.get("logged", 0)))
        if state is not None:
            write_bytes(state / STATE, json.dumps(kept).encode())

    try:
        yield TrainingLog(
            request=request,
            live=live,
            every=max(1, steps // _POINTS),
            sinks=sinks,
            last=remember,
            logged=logged,
        )
    finally:
        for sink in sinks:
            sink.close()


def _sink(name: LogName, output: Path, after: int, state: dict[str, Any]) -> LogSink:
    try:
        if name is LogName.CSV:
            return CsvLog(csv_path(output), after)
        if name is LogName.TENSORBOARD:
            return TensorBoardLog(tensorboard_folder(output), after)
        return (WandbLog if name is LogName.WANDB else MlflowLog)(output, after, state)
    except PrivctlError:
        raise
    except Exception as fault:  # a service's own errors are of any type
        raise FileSystemError(f"--log {name} could not start: {fault}; remove it, or see {name}'s own help") from fault


def _step(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return math.inf
