"""A small network on points, trained by FERRET; derivatives by whole backward passes, which are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from privctl.models.choices import TaskName
from privctl.models.tasks.base import group_by_length
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.directional import Derivatives
from privctl.train.methods.ferret.amounts import PrivateExamples, RecordedStream
from privctl.train.methods.ferret.groups import group_tensors, repeat_groups, trainable
from privctl.train.methods.ferret.masks import Masks
from privctl.train.methods.ferret.publish import Publisher, Signs
from privctl.train.methods.ferret.trainer import FerretTrainer, FinishedFerret
from privctl.train.methods.ferret.update import UpdateRule
from privctl.train.settings.choices import DerivativeMethod
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.sampling import BatchSource, Passes, PoissonBatches

CPU = torch.device("cpu")
EXAMPLES, BATCH = 20, 5


class Points:
    """Squared errors of a network on rows whose last column is to be told from the others."""

    name = TaskName.CAUSAL_LM

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.passes = 0

    def __len__(self) -> int:
        return len(self.rows)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        return group_by_length(units, lambda _: 1, max_examples, max_tokens)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        return {"rows": self.rows[list(examples)]}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        self.passes += 1
        found: Tensor = (network(batch["rows"][:, :-1])[:, 0] - batch["rows"][:, -1]) ** 2
        return found

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        return {"loss": 0.0}


def rows(count: int = EXAMPLES) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def recipe(steps: int, **changes: Any) -> TrainingSettings:
    settings = {"sample_rate": BATCH / EXAMPLES, "learning_rate": 0.01, **changes}
    return TrainingSettings(method="ferret", steps=steps, batch_size=float(BATCH), **settings)


def trainer(
    steps: int = 60,
    *,
    chance: float = 0.1,
    publisher: Publisher | None = None,
    groups: str = "max",
    directions: int = 1,
    rule: Mapping[str, Any] | None = None,
    task: Points | None = None,
    batches: BatchSource | None = None,
    workers: Workers | None = None,
    **changes: Any,
) -> FerretTrainer:
    """Bare signs on public passes, or whatever ``publisher`` makes on Poisson batches."""
    net, plan, workers = network(), recipe(steps), workers or Workers()
    sizes = {name: p.numel() for name, p in trainable(net).items()}
    made = repeat_groups(group_tensors(sizes, groups), directions)
    passes: BatchSource = Passes(EXAMPLES, BATCH, seed=3)
    if publisher is not None:
        passes = PoissonBatches(EXAMPLES, plan.sample_rate, NoiseSource(9))
    source = PrivateExamples(
        network=net,
        task=task or Points(rows()),
        dimensions=[sum(sizes[name] for name in group) / directions for group in made],
        recipe=plan,
        batches=batches or passes,
        engine=Derivatives(net, DerivativeMethod.BACKWARD),
        publisher=publisher or Signs(),
        workers=workers,
        device=CPU,
    )
    settings: dict[str, Any] = {
        "masks": Masks(seed=b"seed", groups=len(made), fire_probability=chance, steps=steps),
        "rule": UpdateRule(steps=steps, learning_rate=0.01, directions=directions, **(rule or {})),
        "source": source,
        "epoch_steps": plan.steps_per_epoch,
        "device": CPU,
        "once": publisher is not None,
        "workers": workers,
    }
    return FerretTrainer(network=net, groups=made, **{**settings, **changes})


def replayed(trained: FerretTrainer, outcome: FinishedFerret) -> FerretTrainer:
    """The same steps on a fresh network, from what was published alone; already run."""
    again = replace(trained, network=network(), source=RecordedStream(published=outcome.amounts), folder=None)
    again.run(lost=outcome.lost)
    return again


def weights(trained: FerretTrainer) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trained.network.parameters()])


def stopping(after: int) -> Callable[[], bool]:
    """Says yes when asked for the ``after``-th time."""
    asked = iter(range(1, 10**6))
    return lambda: next(asked) == after
