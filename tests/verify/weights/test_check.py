"""Weights against the report of their training: honest runs pass, models from elsewhere and edited settings do not."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.domain.mechanism import Optimizer
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import SafetensorsFile
from privctl.train.settings.choices import Schedule
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.optimizers import optimizer_for
from tests.few import few
from tests.verify.reports import trained
from verify.checkpoint_noise.values import Floats
from verify.run import Verification, read, verify
from verify.weights.law import law_of
from verify.weights.moves import adam_reach, coefficients, draws_bound, kept, reach, signal
from verify.weights.presence import Presence
from verify.weights.settings import TrainingFacts, UncheckableError
from verify.weights.tally import Tally

#: Name of a run -> how it was asked for.
RUNS: dict[str, tuple[str, ...]] = {
    "adamw": ("dp-sgd", "--epsilon", "3"),
    "adam": ("dp-sgd", "--epsilon", "3", "--optimizer", "adam", "--weight-decay", "0.1", "--schedule", "linear"),
    "sgd": ("dp-sgd", "--epsilon", "3", "--optimizer", "sgd", "--learning-rate", "0.1", "--warmup-steps", "3"),
    "correlated": (
        "dp-sgd", "--epsilon", "3", "--optimizer", "sgd", "--learning-rate", "0.1", "--bands", "3",
    ),
    "momentum": (
        "dp-sgd", "--epsilon", "3", "--optimizer", "momentum", "--momentum", "0.9", "--learning-rate", "0.1",
        "--weight-decay", "0.1", "--schedule", "cosine",
    ),
    "one tensor": ("dp-sgd", "--epsilon", "3", "--train", "*wte*"),
    "few bits": ("dpquant", "--noise-multiplier", "2", "--format", "fp8", "--layers", "random"),
    "clipped": ("clipped", "--optimizer", "sgd"),
    "clipped adam": ("clipped", "--optimizer", "adam"),
    "plain": ("plain",),
    "plain sgd": ("plain", "--optimizer", "sgd"),
    "ferret": ("ferret", "--epsilon", "0.5"),
}  # fmt: skip
#: Runs whose weights are looked at in the way of another, with another update rule or fewer bits.
ALIKE = ("adam", "correlated", "one tensor", "clipped adam", "few bits", "ferret")

#: An optimizer, and a model that it did not make. The slow tests have every pair.
OTHERS = (("adamw", "plain"), ("adamw", "clipped"), ("sgd", "plain"), ("momentum", "plain"))


class Runs:
    """The reports of ``RUNS`` by name, each made when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = {"start": trained(folder, "dp-sgd")}

    def __getitem__(self, name: str) -> Path:
        if name not in self._made:
            method, *more = RUNS[name]
            output = self._folder / name.replace(" ", "-")
            call = [method, str(self._folder / "start"), "--data", str(self._folder / "train.jsonl"), "-o", str(output)]
            usual = ["--batch-size", "12", "--epochs", "2", "--micro-tokens", "160", "--device", "cpu", "-q"]
            assert run(["retrain", *call, *usual, *more]) == 0
            self._made[name] = output.with_name(output.name + ".report.json")
        return self._made[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    torch.set_num_threads(1)
    return Runs(tmp_path_factory.mktemp("weights"))


def verdicts_of_weights(found: Verification) -> list[Verdict]:
    return [verdict for verdict in found.verdicts if verdict.subject == "weights"]


def forged(path: Path, change: Callable[[dict[str, Any]], object]) -> list[Verdict]:
    """The verdicts on the weights after ``change``; whatever else the change contradicts does not count."""
    report = json.loads(path.read_text())
    change(report)
    report_path = path.with_name("forged.report.json")
    report_path.write_text(json.dumps(report))
    return verdicts_of_weights(verify(report_path, read(report_path)))


def edited(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda report: report["parameters"].update(values)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in ALIKE else n for n in RUNS])
def test_an_honest_run_passes_and_says_what_was_looked_at(runs: Runs, name: str) -> None:
    found = verify(runs[name], read(runs[name]))
    assert found.exit_code is ExitCode.OK
    if name == "plain sgd":
        assert verdicts_of_weights(found) == []
        (omission,) = [o for o in found.omissions if o.what == "how far the training moved the weights"]
        assert "nothing bounds what sgd makes of them" in omission.reason
        return
    (verdict,) = verdicts_of_weights(found)
    assert verdict.outcome is Outcome.CONSISTENT
    assert "drawn again from seed 0" in verdict.reason
    private = RUNS[name][0] in ("dp-sgd", "dpquant")
    assert ("noise is there" in verdict.reason) == private
    assert ("nats a weight or more" in verdict.reason) == private, "what is stated is the limit of the test"
    assert ("no noise" in verdict.reason) == (not private)
    adaptive = private and name not in ("sgd", "correlated", "momentum")
    assert ("edited noise multiplier is not noticed" in verdict.reason) == adaptive
    assert ("27 tensors that were not trained" in verdict.reason) == (name == "one tensor")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        pytest.param(name, other, marks=[] if (name, other) in OTHERS else pytest.mark.slow)
        for name in ("adamw", "adam", "sgd", "momentum")
        for other in ("plain", "clipped", "clipped adam", "ferret", "one tensor")
    ],
)
def test_outputs_of_another_model_are_refuted(runs: Runs, name: str, other: str) -> None:
    outputs = json.loads(runs[other].read_text())["outputs"]
    verdicts = forged(runs[name], lambda report: report.update(outputs=outputs))
    assert {verdict.outcome for verdict in verdicts} == {Outcome.REFUTED}
    assert any("noise reported is not in the weights" in verdict.reason for verdict in verdicts)


@pytest.mark.parametrize("name", few(["sgd", "momentum"], 0))
@pytest.mark.parametrize(
    ("key", "factor"),
    [
        ("noise_multiplier", 2.0),
        ("noise_multiplier", 0.4),
        ("learning_rate", 0.5),
        ("batch_size", 0.5),
        ("clip_norm", 2.0),
    ],
)
def test_noise_and_rates_show_in_gradient_descent(runs: Runs, name: str, key: str, factor: float) -> None:
    value = json.loads(runs[name].read_text())["parameters"][key]
    (verdict, *_) = forged(runs[name], edited(**{key: value * factor}))
    assert verdict.outcome is Outcome.REFUTED
    assert "times as far as noise alone" in verdict.reason


@pytest.mark.parametrize("name", few(["adamw", "adam"], 0))
def test_steps_and_rates_show_in_adam_and_the_noise_multiplier_does_not(runs: Runs, name: str) -> None:
    parameters = json.loads(runs[name].read_text())["parameters"]
    rate, noise = parameters["learning_rate"], parameters["noise_multiplier"]
    for change in (edited(learning_rate=rate / 2), edited(updates=4, steps=4), edited(learning_rate=rate * 8)):
        assert {verdict.outcome for verdict in forged(runs[name], change)} == {Outcome.REFUTED}
    (verdict,) = forged(runs[name], edited(noise_multiplier=2 * noise))
    assert verdict.outcome is Outcome.CONSISTENT
    assert "an edited noise multiplier is not noticed here" in verdict.reason


@pytest.mark.parametrize("name", ["adamw", "sgd", "clipped", "plain"])
def test_another_seed_is_refuted(runs: Runs, name: str) -> None:
    assert forged(runs[name], edited(initial_seed=1))[0].outcome is Outcome.REFUTED


def test_where_other_versions_draw_a_refusal_stays_open(runs: Runs) -> None:
    def older(report: dict[str, Any]) -> None:
        report["versions"]["torch"] = "2.0"

    (verdict,) = forged(runs["adamw"], older)
    assert verdict.outcome is Outcome.CONSISTENT

    def older_and_wrong(report: dict[str, Any]) -> None:
        older(report)
        edited(initial_seed=1)(report)

    verdicts = forged(runs["adamw"], older_and_wrong)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.INCONCLUSIVE}
    assert "or torch 2.0 draws other first weights" in verdicts[0].reason


def test_what_was_not_trained_must_have_stayed(runs: Runs) -> None:
    (verdict, *_) = forged(runs["adamw"], edited(trained=["*wte*"]))
    assert verdict.outcome is Outcome.REFUTED
    assert "was not trained, but is not what it began as" in verdict.reason


def test_one_changed_weight_is_refuted(runs: Runs, write_model: Callable[..., Path]) -> None:
    """A weight set by hand, as a mark or a message."""
    report = json.loads(runs["adamw"].read_text())
    output = next(o for o in report["outputs"] if o["role"] == "model")
    path = runs["adamw"].parent / output["path"]
    genuine = path.read_bytes()
    with SafetensorsFile(path) as file:
        tensors = {t.name: np.frombuffer(file.read(t), "<f4").reshape(t.shape).copy() for t in file.tensors}
    tensors["transformer.ln_f.weight"][3] += 0.01
    write_model(path, tensors)
    with SafetensorsFile(path) as file:
        digest = hash_tensors(file).file_digest
    try:
        verdicts = forged(
            runs["adamw"], lambda r: next(o for o in r["outputs"] if o["role"] == "model").update(digest=digest)
        )
    finally:
        path.write_bytes(genuine)
    assert verdicts[0].outcome is Outcome.REFUTED
    assert "a weight of tensor 'transformer.ln_f.weight' moved by" in verdicts[0].reason


@pytest.mark.parametrize("asked", few([(), ("--task", "text-classification", "--labels", "a,b")], 1, whole=True))
def test_a_start_from_a_checkpoint_and_a_new_head(asked: tuple[str, ...], runs: Runs, tmp_path: Path) -> None:
    folder = runs["plain"].parent
    data = tmp_path / "data.jsonl"
    words = ("cat", "dog", "mat") * 10
    lines = [json.dumps({"text": f"the old {word}", "label": "ab"[i % 2]}) for i, word in enumerate(words)]
    data.write_text("\n".join(lines) + "\n")
    more = ["--batch-size", "6", "--epochs", "2", "--device", "cpu", "-q", "--epsilon", "4"]
    other = json.loads(runs["clipped"].read_text())
    digest = next(o["digest"] for o in other["outputs"] if o["role"] == "model")

    def elsewhere(report: dict[str, Any]) -> None:
        start = next(i for i in report["inputs"] if i["role"] == "start-model.safetensors")
        start.update(path=os.path.relpath(folder / "clipped" / "model.safetensors", tmp_path), digest=digest)

    output, report = tmp_path / "out", tmp_path / "out.report.json"
    call = ["retrain", "dp-sgd", str(folder / "plain"), "--data", str(data), "-o", str(output)]
    assert run([*call, *more, *asked]) == 0
    (verdict,) = verdicts_of_weights(verify(report, read(report)))
    assert verdict.outcome is Outcome.CONSISTENT
    assert "read from plain" in verdict.reason
    assert {v.outcome for v in forged(report, elsewhere)} == {Outcome.REFUTED}


def test_what_is_not_at_hand_is_said(runs: Runs, tmp_path: Path) -> None:
    report = tmp_path / "moved.report.json"
    report.write_text(runs["adamw"].read_text())
    reasons = {o.what: o.reason for o in verify(report, read(report)).omissions}
    assert reasons["how far the training moved the weights"] == "the model reported is not at hand"


# What the bounds are made of.

Push = Callable[[Floats, int], Any]


def settings(**changes: Any) -> TrainingFacts:
    usual: dict[str, Any] = {
        "method": "dp-sgd", "updates": 12, "planned": 12, "learning_rate": 0.1, "schedule": "constant", "warmup": 0,
        "optimizer": Optimizer.SGD, "batch_size": 12.0, "examples": 60, "noise_multiplier": 1.0, "clip_norm": 1.0,
        "momentum": 0.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0,
    }  # fmt: skip
    return TrainingFacts(**{**usual, **changes})


def descended(chosen: TrainingFacts, gradients: torch.Tensor) -> torch.Tensor:
    """What the training's own optimizer makes of ``gradients`` [updates, weights] and first weights of 1."""
    recipe = TrainingSettings(
        method="plain", steps=chosen.planned, batch_size=12, sample_rate=0.2,
        learning_rate=chosen.learning_rate,
        optimizer=chosen.optimizer, weight_decay=chosen.weight_decay, momentum=chosen.momentum, beta1=chosen.beta1,
        beta2=chosen.beta2, schedule=Schedule(chosen.schedule), warmup_steps=chosen.warmup,
    )  # fmt: skip
    weights = torch.nn.Parameter(torch.ones(gradients.shape[1], dtype=torch.float64))
    optimizer = optimizer_for([weights], recipe)
    for step, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(step)
        weights.grad = gradient.clone()
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_coefficients_are_those_of_the_optimizer(schedule: str, momentum: float) -> None:
    optimizer = Optimizer.MOMENTUM if momentum else Optimizer.SGD
    chosen = settings(
        schedule=schedule, momentum=momentum, optimizer=optimizer, weight_decay=0.3, warmup=4, updates=10, planned=14
    )
    ends = descended(chosen, torch.eye(10, dtype=torch.float64))
    np.testing.assert_allclose(kept(chosen)[-1] - ends.numpy(), coefficients(chosen), rtol=1e-12)


def test_no_gradients_take_adam_farther_than_the_bound_and_some_nearly_so_far() -> None:
    one = settings(optimizer=Optimizer.ADAM, updates=1, planned=1)
    assert adam_reach(one) == pytest.approx(0.1)
    chosen = settings(optimizer=Optimizer.ADAMW, updates=400, planned=400, learning_rate=0.1, weight_decay=0.05)
    steps = np.arange(400)
    # Growing gradients are what Adam follows fastest; drawn ones are what it meets.
    worst = np.stack([(0.999 / 0.9) ** (steps / every) for every in (1, 4, 40)])
    drawn = np.random.default_rng(0).standard_normal((20, 400)) * np.logspace(-4, 4, 20)[:, None]
    ends = descended(chosen, torch.tensor(np.concatenate([worst, drawn]).T.copy()))
    far = np.abs(kept(chosen)[-1] - ends.numpy())
    assert far.max() <= adam_reach(chosen)
    assert far.max() >= 0.5 * adam_reach(chosen)
    long = [settings(optimizer=Optimizer.ADAM, updates=n, planned=n, learning_rate=1.0) for n in (20_000, 20_001)]
    longest = 0.1 / math.sqrt(0.001) / math.sqrt(1 - 0.81 / 0.999)
    assert longest == pytest.approx(7.27, abs=0.01)
    assert adam_reach(long[1]) - adam_reach(long[0]) == pytest.approx(longest)


def test_more_examples_than_the_bound_are_hardly_drawn() -> None:
    assert draws_bound(60, 0.2, 1e-6) == pytest.approx(30.31, abs=0.01)
    for trials, rate, level in ((60, 0.2, 1e-6), (10_000, 0.01, 1e-9), (50, 0.9, 1e-4)):
        most = draws_bound(trials, rate, level)
        assert binom.sf(math.floor(most), trials, rate) <= level
        assert binom.sf(math.floor(most) - 2, trials, rate) > level / 10
    assert draws_bound(60, 1.0, 1e-6) == 60


def test_the_law_of_noise_is_that_of_torch() -> None:
    """The intervals' chances bound what the training's own optimizer does with the noise, and hardly more."""
    for chosen in (
        settings(optimizer=Optimizer.ADAMW, learning_rate=0.01, schedule="linear", warmup=3),
        settings(optimizer=Optimizer.MOMENTUM, momentum=0.9, weight_decay=0.1),
    ):
        law = law_of(chosen, 1e-6)
        noise = torch.tensor(np.random.default_rng(5).standard_normal((12, 100_000)) * chosen.noise_stddev)
        move = kept(chosen)[-1] - descended(chosen, noise).numpy()
        shares = np.bincount(np.searchsorted(law.edges, move), minlength=len(law.chances)) / len(move)
        assert (shares <= law.chances + 5 * np.sqrt(law.chances / len(move))).all()
        assert law.chances.sum() < 1.1


def moved(chosen: TrainingFacts, weights: int, push: Push, noise: float = 1.0) -> Floats:
    """Moves of a descent whose every step's gradient is what ``push`` makes of the way so far, and noise."""
    random, total = np.random.default_rng(8), np.zeros(weights)
    for step, weight in enumerate(coefficients(chosen)):
        drawn = noise * chosen.noise_stddev * random.standard_normal(weights)
        total += weight * (push(total, step) + drawn)
    return total


def counted(presence: Presence, move: Floats) -> Tally:
    bins = np.searchsorted(presence.law.edges, move)
    size = len(presence.law.chances)
    between = np.diag(np.bincount(bins, minlength=size))
    squares = float(move @ move)
    still = np.zeros((size, size), dtype=np.int64)
    still[size // 2, size // 2] = len(move)
    return Tally(
        name="w", elements=len(move), squares=squares, low=squares, high=squares, farthest=float(abs(move).max()),
        between=between, still=still,
    )  # fmt: skip


def presence_of(chosen: TrainingFacts) -> Presence:
    root = float(np.sqrt(coefficients(chosen) @ coefficients(chosen))) * chosen.noise_stddev
    return Presence(shift=signal(chosen, 1e-7), level=1e-8, law=law_of(chosen, 1e-7), stddevs=(root, root))


def test_gradients_that_undo_the_noise_are_no_forgery_and_missing_noise_is_one() -> None:
    """The worst that clipped gradients do is to lead back where the noise leads away, or on."""
    chosen = settings(updates=30, planned=30)
    presence, weights = presence_of(chosen), 12_000
    far = presence.shift / math.sqrt(30) * chosen.noise_stddev  # batches as large as any, all of one mind

    def along(sign: float) -> Callable[[Floats, int], Any]:
        return lambda total, step: sign * far * total / np.linalg.norm(total) if step else 0.0

    for sign in (-1.0, 0.0, 1.0):
        assert presence.complaint(counted(presence, moved(chosen, weights, along(sign)))) == ""
    lower, upper = presence.ratios(weights)
    assert 0.2 < lower < upper < 2.5
    for noise in (0.8 * lower, 1.2 * upper):
        tally = counted(presence, moved(chosen, weights, along(0.0), noise))
        assert "times as far as noise alone" in presence.complaint(tally)
    # As far as noise leads, but in two heaps: the norm is right, the shape is not.
    heaps = moved(chosen, weights, along(0.0))
    heaps = np.sign(heaps) * np.sqrt(np.mean(heaps**2))
    assert "its moves are not those of weights with this noise" in presence.complaint(counted(presence, heaps))


def test_with_fewer_weights_than_gradients_outweigh_nothing_is_seen_and_nothing_claimed() -> None:
    presence = presence_of(settings(updates=200, planned=200, examples=6000, batch_size=1000.0))
    assert presence.shift**2 > 1e8
    assert not presence.visible(counted(presence, np.zeros(10_000)))
    assert presence.ratios(10_000)[0] == 0.0
    assert presence.complaint(counted(presence, np.zeros(10_000))) == ""


def test_the_limit_is_that_of_two_normal_laws() -> None:
    presence = presence_of(settings())
    assert presence.limit == pytest.approx(norm.logcdf(-presence.shift - norm.isf(presence.level)))
    assert signal(settings(noise_multiplier=2.0), 1e-6) == pytest.approx(signal(settings(), 1e-6) / 2)


def test_the_way_of_clipped_gradients_is_their_rates() -> None:
    clipped = settings(method="clipped", noise_multiplier=0.0, clip_norm=0.5)
    assert reach(clipped, 1e-6) == pytest.approx(12 * 0.1 * 0.5)
    with pytest.raises(UncheckableError, match="too many to draw"):
        law_of(settings(updates=20_000, planned=20_000), 1e-6)
