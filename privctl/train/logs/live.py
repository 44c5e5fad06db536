"""The metrics of a running training: loss, epsilon spent so far, speed and memory.

The loss of a private run, and everything else that follows from its secret batches, is as private as the examples, and
is only shown with --show-unprotected. The steps begun, their privacy cost and the expected number of examples are
public. Time and memory depend slightly on the secret batches: the terminal shows them to whoever runs the training, but
logs omit them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privctl.accounting.gridded import Released, epsilon_with_charge
from privctl.accounting.ledger import COARSE, epsilon_bound
from privctl.domain.events import Ledger
from privctl.models.tasks.corpus import CorpusTask
from privctl.train.logs.withheld import withholds
from privctl.train.network.memory import peak_memory
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.ledgers import ledger_of

#: A function from a number of begun steps to their ledger, None if there is none.
Spent = Callable[[int], Ledger | None]

WITHHELD = (
    "losses of the private examples are withheld while the training runs, as no guarantee covers them; "
    "--show-unprotected shows them"
)
SHOWN = "the losses below are exact and private, and no guarantee covers them: keep what this run shows to yourself"

#: The mean loss is over at most this many passes through the network.
_LATEST = 64
#: Epsilon is computed at most this often, in seconds, ...
_EVERY = 5.0
#: ... and so rarely that it takes at most this fraction of the time.
_SHARE = 0.01


def steps_ledger(job: TrainingJob) -> Spent:
    """The ledgers of a training by noisy gradients, each with all side releases of the whole run."""
    protection, recipe = None if job.plan is None else job.plan.protection, job.recipe
    side = job.request.method.side_releases(job.request, len(job.task), recipe.steps, recipe.sample_rate)
    measured = None if side is None else side.event(recipe.noise_multiplier)

    def spent(begun: int) -> Ledger | None:
        return ledger_of(recipe, begun, protection, measured) if job.request.method.noised and begun else None

    return spent


@dataclass(slots=True, kw_only=True)
class EpsilonSoFar:
    """The epsilon that ``job`` has spent, by the ledgers of ``spent``; ``trained`` numbers are released per step."""

    job: TrainingJob
    spent: Spent
    trained: int = 0
    _known: tuple[int, float] | None = None
    _next: float = 0.0

    def at(self, begun: int, now: float) -> tuple[int, float] | None:
        """The number of begun steps, ``begun`` or an earlier one, with an upper bound on their epsilon.

        It is only recomputed if that is due at time ``now`` (seconds), and after the last step.
        """
        delta, budget = self.job.delta, self.job.request.budget.epsilon
        early = now < self._next and begun < self.job.recipe.steps
        if delta is None or early or (self._known is not None and self._known[0] == begun):
            return self._known
        if (ledger := self.spent(begun)) is not None:
            started = time.perf_counter()
            released = Released(coordinates=max(1, begun * self.trained) * self.job.recipe.most_runs)
            whole, _ = epsilon_with_charge(lambda less: epsilon_bound(ledger, less, precision=COARSE), released, delta)
            # The coarse grid may round the last steps up past the budget, although the budget is met.
            self._known = begun, whole if budget is None else min(whole, budget)
            self._next = now + max(_EVERY, (time.perf_counter() - started) / _SHARE)
        return self._known


@dataclass(slots=True, kw_only=True)
class LiveMeasures:
    """The metrics of a running ``job`` on ``device``.

    A step only costs a few additions; anything that takes longer is done when ``now`` is called.
    """

    job: TrainingJob
    device: torch.device
    epsilon: EpsilonSoFar
    clock: Callable[[], float] = time.monotonic
    _begun: int = 0
    _steps: int = 0
    _examples: int = 0
    _tokens: int = 0
    _losses: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    @property
    def shown(self) -> bool:
        """Whether exact metrics of the examples are shown."""
        return not withholds(self.job.request) or self.job.request.show_unprotected

    def step(self, begun: int, examples: Sequence[int], losses: Sequence[Tensor]) -> None:
        """See ``watch.Watch``."""
        self._begun, self._steps = begun, self._steps + 1
        if self.shown:
            self._examples += len(examples)
            self._losses.extend(losses)
            if isinstance(self.job.task, CorpusTask):
                self._tokens += sum(map(self.job.task.length, examples))

    def epoch(self, begun: int, measures: Mapping[str, float]) -> None:
        """See ``watch.Watch``."""

    def now(self) -> Mapping[str, float]:
        """The metrics since the last call: mean loss, examples and tokens per second, memory, epsilon so far.

        If exact metrics are withheld there is no loss, and ``expected_records_per_second`` counts expected batch sizes.
        """
        now = self.clock()
        seconds = max(1e-9, now - self._since)
        measures: dict[str, float] = {}
        if self._losses:
            measures["training_loss"] = float(torch.cat([losses.detach().double() for losses in self._losses]).mean())
        if self.shown:
            measures["records_per_second"] = self._examples / seconds
            if self._tokens:
                measures["tokens_per_second"] = self._tokens / seconds
        else:
            measures["expected_records_per_second"] = self._steps * self.job.recipe.batch_size / seconds
        measures["memory_bytes"] = float(peak_memory(self.device))
        if (known := self.epsilon.at(self._begun, now)) is not None:
            measures["epsilon_at_step"], measures["epsilon"] = float(known[0]), known[1]
        self._since, self._steps, self._examples, self._tokens = now, 0, 0, 0
        self._losses.clear()
        return measures
