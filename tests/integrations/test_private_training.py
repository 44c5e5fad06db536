"""Private steps in a loop of the user's own: what is done, what the report states, and every misuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.verdict import Outcome
from privctl.integrations.private_training import PrivateTraining
from privctl.reports.files import read_report, write_report
from tests.integrations.loops import BATCH, EXAMPLES, Loop


def test_a_step_adds_noise_to_the_sum_of_clipped_gradients() -> None:
    """Against autograd, one example at a time; with next to no noise the step is the sum itself."""
    loop = Loop(noise_multiplier=1e-6, clip_norm=0.3)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    batches = iter(loop.private.loader)  # kept, as a loop that ends leaves its batch
    inputs, labels = next(batches)
    wanted = [torch.zeros_like(parameter) for parameter in before]
    norms = []
    for i in range(len(labels)):
        loss = F.cross_entropy(loop.model(inputs[i : i + 1]), labels[i : i + 1])
        gradients = torch.autograd.grad(loss, list(loop.model.parameters()))
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        for total, gradient in zip(wanted, gradients, strict=True):
            total += gradient * min(1, 0.3 / norms[-1])
    other = Loop(noise_multiplier=1e-6, clip_norm=0.3)
    other.private._drawn.begin(len(labels))
    other.private._stage, other.private.steps_begun = loop.private._stage, 1
    found = other.private.backward(other.losses(inputs, labels))
    other.optimizer.step()
    assert found.norms.numpy() == pytest.approx(norms, rel=1e-4)
    assert max(norms) > 0.3
    for old, new, total in zip(before, other.model.parameters(), wanted, strict=True):
        # the clipping leaves 2^-10 of the clip norm for rounding
        assert torch.allclose(old - new, 0.1 * total / BATCH, rtol=2e-3, atol=1e-6)


def test_the_noise_has_the_size_that_is_stated() -> None:
    loop = Loop(noise_multiplier=3.0, clip_norm=0.5)
    moved = []
    for _ in range(15):
        for inputs, labels in loop.private.loader:
            before = torch.cat([p.detach().flatten().clone() for p in loop.model.parameters()])
            loop.private.backward(loop.losses(inputs, labels))
            loop.optimizer.step()
            moved.append(torch.cat([p.detach().flatten() for p in loop.model.parameters()]) - before)
    spread = float(torch.stack(moved).std()) / 0.1
    assert spread == pytest.approx(3 * 0.5 / BATCH, rel=0.05)


@pytest.mark.parametrize("users", [False, True])
def test_batches_are_poisson_samples_and_every_step_has_one(users: bool) -> None:
    """A loop that saw no batch of a step could not make the step of a learning rate schedule either."""
    more: dict[str, Any] = {"users": list(range(EXAMPLES)), "target_unclipped_quantile": 0.5} if users else {}
    loop = Loop(batch=1, **more)
    sizes, empty = [], 0
    for _ in range(3):
        for inputs, labels in loop.private.loader:
            loop.private.backward(loop.losses(inputs, labels))
            if loop.private._empty:
                assert len(labels) == 1
                assert not any(bool(each.any()) for each in (*loop.private._sums, loop.private._count))
                empty += 1
            loop.optimizer.step()
            sizes.append(len(labels))
    assert loop.private.steps_begun == len(sizes) == 3 * EXAMPLES
    assert 0 not in sizes
    # of 180 batches of expected size 1, 0.364 are empty: 66, five standard deviations of 6.5 either way
    assert 33 < empty < 98
    assert sum(sizes) - empty == pytest.approx(180, abs=5 * math.sqrt(180))


def test_ten_lines_and_a_report_that_verifies(tmp_path: Path) -> None:
    loop = Loop()
    loop.train(epochs=2)
    path = loop.save(tmp_path / "model.safetensors")
    report = loop.private.report(path)
    assert read_report(tmp_path / "model.report.json") == report
    (guarantee,) = report.guarantees
    assert isinstance(report.mechanism, Ledger)
    assert report.mechanism.events == (SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=20),)
    assert guarantee.epsilon is not None
    assert epsilon_bound(report.mechanism, guarantee.delta) < guarantee.epsilon < 20
    assert guarantee.status is Status.CONDITIONAL
    states = {a.name: a.state for a in guarantee.assumptions}
    better = {name for name, state in states.items() if state is not AssumptionState.ASSERTED}
    assert better == {"secret noise", "float arithmetic"}
    assert {"own loop", "contribution", "poisson batches", "other releases"} <= states.keys()
    found = privctl.verify(path)
    assert found.exit_code is ExitCode.OK
    assert [v.outcome for v in found.verdicts] == [Outcome.PROVED] * len(found.verdicts)
    from privctl.cli import run

    assert run(["inspect", str(path), "-q"]) == 0
    assert run(["report", str(path), "-q", "-o", str(tmp_path / "page.html")]) == 0
    assert "own-loop" in (tmp_path / "page.html").read_text()


def test_a_gate_counts_it_only_where_the_policy_accepts_the_loop(tmp_path: Path) -> None:
    loop = Loop()
    loop.train()
    place = loop.save(tmp_path / "model.safetensors")
    (guarantee,) = loop.private.report(place).guarantees
    names = [a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED]
    refused = privctl.gate(place, max_epsilon=1000)
    assert refused.outcome is GateOutcome.FAIL
    (finding,) = refused.of(GateOutcome.FAIL)
    assert "rests on own loop" in finding.message
    assert finding.fix.endswith(", ".join(f'"{name}"' for name in names))
    assert privctl.gate(place, max_epsilon=1000, accepted_assumptions=names).outcome is GateOutcome.PASS
    assert (
        privctl.gate(place, max_epsilon=1000, require="proved", accepted_assumptions=names).outcome is GateOutcome.FAIL
    )
    assert privctl.gate(place, max_epsilon=1000, accepted_assumptions=names[1:]).outcome is GateOutcome.FAIL


FORGED: dict[str, tuple[Callable[..., object], str]] = {
    "enforced": (
        lambda r, g: replace(
            r,
            guarantees=(
                replace(
                    g,
                    assumptions=tuple(
                        replace(a, state=AssumptionState.ENFORCED) if a.name == "poisson batches" else a
                        for a in g.assumptions
                    ),
                ),
            ),
        ),
        "at best asserted",
    ),
    "proved": (lambda r, g: replace(r, guarantees=(replace(g, status=Status.PROVED),)), "only asserted"),
    "left out": (
        lambda r, g: replace(
            r, guarantees=(replace(g, assumptions=tuple(a for a in g.assumptions if a.name != "own loop")),)
        ),
        "rests on the assumption 'own loop'",
    ),
    "epsilon": (lambda r, g: replace(r, guarantees=(replace(g, epsilon=g.epsilon / 2),)), "the epsilon that follows"),
    "steps": (lambda r, g: replace(r, parameters={**r.parameters, "steps_begun": 3}), "steps_begun says"),
    "examples": (lambda r, g: replace(r, parameters={**r.parameters, "examples": 600}), "batch_size / examples"),
    "noise": (
        lambda r, g: replace(r, parameters={**r.parameters, "noise_multiplier": 2.0}),
        "noise multiplier in the ledger",
    ),
    "released": (
        lambda r, g: replace(
            r,
            parameters={**r.parameters, "released_numbers": 7},
            guarantees=(replace(g, arithmetic=replace(g.arithmetic, coordinates=7)),),
        ),
        "no whole number in each of 10 steps",
    ),
    "program": (lambda r, g: replace(r, parameters={**r.parameters, "program": "opacus"}), "the program is"),
    "another": (lambda r, g: replace(r, parameters={**r.parameters, "program": "x"}), "no report of a training in x"),
    "unknown": (lambda r, g: replace(r, parameters={**r.parameters, "seen": 1}), "has the parameter"),
    "source": (
        lambda r, g: replace(r, parameters={**r.parameters, "noise_source": "a die"}),
        "speaks of another source",
    ),
    "floats": (lambda r, g: replace(r, guarantees=(replace(g, arithmetic=None),)), "floating-point noise"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_was_changed_does_not_verify(name: str, tmp_path: Path) -> None:
    loop = Loop()
    loop.train()
    path = loop.save(tmp_path / "model.safetensors")
    report = loop.private.report(path)
    forge, says = FORGED[name]
    write_report(tmp_path / "model.report.json", forge(report, report.guarantees[0]))  # type: ignore[arg-type]
    found = privctl.verify(path)
    assert found.exit_code in (ExitCode.REFUTED, ExitCode.BAD_INPUT)
    assert any(says in v.reason for v in found.verdicts), [v.reason for v in found.verdicts]


def drawn(loop: Loop) -> tuple[Tensor, Tensor]:
    """A batch that is not empty, of the loader that goes on."""
    inputs, labels = next(loop.batches)  # type: ignore[attr-defined]
    return inputs, labels


@pytest.fixture
def loop() -> Loop:
    loop = Loop()
    loop.batches = iter(loop.private.loader)  # type: ignore[attr-defined]
    return loop


def backward_without_a_batch(loop: Loop) -> None:
    inputs, labels = loop.data[:4]
    loop.private.backward(loop.losses(inputs, labels))


def step_without_a_batch(loop: Loop) -> None:
    loop.optimizer.step()


def step_before_backward(loop: Loop) -> None:
    drawn(loop)
    loop.optimizer.step()


def two_backward_calls(loop: Loop) -> None:
    batch = drawn(loop)
    loop.private.backward(loop.losses(*batch))
    loop.private.backward(loop.losses(*batch))


def a_cut_batch(loop: Loop) -> None:
    inputs, labels = drawn(loop)
    loop.private.backward(loop.losses(torch.cat([inputs, inputs]), torch.cat([labels, labels])))


def an_evaluation_inside(loop: Loop) -> None:
    inputs, labels = drawn(loop)

    def losses() -> Tensor:
        loop.model(torch.randn(len(labels) + 3, 5))
        return loop.losses(inputs, labels)()

    loop.private.backward(losses)


def losses_and_no_function(loop: Loop) -> None:
    loop.private.backward(loop.losses(*drawn(loop))())  # type: ignore[arg-type]


def a_mean_loss(loop: Loop) -> None:
    inputs, labels = drawn(loop)
    loop.private.backward(lambda: F.cross_entropy(loop.model(inputs), labels))


def a_batch_left_out(loop: Loop) -> None:
    drawn(loop)
    drawn(loop)


def a_gradient_of_autograd(loop: Loop) -> None:
    batch = drawn(loop)
    loop.private.backward(loop.losses(*batch))
    loop.losses(*batch)().sum().backward()
    loop.optimizer.step()


def a_closure(loop: Loop) -> None:
    loop.private.backward(loop.losses(*drawn(loop)))
    loop.optimizer.step(lambda: 0.0)


def more_parameters(loop: Loop) -> None:
    loop.private.backward(loop.losses(*drawn(loop)))
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    loop.optimizer.step()


def other_data(loop: Loop) -> None:
    loop.train()
    loop.data.tensors = tuple(tensor[:30] for tensor in loop.data.tensors)
    loop.train()


def a_schedule_of_noise(loop: Loop) -> None:
    """The report would go by the last value, and no step by any but the first."""
    loop.private.noise_multiplier *= 4


def a_schedule_of_clip_norms(loop: Loop) -> None:
    loop.private.clip_norm /= 2


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (backward_without_a_batch, "no batch was drawn"),
        (step_without_a_batch, "without a batch"),
        (step_before_backward, "in place of loss.backward()"),
        (two_backward_calls, "backward was called before"),
        (a_cut_batch, "losses came back"),
        (an_evaluation_inside, "return one loss a row"),
        (losses_and_no_function, "takes a function"),
        (a_mean_loss, "do not reduce them"),
        (a_batch_left_out, "was not stepped"),
        (a_gradient_of_autograd, "neither clipped nor noised"),
        (a_closure, "closure"),
        (more_parameters, "exactly these"),
        (other_data, "now has 30"),
        (a_schedule_of_noise, "noise_multiplier cannot be changed"),
        (a_schedule_of_clip_norms, "clip_norm cannot be changed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_misuse_is_a_clear_error(misuse: Callable[[Loop], None], says: str, loop: Loop) -> None:
    before = [parameter.detach().clone() for parameter in loop.model.parameters()] if misuse is not other_data else []
    with pytest.raises((CommandError, InputError)) as caught:
        misuse(loop)
    assert says in str(caught.value), caught.value
    for old, new in zip(before, loop.model.parameters(), strict=False):
        assert torch.equal(old, new), "nothing without noise reached the weights"


def test_a_loop_that_stops_early_counts_the_batch_it_left(loop: Loop) -> None:
    begun = 0
    for _ in range(2):
        for inputs, labels in loop.private.loader:
            begun = loop.private.steps_begun
            if begun > 2:
                break
            loop.private.backward(loop.losses(inputs, labels))
            loop.optimizer.step()
    assert loop.private.steps_begun > begun - 1
    loop.train()
    (event,) = loop.private._ledger().events
    assert event.steps == loop.private.steps_begun


def make(model: nn.Module | None = None, size: int = 6, **options: object) -> PrivateTraining:
    model = model or nn.Linear(5, 3)
    data = TensorDataset(torch.randn(60, 5), torch.zeros(60, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return privctl.make_private(model, optimizer, DataLoader(data, batch_size=size), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give either noise_multiplier, or epsilon"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0"),
        ({"noise_multiplier": 1.0, "clip_norm": -1.0}, "clip_norm is -1"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "give one or the other"),
        ({"epsilon": 1.0}, "epsilon needs epochs"),
        ({"noise_multiplier": 1.0, "delta": 2.0}, "delta is 2"),
        ({"noise_multiplier": 1.0, "clipping": "loose"}, "loose"),
        ({"noise_multiplier": 1.0, "size": 61}, "there are 60 examples"),
        ({"epsilon": "8", "epochs": 1}, "epsilon is '8'; it must be a number"),
        ({"noise_multiplier": True}, "noise_multiplier is True; it must be a number"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(CommandError) as caught:
        make(**options)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_models_that_mix_examples_are_refused() -> None:
    with pytest.raises(InputError, match="normalizes each example by the others"):
        make(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), noise_multiplier=1.0)


def test_an_epsilon_is_met_and_not_exceeded() -> None:
    loop = Loop(noise_multiplier=None, epsilon=3.0, delta=1e-5, epochs=2)
    loop.train(epochs=2)
    guarantee = loop.private.guarantee()
    assert guarantee.epsilon == pytest.approx(3, rel=1e-3)
    assert guarantee.epsilon is not None
    assert guarantee.epsilon <= 3
    with pytest.raises(CommandError, match="all 20 steps"):
        loop.train()


def test_weights_that_were_not_trained_get_no_report(tmp_path: Path) -> None:
    loop = Loop()
    with pytest.raises(CommandError, match="no step was begun"):
        loop.private.report(loop.save(tmp_path / "early.safetensors"))
    early = tmp_path / "early.safetensors"
    loop.train()
    with pytest.raises(InputError, match="holds another '0"):
        loop.private.report(early)
    place = loop.save(tmp_path / "model.safetensors")
    loop.private.report(place)
    with pytest.raises(CommandError, match="exists"):
        loop.private.report(place)
    loop.private.report(place, force=True)


def test_closing_gives_model_and_optimizer_back() -> None:
    loop = Loop()
    loop.train()
    loop.private.close()
    loop.model(torch.randn(4, 5)).sum().backward()
    loop.optimizer.step()
