"""What tests of one kind of private run share: a model without weights, records, the call, and lies in its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import RunInterruptedError
from privctl.domain.progress import unseen
from privctl.domain.verdict import Outcome
from privctl.train.methods.dp_sgd import DpSgdSettings
from tests.models.tasks.small import architecture, words


def prepared(folder: Path, count: int) -> Path:
    """``folder`` with ``start``, a GPT-2 with a tokenizer, and ``count`` records in ``train.jsonl``."""
    architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder / "start")
    texts(folder / "train.jsonl", count)
    return folder


def texts(path: Path, count: int, who: str = "cat") -> None:
    lines = [json.dumps({"text": f"the {who} sat on the {('mat', 'dog')[i % 2]}"}) for i in range(count)]
    path.write_text("\n".join(lines))


def dp_sgd(folder: Path, output: Path, *more: str) -> list[str]:
    """``retrain dp-sgd`` on what is ``prepared`` in ``folder``."""
    data = str(folder / "train.jsonl")
    usual = ["--data", data, "-o", str(output), "--micro-tokens", "160"]
    return ["retrain", "dp-sgd", str(folder / "start"), *usual, *more]


def half_the_noise(report: Any) -> None:
    """A lie: parameters, ledger and guarantees state half of the noise, wherever they state it."""
    report["mechanism"]["events"][0]["noise_multiplier"] /= 2
    for holder in (report["parameters"], *report["guarantees"]):
        if holder.get("noise_multiplier") is not None:
            holder["noise_multiplier"] /= 2


def of_steps_own(sample_rate: float, steps: int) -> Callable[[Any], None]:
    """A lie: the ledger holds steps whose noise is each one's own."""
    event = {"type": "sampled-gaussian", "noise_multiplier": 1, "batches": "poisson"}
    return lambda report: report["mechanism"].update(events=[event | {"sample_rate": sample_rate, "steps": steps}])


def some_quick(names: Sequence[str], quick: Sequence[str]) -> list[Any]:
    """The ``names`` as parameters, slow but for those that are ``quick``."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def verified_after(genuine: Path, change: Callable[[Any], None]) -> int:
    """The exit code of ``verify`` for the report at ``genuine`` with a ``change``."""
    report = json.loads(genuine.read_text())
    change(report)
    forged = genuine.with_name("forged.report.json")
    forged.write_text(json.dumps(report))
    return run(["verify", str(forged)])


def drawn_batches(monkeypatch: pytest.MonkeyPatch, batches: type[Any]) -> dict[int, list[int]]:
    """The records of each step, filled in while runs draw such ``batches``."""
    drawn: dict[int, list[int]] = {}
    batch = batches.batch

    def noted(self: Any, step: int) -> Any:
        drawn[step] = batch(self, step).tolist()
        return batch(self, step)

    monkeypatch.setattr(batches, "batch", noted)
    return drawn


def before_each_step(monkeypatch: pytest.MonkeyPatch, noise: type[Any], look: Callable[[Any], int]) -> dict[int, int]:
    """What ``look`` finds in such ``noise`` before each step, filled in while runs release."""
    found: dict[int, int] = {}
    release = noise.release

    def noted(self: Any, tensors: Any, stddev: float, step: int) -> None:
        found[step] = look(self)
        release(self, tensors, stddev, step)

    monkeypatch.setattr(noise, "release", noted)
    return found


def interrupted_dp_sgd(folder: Path, output: Path, settings: DpSgdSettings, **size: float) -> None:
    """A run of ``dp_sgd`` with noise multiplier 1, of a batch size and steps or epochs, interrupted after one step."""
    from privctl.train.methods import method_named
    from privctl.train.preparation.prepare import prepare
    from privctl.train.run import run_training
    from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
    from privctl.train.settings.session import Session

    request = RetrainRequest(
        method=method_named("dp-sgd"),
        settings=settings,
        model=ModelRequest(path=folder / "start"),
        data=DataRequest(train=folder / "train.jsonl"),
        budget=BudgetRequest(noise_multiplier=1.0),
        output=output,
        device="cpu",
        **size,
    )
    with pytest.raises(RunInterruptedError):
        run_training(prepare(request), Session(progress=unseen, interrupts=nullcontext(lambda: True)))


def outcomes_of_weights(genuine: Path, *changes: dict[str, Any]) -> list[Outcome]:
    """What ``verify`` finds of how the weights moved, after each of the ``changes`` to the parameters of a report."""
    from verify.run import read, verify

    report = json.loads(genuine.read_text())
    forged = genuine.with_name("forged.report.json")
    found = []
    for change in changes:
        forged.write_text(json.dumps(report | {"parameters": report["parameters"] | change}))
        found += [verdict.outcome for verdict in verify(forged, read(forged)).verdicts if verdict.subject == "weights"]
    assert len(found) == len(changes)
    return found
