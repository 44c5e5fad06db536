"""Per-example clipping in one backward pass or two: ghost norms and book-keeping for any model of torch modules.

No weight requires a gradient during the pass, so that autograd computes none. Each module that owns trained parameters
keeps its inputs and its output's gradients, from which come first every example's norm (Lee and Kifer 2020; Li et al.
2022) and then the sum of the clipped gradients (Bu et al. 2022, "book-keeping"). Not by Opacus, whose ghost clipping
takes a second backward pass (``python -m tests.bench dp-sgd`` compares them). In two passes, through the same graph,
nothing is kept: see ``sinks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.parallel import short_of_memory
from privctl.train.clipping import check, promotion, rules
from privctl.train.clipping.embedding import bound_rows, bounded
from privctl.train.clipping.factors import Clipping, clipping_factors, sum_squares
from privctl.train.clipping.passes import Pass, first_backward, measurer, norms_of, require_losses, require_repeatable
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.promotion import NotSeparatedError, Promotion
from privctl.train.clipping.rerun import UNRUNNABLE, Mode
from privctl.train.clipping.shards import Leaves, add_sum, blank_like
from privctl.train.clipping.sinks import Added, Kept, Sink, Wanted
from privctl.train.clipping.sums import add
from privctl.train.clipping.taps import Recorder
from privctl.train.clipping.terms import GradientTerm, Squares


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedBatch:
    """A batch's losses (n,), its gradients' norms before clipping (n,) float64, and which were made ``shorter`` (n,).

    All of it comes from the private examples and is no part of a guarantee. It stays on the device: to look at it is to
    wait for all that was queued there.
    """

    losses: Tensor
    norms: Tensor
    shorter: Tensor


class NotFiniteError(InputError):
    """The loss or the gradient of some ``rows`` of a batch is not finite."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(
            f"row {rows[0]} of the batch has a loss or gradient that is not finite; "
            "lower the learning rate, or check the model and that row"
        )
        self.rows = rows


class PerExample:
    """Clips each example's gradient of ``model``'s parameters that require one; use it as a context manager.

    Parameters are float32 or float64. Raises InputError for a model that cannot work, naming module and remedy.

    Where a module's examples cannot be told apart, the one above it is promoted: it is differentiated as a whole, by
    running it again on one example at a time. Those beyond ``promoted`` are found on the first batches, whose passes
    are then repeated; with ``may_promote`` false such a model is refused.

    With two ``passes`` no layer's inputs and output gradients are kept until all norms are known: a second backward
    pass adds what the first measured. Results are the same up to rounding. With ``compared``, another object has
    compared all of these parameters' gradients with autograd's.
    """

    def __init__(
        self,
        model: nn.Module,
        clipping: Clipping,
        promoted: Sequence[Promotion] = (),
        *,
        may_promote: bool = True,
        passes: int = 1,
        compared: bool = False,
    ) -> None:
        self.clipping, self.passes = clipping, passes
        self._model, self._may_promote = model, may_promote
        self.trainable: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        trainable_ids = {id(parameter) for parameter in self.trainable.values()}
        self._modules = [
            (name, module, any(id(p) in trainable_ids for p in module.parameters(recurse=False)))
            for name, module in model.named_modules()
        ]
        self._check_parameters()
        self._bounded = bounded(model)
        self.bound_rows()
        self._promoted = {each.module: each for each in promoted}
        self._recorder, self._groups = self._watched()
        self._leaves = Leaves(model, self.trainable)
        self._rounds = 0  # of promotion
        self._latest: Pass | None = None
        self._run = 1  # of rows an example
        self._checked = compared
        self._checked_alone = False  # and so far on a single example, which shows little
        #: Parameters that no batch has used so far: autograd detects whether a later one does, outside all hooks.
        self._idle: set[str] = set()
        self._used: set[str] = set()

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters that are clipped together."""
        return self._groups

    @property
    def promoted(self) -> tuple[Promotion, ...]:
        """The modules that are differentiated as a whole, as far as is known."""
        modes = self._recorder.modes()
        return tuple(replace(each, mode=modes.get(path, each.mode)) for path, each in sorted(self._promoted.items()))

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        """Inside, the seconds spent on running promoted modules again are counted; the value returns them."""
        recorder = self._recorder
        before = recorder.seconds()
        recorder.measure(True)
        try:
            yield lambda: recorder.seconds() - before
        finally:
            recorder.measure(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the model as it was."""
        self._recorder.remove()
        self._leaves.remove()

    def bound_rows(self) -> None:
        """Shorten all rows of embeddings with a ``max_norm``; call it whenever weights were set, so after every step.

        A look-up would shorten those that it reads alone, in which shows what a batch read.
        """
        bound_rows(self._bounded)

    def accumulate(
        self, losses_of: Callable[[], Tensor], *, weight: float = 1.0, look: bool = True, run: int = 1
    ) -> ClippedBatch:
        """Add ``weight`` times the sum over examples of clipped gradients to the ``grad`` of every trained parameter.

        ``losses_of`` runs the forward pass and returns losses (n,), n > 0, that of example i from row i alone, or with
        a ``run`` above 1 from rows i run to (i + 1) run - 1. On the first call the result is compared with autograd's,
        which costs one more backward pass. Raises, with every ``grad`` as it was, NotFiniteError for examples whose
        loss or gradient is not finite (where one is, others of its batch may only seem to be) and InputError for a
        parameter whose use was not seen.

        To know whether all is finite is to wait for a GPU. Without ``look``, calls after the first do not: then
        whoever uses the sum must look at the losses and norms that were returned, and where one is not finite, drop
        every ``grad``.

        Where processes share the parameters, each calls this as often as all others, and gets its shard of the sum over
        all of them; one whose rows are not finite adds nothing to it.
        """
        self._run = run
        try:
            passed, squares, norms = self._separated(losses_of, look=look)
            with torch.no_grad(), full_precision(passed.losses.device):
                scales, shorter = self._scales(squares, norms, weight)
            self._add(passed, scales)
        except NotFiniteError:
            self._add_nothing()
            raise
        finally:
            self._latest, self._run = None, 1
        return ClippedBatch(losses=passed.losses.detach(), norms=norms, shorter=shorter)

    def verify(self, losses_of: Callable[[], Tensor], rows: int = 1) -> None:
        """Compare with autograd now, without adding gradients, where ``accumulate`` would do so for so many ``rows``.

        This is for a network that draws random numbers in every backward pass, so that no two passes agree: verify it
        without these draws, on the first batch. Raises what ``accumulate`` does.
        """
        if self._leaves.any_of(not self._checked or (self._checked_alone and rows > 1)):
            self._separated(losses_of)
            self._latest = None

    def rows(
        self, losses_of: Callable[[], Tensor], rows: Sequence[int], keep: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """The losses (n,), and for each of ``rows`` the result of ``keep`` on its unclipped gradient, by parameter.

        These are the gradients that ``accumulate`` would clip and add. Nothing is added, and no more than one parameter
        of one row is held at a time. Parameters that the pass did not use are left out. Raises as ``accumulate`` does.
        """
        passed, _, _ = self._separated(losses_of, wanted=(rows, keep))
        self._latest = None
        with torch.no_grad(), full_precision(passed.losses.device):
            return passed.losses.detach(), passed.measured.rows((rows, keep))

    def terms(self, losses_of: Callable[[], Tensor]) -> tuple[Tensor, Mapping[str, Sequence[GradientTerm]]]:
        """The losses (n,), and by parameter what makes up each example's unclipped gradient; one pass keeps it all.

        Compared as by ``accumulate``, which raises the same InputErrors; numbers that are not finite are handed on.
        """
        self._check_modules()
        passed = self._pass(losses_of)
        assert isinstance(passed.measured, Kept)
        if passed.expected is not None:
            with torch.no_grad(), full_precision(passed.losses.device):
                self._compare_sums(passed, passed.expected)
        return passed.losses.detach(), passed.measured.terms

    def _separated(
        self, losses_of: Callable[[], Tensor], *, look: bool = True, wanted: Wanted | None = None
    ) -> tuple[Pass, dict[str, Squares], Tensor]:
        """A pass, with squares and norms of a batch whose examples were told apart, promoting modules until so."""
        while True:
            self._check_modules()
            try:
                self._latest = passed = self._pass(losses_of, wanted)
                with torch.no_grad(), full_precision(passed.losses.device):
                    squares = passed.measured.squares()
                    norms = self._norms(squares, passed.losses, look=look or passed.expected is not None)
                    if passed.expected is not None:
                        self._compare(passed, norms, passed.expected)
                return passed, squares, norms
            except NotSeparatedError as found:
                self._promote(found)
            except UNRUNNABLE as error:
                repeated = [
                    each.module for each in self._promoted.values() if each.repeats or each.mode is Mode.REPEATED
                ]
                if self._checked or not repeated or short_of_memory(error):
                    raise
                fault = f"cannot have its one output repeated for each example ({type(error).__name__})"
                self._promote(NotSeparatedError(self._model, dict.fromkeys(repeated, fault)))

    def _promote(self, found: NotSeparatedError) -> None:
        """Take the modules above those of ``found`` as a whole, or raise it where that is not to be."""
        if not self._may_promote:
            raise found
        grown = promotion.above(self._model, self._promoted, found)
        self._rounds += 1
        if grown == self._promoted or self._rounds > promotion.ROUNDS_EACH * len(self._modules):
            raise InputError(f"{found}; taking the module above it as a whole changed nothing, so freeze it") from None
        self._promoted = grown
        self._recorder.remove()
        self._recorder, self._groups = self._watched()
        self._checked, self._used = False, set()

    def _watched(self) -> tuple[Recorder, list[list[str]]]:
        """Hooks on the modules that own trained parameters, and the parameters that are clipped together."""
        sites = promotion.sites(self._model, self.trainable, self._promoted)
        return Recorder(self._model, sites), promotion.groups(sites, self.trainable, self.clipping.style)

    def _pass(self, losses_of: Callable[[], Tensor], wanted: Wanted | None = None) -> Pass:
        """Forward and backward pass; returns what was recorded and, the first time, autograd's reference."""
        expected = None
        # A pass is made together where processes share the parameters: one that compares makes all compare.
        unsettled = self._leaves.any_of(not self._checked or self._checked_alone)
        watched = set(self.trainable) if unsettled else self._idle
        with self._gradients_only_for(watched):
            self._recorder.run = self._run
            anchor = self._recorder.start(next(iter(self.trainable.values())).device)
            try:
                with torch.enable_grad():
                    losses = losses_of()
                require_losses(losses, self._recorder.rows, self._run)
                if self._leaves.any_of(not self._checked or (self._checked_alone and len(losses) > 1)):
                    with self._recorder.muted():
                        expected = check.reference(losses, self._leaves.found)
                idle = [] if expected else sorted(self._idle & self._leaves.found.keys())
                sources = [anchor, *(self._leaves.found[name] for name in idle)]
                uses = dict(self._recorder.uses)  # before layers are recomputed
                self._recorder.sink = measured = measurer(self.passes, uses, self.trainable, losses, expected, wanted)
                gradients = first_backward(self.passes, losses, sources)
            except RuntimeError as error:
                if "use_reentrant" not in str(error):
                    raise
                raise InputError(
                    "the model is checkpointed with use_reentrant=True, which hides its modules from the backward pass;"
                    " enable gradient checkpointing with use_reentrant=False"
                ) from None
            finally:
                self._recorder.stop()
        if self._recorder.faults:
            raise NotSeparatedError(self._model, self._recorder.faults, shared=self._recorder.shared)
        if self._leaves.any_of(
            any(gradient is not None for gradient in gradients[1:])
        ):  # a parameter whose use was never compared
            self._checked = False
            return self._pass(losses_of, wanted)
        passed = Pass(losses=losses, uses=uses, measured=measured, expected=expected, watched=frozenset(watched))
        if expected is not None and self.passes > 1:  # in all processes that share the parameters, or in none
            again, reduced = partial(self._again, passed, last=False), self._recorder.reduced
            require_repeatable(passed, again, self.trainable, reduced=reduced)
        return passed

    def _again(self, passed: Pass, sink: Sink, *, last: bool) -> None:
        """Another backward pass through the graph of ``passed``, which the ``last`` one leaves no more."""
        with self._gradients_only_for(set(passed.watched)), self._recorder.again(sink) as anchor:
            torch.autograd.grad(passed.losses.sum(), [anchor], retain_graph=not last, allow_unused=True)
        if self._recorder.faults:
            raise NotSeparatedError(self._model, self._recorder.faults, shared=self._recorder.shared)

    def _norms(self, squares: Mapping[str, Squares], losses: Tensor, *, look: bool = True) -> Tensor:
        norms = norms_of(squares, losses)
        if look:
            sound = torch.isfinite(norms) & torch.isfinite(losses.detach())
            if not sound.all():
                raise NotFiniteError(tuple((~sound).nonzero().flatten().tolist()))
        return norms

    def _compare_sums(self, passed: Pass, expected: check.Reference) -> None:
        sketches = passed.measured.sketches(self.trainable, expected.weights)
        if names := check.differing(sketches, expected, reduced=self._recorder.reduced):
            raise NotSeparatedError(self._model, self._recorder.users(names), check.another_gradient(names[0]))

    def _compare(self, passed: Pass, norms: Tensor, expected: check.Reference) -> None:
        self._compare_sums(passed, expected)
        check.compare_norms(passed.measured.row_norms(check.compared_rows(len(norms))), norms)
        self._checked, self._checked_alone = True, len(norms) == 1
        self._used |= {name for name in self.trainable if name in passed.measured.used or name in expected.sketches}
        self._idle = self.trainable.keys() - self._used

    def _scales(self, squares: Mapping[str, Squares], norms: Tensor, weight: float) -> tuple[dict[str, Tensor], Tensor]:
        """By parameter what its examples' gradients are multiplied by, (n,), and which are made shorter (n,)."""
        nothing = Squares(torch.zeros_like(norms), torch.zeros_like(norms))
        every = {name: squares.get(name, nothing) for name in self.trainable}
        factors = clipping_factors(self.clipping, [sum_squares(every, names) for names in self._groups])
        scales: dict[str, Tensor] = {}
        for names, factor in zip(self._groups, factors, strict=True):
            scales |= dict.fromkeys(names, factor * weight)
        return scales, torch.stack(factors).amin(0) < 1

    def _add(self, passed: Pass, scales: Mapping[str, Tensor] | None) -> None:
        """Add the sums with ``scales`` to the ``grad`` of every parameter; without, what other processes have."""
        if not isinstance(passed.measured, Kept):
            with self._leaves.summing():
                self._again(passed, Added(self.trainable, scales, passed.losses.device, self._leaves), last=True)
            for parameter in () if self._leaves.shared else self.trainable.values():
                if parameter.grad is None:  # no example used it
                    parameter.grad = blank_like(parameter, zeros=True)
            return
        terms = passed.measured.terms
        with torch.no_grad(), full_precision(passed.losses.device):
            for names in self._groups:
                for name in names:
                    parameter, uses = self.trainable[name], terms.pop(name, [])
                    if scales is None:
                        add_sum(parameter, blank_like(parameter, zeros=True))
                    else:
                        add(parameter, uses, scales[name])

    def _add_nothing(self) -> None:
        """Take part in the sums that other processes form now, where they share the parameters."""
        if self._leaves.shared and self._latest is not None:
            self._add(self._latest, None)

    def _check_parameters(self) -> None:
        if not self.trainable:
            raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
        for name, parameter in self.trainable.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"parameter {name!r} is {parameter.dtype}, in which a clipped gradient would be rounded past the "
                    "clip norm; load it as float32 and use autocast"
                )
        self._check_modules()

    def _check_modules(self) -> None:
        for name, module, trained in self._modules:
            rules.check(name, module, trained=trained)

    @contextmanager
    def _gradients_only_for(self, names: set[str]) -> Iterator[None]:
        """Inside, no other trained parameter requires a gradient."""
        try:
            for name, parameter in self.trainable.items():
                parameter.requires_grad_(name in names)
            yield
        finally:
            for parameter in self.trainable.values():
                parameter.requires_grad_(True)
