"""Experts of a mixture: the closed rule against a loop over examples, and when it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GptOssConfig, MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from privctl.train.clipping import Clipping, PerExample
from privctl.train.clipping import experts as rule
from privctl.train.clipping.rules import rule_for
from tests.train.clipping.support import Batch, agree, distance, every_row_agrees, length, looped, squared

ROWS, PLACES, WIDTH, EXPERTS, CHOICES = 6, 8, 8, 5, 2


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


class Scaled(MixtralExperts):
    """A subclass with another formula."""

    factor = 1.5

    def forward(self, *arguments: Any) -> Tensor:
        return super().forward(*arguments) * self.factor


class ScaledLittle(Scaled):
    factor = 1.004


def mixtral(kind: type[nn.Module] = MixtralExperts) -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 12, "num_local_experts": EXPERTS}
    return kind(MixtralConfig(**sizes, experts_implementation="eager"))


def gpt_oss() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 12, "num_local_experts": EXPERTS}
    return GptOssExperts(GptOssConfig(**sizes, experts_implementation="eager"))


def without_gates() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "moe_intermediate_size": 12, "n_routed_experts": EXPERTS, "moe_latent_size": None}
    return NemotronHExperts(SimpleNamespace(**sizes, mlp_hidden_act="relu2", _experts_implementation="eager"))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "gated": mixtral,
    "transposed, with biases": gpt_oss,
    "without gates": without_gates,
}


class Mixture(nn.Module):
    """A router and its experts between two layers; ``unused`` experts are never chosen."""

    def __init__(self, experts: nn.Module, *, unused: int = 0) -> None:
        super().__init__()
        for parameter in experts.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.before, self.router, self.after = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, EXPERTS),
            nn.Linear(WIDTH, WIDTH),
        )
        self.experts, self.unused = experts, unused

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.tanh(self.before(x)).flatten(0, 1)
        chances = self.router(tokens)[:, : EXPERTS - self.unused].softmax(-1)
        weights, chosen = chances.topk(CHOICES, -1)
        return self.after(self.experts(tokens, chosen, weights).view_as(x))


def batch(rows: int = ROWS) -> Batch:
    return {"x": torch.randn(rows, PLACES, WIDTH)}


@pytest.fixture
def reruns(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The experts that the generic rule ran again."""
    modules: list[nn.Module] = []
    original = rule.generic

    def noting(module: nn.Module, use: Any) -> Any:
        modules.append(module)
        return original(module, use)

    monkeypatch.setattr(rule, "generic", noting)
    return modules


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unused", [0, 2])
def test_gradients_are_those_of_a_loop_over_examples(kind: str, unused: int, reruns: list[nn.Module]) -> None:
    model = Mixture(KINDS[kind](), unused=unused)
    assert rule_for(model.experts) is rule.experts
    agree(model, squared, batch())
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert not engine.promoted
    assert not reruns


@pytest.mark.parametrize("kind", KINDS)
def test_one_trained_parameter_is_enough(kind: str) -> None:
    model = Mixture(KINDS[kind]())
    for name, parameter in model.experts.named_parameters():
        parameter.requires_grad_(name == "down_proj")
    agree(model, squared, batch())


def test_another_formula_gets_the_generic_rule(reruns: list[nn.Module]) -> None:
    model = Mixture(mixtral(Scaled))
    agree(model, squared, batch())
    assert set(reruns) == {model.experts}


def by_autocast(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return squared(model, batch).float()


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gets_the_rule_too(kind: str, implementation: str, reruns: list[nn.Module]) -> None:
    model = Mixture(KINDS[kind]())
    experts: Any = model.experts
    experts.config._experts_implementation = implementation
    x = batch(3 * ROWS)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        found = engine.rows(lambda: by_autocast(model, x), range(3 * ROWS), lambda gradient: gradient.clone())[1]
        norms = engine.accumulate(lambda: by_autocast(model, x)).norms
        assert engine.reduced
        assert not engine.promoted
    assert not reruns
    # A router's choice may change by rounding: the choices of the loop are those of the whole batch.
    expected = looped(model, by_autocast, x)
    far = [distance(one, other) for one, other in zip(found, expected, strict=True)]
    assert sorted(far)[len(far) // 2] < 1e-2
    formed = torch.tensor([length(each) for each in found], dtype=torch.float64)
    torch.testing.assert_close(norms, formed, rtol=2.0**-14, atol=0)


def test_float64_is_kept(reruns: list[nn.Module]) -> None:
    model = Mixture(mixtral()).double()
    every_row_agrees(model, squared, {"x": batch()["x"].double()}, tolerance=1e-9)
    assert not reruns


@pytest.mark.parametrize("kind", [Scaled, ScaledLittle])
def test_rounding_hides_no_other_formula(kind: type[nn.Module], reruns: list[nn.Module]) -> None:
    model = Mixture(mixtral(kind))
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: by_autocast(model, batch()))
    assert set(reruns) == {model.experts}


def test_tokens_of_other_examples_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that gives an example the tokens of its neighbour must not pass the comparison with autograd."""
    original = rule._tokens

    def shifted(chosen: Tensor, expert: int, count: int) -> rule.ExpertTokens:
        found = original(chosen, expert, count)
        others = (found.example + 1) % count
        return rule.ExpertTokens(found.token, found.slot, others, found.places.roll(1, 0))

    monkeypatch.setattr(rule, "_tokens", shifted)
    model = Mixture(mixtral())
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
        assert [each.module for each in engine.promoted], "the rule was used although it is wrong"


def test_an_expert_without_tokens_has_no_gradient() -> None:
    model = Mixture(mixtral(), unused=2)
    with PerExample(model, Clipping(norm=1.0)) as engine:
        engine.accumulate(lambda: squared(model, batch()))
    gradient = model.experts.get_parameter("gate_up_proj").grad
    assert gradient is not None
    assert gradient[: EXPERTS - 2].flatten(1).norm(dim=1).min() > 0
    assert gradient[EXPERTS - 2 :].abs().max() == 0
