"""Per-example clipping in one backward pass: ghost norms and book-keeping for any model of torch modules.

No weight requires a gradient during the pass, so that autograd computes none. Each module that owns trained parameters
keeps its inputs and its output's gradients, from which come first every example's norm (Lee and Kifer 2020; Li et al.
2022) and then the sum of the clipped gradients (Bu et al. 2022, "book-keeping").
Not by Opacus, whose ghost clipping takes a second backward pass (``python -m tests.bench dp-sgd`` compares them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.parallel import short_of_memory
from privctl.train.choices import ClippingStyle
from privctl.train.clipping import check, promotion, rules
from privctl.train.clipping.embedding import bound_rows, bounded
from privctl.train.clipping.factors import Clipping, clipping_factors, sum_squares
from privctl.train.clipping.measure import squares_by_parameter
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.promotion import NotSeparatedError, Promotion
from privctl.train.clipping.rerun import UNRUNNABLE, Mode
from privctl.train.clipping.shards import Leaves, add_sum, blank_like, is_shard
from privctl.train.clipping.taps import Recorder, Site
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

    @property
    def clipped_fraction(self) -> float:
        """The share of gradients that were made shorter."""
        return float(self.shorter.double().mean())


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
    """

    def __init__(
        self, model: nn.Module, clipping: Clipping, promoted: Sequence[Promotion] = (), *, may_promote: bool = True
    ) -> None:
        self.clipping = clipping
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
        self._checked = False
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

    def accumulate(self, losses_of: Callable[[], Tensor], *, weight: float = 1.0, look: bool = True) -> ClippedBatch:
        """Add ``weight`` times the sum over examples of clipped gradients to the ``grad`` of every trained parameter.

        ``losses_of`` runs the forward pass and returns losses (n,), n > 0, that of example i from row i alone. On the
        first call the result is compared with autograd's, which costs one more backward pass. Raises, with every
        ``grad`` as it was, NotFiniteError for rows whose loss or gradient is not finite (where one is, others of its
        batch may only seem to be) and InputError for a parameter whose use was not seen.

        To know whether all is finite is to wait for a GPU. Without ``look``, calls after the first do not: then
        whoever uses the sum must look at the losses and norms that were returned, and where one is not finite, drop
        every ``grad``.

        Where processes share the parameters, each calls this as often as all others, and gets its shard of the sum over
        all of them; one whose rows are not finite adds nothing to it.
        """
        try:
            losses, terms, squares, norms = self._separated(losses_of, look=look)
        except NotFiniteError:
            self._add_nothing()
            raise
        with torch.no_grad(), full_precision(losses.device):
            return self._clip(terms, squares, losses.detach(), norms, weight)

    def verify(self, losses_of: Callable[[], Tensor], rows: int = 1) -> None:
        """Compare with autograd now, without adding gradients, where ``accumulate`` would do so for so many ``rows``.

        This is for a network that draws random numbers in every backward pass, so that no two passes agree: verify it
        without these draws, on the first batch. Raises what ``accumulate`` does.
        """
        if self._leaves.any_of(not self._checked or (self._checked_alone and rows > 1)):
            self._separated(losses_of)

    def rows(
        self, losses_of: Callable[[], Tensor], rows: Sequence[int], keep: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """The losses (n,), and for each of ``rows`` the result of ``keep`` on its unclipped gradient, by parameter.

        These are the gradients that ``accumulate`` would clip and add. Nothing is added, and no more than one parameter
        of one row is held at a time. Parameters that the pass did not use are left out. Raises as ``accumulate`` does.
        """
        losses, terms, _, _ = self._separated(losses_of)
        with torch.no_grad(), full_precision(losses.device):
            row_gradients = [{name: keep(_of_row(uses, row)) for name, uses in terms.items()} for row in rows]
        return losses.detach(), row_gradients

    def _separated(
        self, losses_of: Callable[[], Tensor], *, look: bool = True
    ) -> tuple[Tensor, dict[str, list[GradientTerm]], dict[str, Squares], Tensor]:
        """Losses, terms, squares and norms of a batch whose examples were told apart, promoting modules until so."""
        while True:
            self._check_modules()
            try:
                losses, terms, expected = self._pass(losses_of)
                with torch.no_grad(), full_precision(losses.device):
                    squares = squares_by_parameter(terms)
                    norms = self._norms(squares, losses, look=look or expected is not None)
                    if expected is not None:
                        self._compare(terms, norms, expected)
                return losses, terms, squares, norms
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
        return Recorder(self._model, sites), _groups(sites, self.trainable, self.clipping.style)

    def _pass(
        self, losses_of: Callable[[], Tensor]
    ) -> tuple[Tensor, dict[str, list[GradientTerm]], check.Reference | None]:
        """Forward and backward pass; returns the recorded terms and, the first time, autograd's reference."""
        expected = None
        # A pass is made together where processes share the parameters: one that compares makes all compare.
        unsettled = self._leaves.any_of(not self._checked or self._checked_alone)
        watched = set(self.trainable) if unsettled else self._idle
        with self._gradients_only_for(watched):
            anchor = self._recorder.start(next(iter(self.trainable.values())).device)
            try:
                with torch.enable_grad():
                    losses = losses_of()
                _check_losses(losses, self._recorder.rows)
                if self._leaves.any_of(not self._checked or (self._checked_alone and len(losses) > 1)):
                    with self._recorder.muted():
                        expected = check.reference(losses, self._leaves.found)
                idle = [] if expected else sorted(self._idle & self._leaves.found.keys())
                sources = [anchor, *(self._leaves.found[name] for name in idle)]
                gradients = torch.autograd.grad(losses.sum(), sources, allow_unused=True)
            except RuntimeError as error:
                if "use_reentrant" not in str(error):
                    raise
                raise InputError(
                    "the model is checkpointed with use_reentrant=True, which hides its modules from the backward pass;"
                    " enable gradient checkpointing with use_reentrant=False"
                ) from None
            finally:
                terms = self._recorder.stop()
        if self._recorder.faults:
            raise NotSeparatedError(self._model, self._recorder.faults, shared=self._recorder.shared)
        if self._leaves.any_of(
            any(gradient is not None for gradient in gradients[1:])
        ):  # a parameter whose use was never compared
            self._checked = False
            return self._pass(losses_of)
        return losses, terms, expected

    def _norms(self, squares: Mapping[str, Squares], losses: Tensor, *, look: bool = True) -> Tensor:
        nothing = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
        norms = torch.stack([nothing, *(each.square for each in squares.values())]).sum(0).sqrt()
        if look:
            sound = torch.isfinite(norms) & torch.isfinite(losses.detach())
            if not sound.all():
                raise NotFiniteError(tuple((~sound).nonzero().flatten().tolist()))
        return norms

    def _compare(self, terms: Mapping[str, list[GradientTerm]], norms: Tensor, expected: check.Reference) -> None:
        sketches = {
            name: check.sketch(_weighted_sum(p, terms.get(name, []), expected.weights))
            for name, p in self.trainable.items()
        }
        if names := check.differing(sketches, expected, reduced=self._recorder.reduced):
            raise NotSeparatedError(self._model, self._recorder.users(names), check.another_gradient(names[0]))
        check.compare_norms(terms, norms)
        self._checked, self._checked_alone = True, len(norms) == 1
        self._used |= {name for name in self.trainable if terms.get(name) or name in expected.sketches}
        self._idle = self.trainable.keys() - self._used

    def _clip(
        self,
        terms: dict[str, list[GradientTerm]],
        squares: dict[str, Squares],
        losses: Tensor,
        norms: Tensor,
        weight: float,
    ) -> ClippedBatch:
        nothing = Squares(torch.zeros_like(norms), torch.zeros_like(norms))
        every = {name: squares.get(name, nothing) for name in self.trainable}
        factors = clipping_factors(self.clipping, [sum_squares(every, names) for names in self._groups])
        for names, factor in zip(self._groups, factors, strict=True):
            scale = factor * weight
            for name in names:
                _add(self.trainable[name], terms.pop(name, []), scale)
        shorter = torch.stack(factors).amin(0) < 1
        return ClippedBatch(losses=losses, norms=norms, shorter=shorter)

    def _add_nothing(self) -> None:
        """Take part in the sums that other processes form now, where they share the parameters."""
        if self._leaves.shared:
            for names in self._groups:
                for name in names:
                    add_sum(self.trainable[name], blank_like(self.trainable[name], zeros=True))

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


def _of_row(terms: list[GradientTerm], row: int) -> Tensor:
    total = terms[0].example_gradients(slice(row, row + 1))[0]
    for term in terms[1:]:
        total = total + term.example_gradients(slice(row, row + 1))[0]
    return total


def _add(parameter: nn.Parameter, terms: list[GradientTerm], factors: Tensor) -> None:
    """Add the weighted sum to the parameter's ``grad``, which need not exist."""
    if is_shard(parameter):
        add_sum(parameter, _weighted_sum(parameter, terms, factors))
        return
    if parameter.grad is None:
        parameter.grad = _weighted_sum(parameter, terms, factors)
        return
    for term in terms:
        term.add_weighted(parameter.grad, factors)


def _weighted_sum(parameter: nn.Parameter, terms: list[GradientTerm], factors: Tensor) -> Tensor:
    total = blank_like(parameter, zeros=not terms)
    for i, term in enumerate(terms):
        term.add_weighted(total, factors, fresh=i == 0)
    return total


def _groups(sites: Sequence[Site], trainable: Mapping[str, nn.Parameter], style: ClippingStyle) -> list[list[str]]:
    """The parameters that are clipped together: all of them, or each module's; a tied weight counts with its first."""
    if style is not ClippingStyle.PER_LAYER:
        return [list(trainable)]
    assigned: set[str] = set()
    groups = []
    for site in sites:
        names = sorted(set(site.parameters.values()) - assigned)
        assigned.update(names)
        groups.append(names)
    return [names for names in groups if names]


def _check_losses(losses: Tensor, rows: int | None) -> None:
    if losses.dim() != 1 or not losses.requires_grad:
        raise InputError(
            f"the losses have shape {tuple(losses.shape)} and {'a' if losses.requires_grad else 'no'} gradient, where "
            "one differentiable loss an example is needed; do not reduce them over the batch"
        )
    if rows is not None and rows != len(losses):
        raise InputError(f"the model saw {rows} rows and {len(losses)} losses came back; return one loss a row")
