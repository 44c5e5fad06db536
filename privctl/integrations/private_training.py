"""Private steps in the user's own loop: a loader of Poisson batches, clipped gradients, and noise before each step.

This enforces that exactly one step follows each drawn batch, that its gradients come from ``backward`` only, one per
row and clipped, and that noise is added before the optimizer reads them. The first batches are tested for losses that
depend on several rows (``neighbours``). What else the loop does cannot be checked, so the report marks every assumption
but the noise as asserted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privctl.accounting.gridded import NOTE, Released
from privctl.domain.errors import CommandError
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee
from privctl.domain.report import PrivacyReport
from privctl.integrations.drawn_rows import DrawnRows
from privctl.integrations.neighbours import Neighbours
from privctl.integrations.own_model import (
    LOOP,
    AsBegun,
    NotATuple,
    RoundingMargin,
    ScalerRefused,
    SetOnce,
    close_unused,
    fixed_digests,
    note_end,
    note_training,
    require_fixed,
    require_same_parameters,
    require_saved,
    require_unstepped,
)
from privctl.integrations.private_loader import PoissonLoader
from privctl.integrations.report import ASSERTED, guarantee_for, premises, report_place, usual_warnings, write
from privctl.integrations.users import Users, require_rows
from privctl.models.activations import fusible_activations, use_kernels
from privctl.train.clipping.engine import ClippedBatch, PerExample
from privctl.train.contribution.network_state import fixed_seed, secret_seed
from privctl.train.network.tensors import require_finite
from privctl.train.settings.adaptive_clipping import (
    AdaptiveClipping,
    adaptive_parameters,
    counted_gradients,
    sum_noise_multiplier,
)
from privctl.train.settings.choices import ClippingStyle
from privctl.train.steps.clip_norm import AdaptiveClipNorm
from privctl.train.steps.gradient_noise import noise_for
from privctl.train.steps.sampling import PoissonBatches

_NAME = "own-loop"


class _Stage(StrEnum):
    """The state of the loop between two steps."""

    STEPPED = "stepped"
    DRAWN = "drawn"
    DIFFERENTIATED = "differentiated"


class PrivateTraining(NotATuple):
    """A model, its optimizer and its data, trained in differentially private steps; see ``privctl.make_private``.

    ``loader`` yields Poisson batches, collated by the given loader's function and loaded in this process.
    ``steps_begun`` is the number of batches drawn, all of which are accounted for. ``close`` removes all hooks.
    """

    noise_multiplier, clip_norm, clipping = SetOnce[float](), SetOnce[float](), SetOnce[ClippingStyle]()

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        users: Users,
        batches: PoissonBatches,
        batch_size: int,
        noise_multiplier: float,
        clip_norm: float,
        clipping: ClippingStyle,
        delta: float,
        most_steps: int | None = None,
        adaptive: AdaptiveClipping | None = None,
    ) -> None:
        self.noise_multiplier, self.clip_norm, self.clipping, self.delta = noise_multiplier, clip_norm, clipping, delta
        self.steps_begun = 0
        self._model, self._optimizer, self._users, self._most_steps = model, optimizer, users, most_steps
        self._dataset, self._batches, self._batch_size = dataset, batches, batch_size
        self._margin = RoundingMargin(model)
        self._engine = PerExample(model, self._margin.clipping(clip_norm, clipping), each_pass=True)
        self._neighbours = Neighbours(users.per_draw, model, self._engine.trainable)
        self.loader = PoissonLoader(
            batches.rate,
            dataset,
            collate,
            draw=self._draw,
            leave=self._leave,
            require_own_rows=self._neighbours.require_own_rows,
        )
        self._sum_noise, self._changing, self._adaptive = noise_multiplier, None, adaptive
        self._count = torch.zeros((), dtype=torch.float64)
        if adaptive is not None:
            self._sum_noise = sum_noise_multiplier(noise_multiplier, adaptive.count_stddev)
            self._changing = AdaptiveClipNorm(
                adaptive,
                initial=clip_norm,
                noise_multiplier=noise_multiplier,
                batch_size=batch_size,
                reduced=self._margin.reduced,
            )
        self._parameters, self._fusible = list(self._engine.trainable.values()), fusible_activations(model)
        self._noise = noise_for(self._parameters[0].device)
        self._stage, self._drawn = _Stage.STEPPED, DrawnRows(users.per_draw)
        #: Whether the last backward on the drawn batch failed, a batch was not loaded, the pass that drew it has ended.
        self._failed = self._not_loaded = self._left = False
        self._empty = False  # whether no example was drawn
        self._sums: list[Tensor] = []
        close_unused(optimizer, self)
        require_unstepped(model, optimizer)
        require_same_parameters(self._optimizer, self._parameters)
        self._begun = AsBegun(model, self._engine.trainable)
        self._begun.require()
        self._fixed = fixed_digests(model, self._parameters)
        self._hooks: list[Any] = [
            ScalerRefused(optimizer),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def backward(self, losses_of: Callable[[], Tensor]) -> ClippedBatch:
        """Clip the gradient of each row of the drawn batch, and keep their sum for ``optimizer.step()``.

        ``losses_of`` runs the model on the batch, or on the current piece from ``pieces``, and returns the losses (n,),
        where loss i depends on row i only. The first call compares the sum with autograd's, which takes one more
        backward pass; in the first three batches ``losses_of`` is called again with other rows, to see that the losses
        of the remaining ones stay the same. With several records per user, the mean gradient of each user's rows is
        clipped.

        Returns losses and norms of the rows, or of the users, which are private: no guarantee covers them.

        Raises CommandError for a call out of turn and for a wrong number of losses; InputError for losses or a model
        from which no gradients of single examples follow. The step counts as begun. Call this again for the same batch,
        or the training cannot go on: no guarantee holds if a batch is left out because of its content.
        """
        if self._stage is _Stage.STEPPED:
            raise CommandError(
                "no batch was drawn since the last step; call backward once for each batch of the loader"
            )
        if self._stage is _Stage.DIFFERENTIATED:
            raise CommandError(
                "backward was called before for this batch, and its rows would count twice; call optimizer.step() first"
            )
        if not callable(losses_of):
            raise CommandError("backward takes a function that runs the model and returns the losses, not the losses")
        self._begun.require()
        rows = self._drawn.expected()
        try:
            own_losses = self._users.together(losses_of, rows)
            # With known draws, such as dropout's, a record would visibly move those of all rows behind it.
            with use_kernels(self._fusible), fixed_seed(self._parameters[0].device, secret_seed()):
                self._neighbours.before(own_losses, rows)
                clipped = self._engine.accumulate(own_losses, weight=1 / self._batch_size, run=self._users.per_draw)
                require_rows(len(clipped.losses) * self._users.per_draw, rows)
                reduced = self._engine.reduced or self._margin.reduced
                self._neighbours.require_own_losses(own_losses, self.loader.latest, self._drawn, reduced=reduced)
            self._add(clipped)
            self._drawn.done += rows
        except BaseException:  # interrupts too, as a caller that catches one may continue with the next batch
            self._failed = True
            raise
        finally:
            for parameter in self._parameters:
                parameter.grad = None
        self._failed = False
        if self._drawn.done == self._drawn.rows:
            self._stage = _Stage.DIFFERENTIATED
        return clipped

    def pieces(self, most: int) -> Iterator[slice]:
        """Slices of at most ``most`` rows of the drawn batch, for a batch that is too large to compute at once.

        Call ``backward`` once for each slice, with the losses of its rows only, then ``optimizer.step()`` once. The
        result is that of the whole batch. The records of one user are never in two slices.

        Raises CommandError for a call out of turn, for a ``most`` that is no whole number or below the records of one
        user, and for a slice without a call of ``backward``.
        """
        if self._stage is not _Stage.DRAWN:
            raise CommandError("pieces divides a drawn batch that has no gradients yet; call it before backward")
        return self._drawn.pieces(most)

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """The guarantee for the steps begun so far, at ``delta`` (by default that of ``make_private``).

        Raises CommandError before the first step, after a batch that failed, and for a delta out of range.
        """
        self._require_no_failure()
        if not self.steps_begun:
            raise CommandError("no step was begun yet, so there is no guarantee to state")
        noise = Assumption(
            name="secret noise",
            statement=f"nobody can foretell the noise: {self._noise.description}",
            state=AssumptionState.ENFORCED if self._noise.cryptographic else ASSERTED,
        )
        counts = () if self._adaptive is None else (counted_gradients(ASSERTED),)
        assumptions = [*premises(self._batches.size, LOOP, users=self._users), *counts, noise, self._margin.premise()]
        released = Released(coordinates=self._released)
        return guarantee_for(self._ledger(), self.delta if delta is None else delta, _NAME, assumptions, NOTE, released)

    def report(
        self,
        model: str | os.PathLike[str],
        *,
        delta: float | None = None,
        output: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> PrivacyReport:
        """Write the report of the finished training, and return it.

        ``model`` is the safetensors file or Hugging Face directory that the trained weights were saved to. The report
        is written beside it, or to ``output``.

        Raises InputError where other weights are saved there, or frozen weights or buffers changed during the training;
        CommandError for an existing report, before the first step, and after a batch that failed.
        """
        place = report_place(Path(model), None if output is None else Path(output), force)
        guarantee = self.guarantee(delta)
        self._begun.require_values()
        require_finite(self._model, self.steps_begun)
        require_fixed(self._model, self._parameters, self._fixed)
        require_saved(self._model, self._engine.trainable, Path(model))
        parameters: dict[str, Any] = {
            "examples": self._batches.size,
            **self._users.parameters(),
            "batch_size": float(self._batch_size),
            "sample_rate": self._batches.rate,
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip_norm,
            "clipping": str(self.clipping),
            "delta": guarantee.delta,
            "optimizer": type(self._optimizer).__name__,
            "steps_begun": self.steps_begun,
            "released_numbers": self._released,
            "noise_source": self._noise.description,
        }
        if self._adaptive is not None:
            parameters |= adaptive_parameters(self._adaptive, self._sum_noise, self.clip_norms)
        return write(
            Path(model),
            place,
            program=_NAME,
            parameters=parameters,
            mechanism=self._ledger(),
            guarantees=(guarantee,),
            warnings=(*usual_warnings(guarantee.delta, self._batches.size), *self._users.warnings()),
        )

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """The clip norms of all steps so far and of the next one. They are part of what was released."""
        if self._changing is None:
            return (self.clip_norm,) * (self.steps_begun + 1)
        return tuple(self._changing.norms)

    def close(self) -> None:
        """Remove all hooks from the model and the optimizer; no report follows from weights that change after this."""
        if self.steps_begun:
            note_end(self._model)
        self._engine.close()
        for hook in self._hooks:
            hook.remove()

    @property
    def _released(self) -> int:
        numbers = sum(parameter.numel() for parameter in self._parameters) + (self._adaptive is not None)
        return self.steps_begun * numbers

    def _ledger(self) -> Ledger:
        event = SampledGaussian(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self._batches.rate,
            steps=self.steps_begun,
            batches=Batches.POISSON,
        )
        return Ledger(events=(event,))

    def _draw(self) -> list[int]:
        """The rows of the next step, which counts as begun from now on; of a batch without any, those of one example.

        The gradient of that example is not added. Were there no batch, learning rate schedules and counts of steps in
        the loop would show that a record was not drawn.
        """
        self._require_no_failure()
        if self._stage is not _Stage.STEPPED and not self._left:
            raise CommandError(
                "the previous batch was not stepped; call backward and step() of the optimizer given to make_private "
                "for every batch. To accumulate gradients, give the loader the whole batch_size, and use pieces(ROWS)"
            )
        if len(self._dataset) != self._users.records:
            raise CommandError(
                f"the data set had {self._users.records} examples and now has {len(self._dataset)}; do not change it "
                "during the training"
            )
        if self._most_steps is not None and self.steps_begun >= self._most_steps:
            raise CommandError(
                f"all {self._most_steps} steps that epsilon allows were made; end the loop after the given epochs, or "
                "start again with more epochs"
            )
        if not self.steps_begun:
            require_unstepped(self._model, self._optimizer)  # a state may have been loaded meanwhile
        if self.steps_begun == 1:
            require_fixed(self._model, self._parameters, self._fixed)  # rather than after the whole training alone
        drawn = self._batches.batch(self.steps_begun).tolist()
        self._empty = not drawn
        rows = self._users.records_of(drawn or [0], self.steps_begun)
        self.steps_begun += 1
        note_training(self._parameters)
        self._drawn.begin(len(rows))
        self._stage, self._left = _Stage.DRAWN, False
        return rows

    def _leave(self, failed: bool) -> None:
        """Note that a pass ended, or that a batch ``failed`` to load; its step may be made until another is drawn."""
        self._not_loaded |= failed
        self._left = True

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Mapping[str, Any]) -> None:
        if self._stage is _Stage.STEPPED:
            raise CommandError("optimizer.step() without a batch: draw one from the private loader, then call backward")
        if self._stage is _Stage.DRAWN and self._drawn.done:
            raise CommandError(
                f"optimizer.step() after {self._drawn.done} of {self._drawn.rows} rows of the batch; call backward for "
                "every piece first"
            )
        if self._stage is _Stage.DRAWN:
            raise CommandError(
                "optimizer.step() before backward: this batch has no clipped gradients yet; call backward of the "
                "private training, with a function that returns the losses, in place of loss.backward()"
            )
        if any(callable(argument) for argument in (*arguments[1:], *options.values())):
            raise CommandError("optimizer.step() was given a closure, which computes gradients of its own; give none")
        require_same_parameters(self._optimizer, self._parameters)
        self._begun.require()
        changing = self._changing
        stddev = self._sum_noise * (self.clip_norm if changing is None else changing.current) / self._batch_size
        beside = [] if changing is None else [changing.scaled_count(self._sums, self._count)]
        self._noise.release([*self._sums, *beside], stddev, self.steps_begun - 1)
        if changing is not None:
            changing.update(float(beside[0]))
            self._engine.clipping = self._margin.clipping(changing.current, self.clipping)
        for parameter, noisy in zip(self._parameters, self._sums, strict=True):
            parameter.grad = noisy
        self._sums = []

    def _after_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Mapping[str, Any]) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._engine.bound_rows()
        note_training(self._parameters, stepped=True)
        self._stage = _Stage.STEPPED

    def _require_no_failure(self) -> None:
        """Raise CommandError where a batch that failed was left without a step, which reveals its content."""
        if self._not_loaded or (self._failed and self._stage is _Stage.DRAWN):
            raise CommandError(
                "a batch failed, in loading or in backward, and was not stepped, which reveals its content; no "
                "guarantee holds for these weights: repair the data or the loss, and start again"
            )

    def _add(self, clipped: ClippedBatch) -> None:
        """Add the gradients of the rows just computed to the sums; the first rows of a batch start new sums."""
        self._margin.note(reduced=self._engine.reduced)
        if self._engine.reduced and self._changing is not None:
            self._changing.leave_more()
        given = (torch.zeros_like(p) if p.grad is None or self._empty else p.grad for p in self._parameters)
        gradients = [gradient.contiguous() for gradient in given]  # noise is added to slices of the flat tensor
        count = torch.zeros((), dtype=torch.float64)
        if self._changing is not None and not self._empty:
            count = self._changing.count_of(clipped.norms)
        if not self._drawn.done:
            self._sums, self._count = gradients, count
            return
        for total, gradient in zip(self._sums, gradients, strict=True):
            total += gradient
        self._count = self._count + count
