"""Per-example clipping in one backward pass or two: ghost norms and book-keeping for any model of torch modules.

No weight requires a gradient during the pass, so autograd computes no weight gradients. For each module that owns
trained parameters, its inputs and output gradients are kept, which give first every example's norm (Lee and Kifer 2020;
Li et al. 2022) and then the sum of the clipped gradients (Bu et al. 2022, "book-keeping"). Opacus is not used, as its
ghost clipping always takes a second backward pass (``python -m tests.bench dp-sgd`` compares them). With two
backward passes through the same graph nothing needs to be kept: see ``sinks``.
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
from privctl.models.kept_memory import trim_kept_memory
from privctl.parallel import is_out_of_memory
from privctl.train.clipping import check, promotion, rules
from privctl.train.clipping.blocks import keeps_blocks
from privctl.train.clipping.embedding import bound_rows, bounded
from privctl.train.clipping.factors import Clipping, clipping_factors, sum_squares
from privctl.train.clipping.layouts import Layouts
from privctl.train.clipping.ownership import Ownership
from privctl.train.clipping.passes import (
    NotFiniteError,
    Pass,
    finite_norms,
    first_backward,
    gradients_only_for,
    gradients_set_aside,
    measurer,
    require_equal_losses,
    require_losses,
    require_repeatable,
    saved_with,
    writing_nothing,
)
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.promotion import NotSeparatedError, Promotion
from privctl.train.clipping.rerun import UNRUNNABLE, Mode
from privctl.train.clipping.shards import Leaves, add_sum, blank_like
from privctl.train.clipping.sinks import AddingSink, KeepingSink, RowRequest, Sink
from privctl.train.clipping.sums import add
from privctl.train.clipping.taps import Recorder
from privctl.train.clipping.terms import GradientTerm, Squares
from privctl.train.clipping.use import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedBatch:
    """A batch's losses (n,), gradient norms before clipping (n,) float64, and which gradients are ``shorter`` after it.

    All of these are computed from the private examples, and no guarantee covers them. They stay on the device: reading
    them waits for everything that is queued there.
    """

    losses: Tensor
    norms: Tensor
    shorter: Tensor


class PerExample:
    """Clips each example's gradient of the trainable parameters of ``model``; use it as a context manager.

    Parameters must be float32 or float64. Raises InputError for an unsupported model, naming the module and a remedy.

    If a module's examples cannot be told apart, its parent is promoted: it is differentiated as a whole, by running it
    again on one example at a time. Modules that must be promoted but are not in ``promoted`` are found on the first
    batches, whose passes are then repeated; if ``may_promote`` is false, such a model is refused.

    With two ``passes``, no layer's inputs and output gradients are kept until all norms are known: a second backward
    pass adds what the first measured. Results are the same up to rounding. ``compared`` means that another engine, with
    the same ``layouts``, has already compared the gradients of all these parameters with autograd's. With ``each_pass``
    later passes are checked for rows of other examples, by one more backward pass unless the graph proves all in place;
    if the model's code is ``trusted`` to select no rows by their content, only for operations that no such pass had.
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
        layouts: Layouts | None = None,
        each_pass: bool = False,
        trusted: bool = False,
    ) -> None:
        self.clipping, self.passes = clipping, passes
        self._model, self._may_promote, self._layouts = model, may_promote, layouts or Layouts()
        self.trainable: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        trainable_ids = {id(parameter) for parameter in self.trainable.values()}
        self._modules = [
            (name, module, any(id(p) in trainable_ids for p in module.parameters(recurse=False)))
            for name, module in model.named_modules()
        ]
        rules.check_parameters(self.trainable)
        self._check_modules()
        self._bounded = bounded(model)
        self.bound_rows()
        self._promoted = {each.module: each for each in promoted}
        self._ownership = Ownership(enabled=each_pass, trusted=trusted)
        self._recorder, self._groups = self._watch_modules()
        self._leaves = Leaves(model, self.trainable)
        self._saved = {} if self._leaves.shared else saved_with(model)
        self._rounds, self._run = 0, 1  # of promotion; rows per example
        self._latest: Pass | None = None
        self._checked, self._checked_alone = compared, False  # alone: on a single example, which shows little
        #: Parameters that no batch has used so far; autograd detects if a later batch does, even outside all hooks.
        self._idle, self._used = set[str](), set[str]()

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters that are clipped together."""
        return self._groups

    @property
    def reduced(self) -> bool:
        """Whether the output of a watched module was in half precision in the latest pass."""
        return self._recorder.reduced

    @property
    def promoted(self) -> tuple[Promotion, ...]:
        """The modules known so far to be differentiated as a whole."""
        modes = self._recorder.modes()
        return tuple(replace(each, mode=modes.get(path, each.mode)) for path, each in sorted(self._promoted.items()))

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        """Time the reruns of promoted modules inside; yields a function that returns the seconds so far."""
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
        """Remove all hooks from the model."""
        self._recorder.remove()
        self._leaves.remove()

    def bound_rows(self) -> None:
        """Scale down all rows of embeddings that exceed ``max_norm``; call it after every change of weights.

        Otherwise a look-up scales down only the rows it reads, which reveals what a batch read.
        """
        bound_rows(self._bounded)

    def accumulate(
        self, losses_of: Callable[[], Tensor], *, weight: float = 1.0, check_finite: bool = True, run: int = 1
    ) -> ClippedBatch:
        """Add ``weight`` times the sum over examples of clipped gradients to the ``grad`` of every trained parameter.

        ``losses_of`` runs the forward pass and returns losses (n,), n > 0. The loss of example i may depend on row i
        only or, if ``run`` is above 1, on rows i run to (i + 1) run - 1. The first call compares the result with
        autograd's, which costs one more backward pass. Raises NotFiniteError for examples whose loss or gradient is not
        finite (one such example may make others of its batch appear so) and InputError for a parameter whose use was
        not recorded; either leaves every ``grad`` unchanged.

        Checking that everything is finite waits for a GPU. With ``check_finite`` false, only the first call checks: the
        caller must inspect the returned losses and norms, and discard every ``grad`` if one is not finite.

        Processes that share the parameters must call this equally often. Each gets its shard of the sum over all; a
        process whose rows are not finite adds nothing to it.
        """
        self._run = run
        try:
            passed, squares, norms = self._separated(losses_of, check_finite=check_finite)
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
        """Compare with autograd now, without adding gradients, if ``accumulate`` would do so for a batch of ``rows``.

        This is for a network that draws random numbers in every backward pass, so that no two passes agree: verify it
        on the first batch with these draws turned off. Raises what ``accumulate`` does.
        """
        if self._leaves.any_of(not self._checked or (self._checked_alone and rows > 1)):
            self._separated(losses_of)
            self._latest = None

    def rows(
        self, losses_of: Callable[[], Tensor], rows: Sequence[int], keep: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """The losses (n,) and, for each of ``rows``, ``keep`` applied to its unclipped gradient of each parameter.

        These are the gradients that ``accumulate`` would clip and add. Nothing is added, and the gradient of only one
        parameter of one row is in memory at a time. Parameters that the pass did not use are left out. Raises as
        ``accumulate`` does.
        """
        passed, _, _ = self._separated(losses_of, wanted=(rows, keep))
        self._latest = None
        with torch.no_grad(), full_precision(passed.losses.device):
            return passed.losses.detach(), passed.measured.rows((rows, keep))

    def terms(self, losses_of: Callable[[], Tensor]) -> tuple[Tensor, Mapping[str, Sequence[GradientTerm]]]:
        """The losses (n,) and, by parameter, the terms of each example's unclipped gradient; for one pass only.

        Compares with autograd and raises InputError as ``accumulate`` does, but does not check for NaN or infinity.
        """
        self._check_modules()
        passed = self._pass(losses_of)
        assert isinstance(passed.measured, KeepingSink)
        if passed.expected is not None:
            with torch.no_grad(), full_precision(passed.losses.device):
                self._compare_sums(passed, passed.expected)
        return passed.losses.detach(), passed.measured.terms

    def _separated(
        self, losses_of: Callable[[], Tensor], *, check_finite: bool = True, wanted: RowRequest | None = None
    ) -> tuple[Pass, dict[str, Squares], Tensor]:
        """A pass with its squares and norms, promoting modules until the examples can be told apart."""
        while True:
            self._check_modules()
            try:
                self._latest = passed = self._pass(losses_of, wanted)
                with torch.no_grad(), full_precision(passed.losses.device):
                    squares = passed.measured.squares()
                    compares = passed.expected is not None
                    norms = finite_norms(squares, passed.losses, check_finite=check_finite or compares)
                    if passed.expected is not None:
                        self._compare(passed, norms, passed.expected)
                if faults := self._ownership.faults():
                    raise NotSeparatedError(self._model, faults)
                return passed, squares, norms
            except NotSeparatedError as found:
                if self._leaves.shared or not self._recorder.reconsider(found.faults):
                    self._promote(found)
            except UNRUNNABLE as error:
                faults = promotion.faults_of(self._promoted.values(), error)
                if self._checked or not faults or is_out_of_memory(error):
                    raise
                self._promote(NotSeparatedError(self._model, faults))

    def _promote(self, error: NotSeparatedError) -> None:
        """Promote the parents of the modules that ``error`` names, or raise it if promotion is not allowed."""
        if not self._may_promote:
            raise error
        grown = promotion.with_parents(self._model, self._promoted, error)
        self._rounds += 1
        if grown == self._promoted or self._rounds > promotion.ROUNDS_EACH * len(self._modules):
            raise InputError(f"{error}; taking the module above it as a whole changed nothing, so freeze it") from None
        self._promoted = grown
        self._layouts.forget()
        self._recorder.remove()
        self._recorder, self._groups = self._watch_modules()
        self._checked, self._used = False, set()

    def _watch_modules(self) -> tuple[Recorder, list[list[str]]]:
        """Hooks on the modules that own trained parameters, and the parameters that are clipped together."""
        sites = promotion.sites(self._model, self.trainable, self._promoted)
        recorder = Recorder(self._model, sites, self._layouts, self._ownership)
        return recorder, promotion.groups(sites, self.trainable, self.clipping.style)

    def _pass(self, losses_of: Callable[[], Tensor], wanted: RowRequest | None = None) -> Pass:
        """Run a forward and a backward pass and return what they recorded, the first time with autograd's reference."""
        expected = None
        # Processes that share the parameters make every pass together: if one compares, all must.
        unsettled = self._leaves.any_of(not self._checked or self._checked_alone)
        watched = set(self.trainable) if unsettled else self._idle
        with gradients_only_for(self.trainable, watched):
            self._recorder.run = self._run
            device = next(iter(self.trainable.values())).device
            anchor, context = self._recorder.start(device, comparing=unsettled), setting(device, stochastic=unsettled)
            try:
                with torch.enable_grad(), writing_nothing(self._saved), gradients_set_aside(self.trainable):
                    losses = losses_of()
                require_losses(losses, self._recorder.rows, self._run)
                if self._leaves.any_of(not self._checked or (self._checked_alone and len(losses) > 1)):
                    with self._recorder.muted():
                        expected = check.reference(losses, self._leaves.by_name)
                    copied = [path for path, each in self._promoted.items() if each.mode is Mode.EXPANDED]
                    if copied and not self._leaves.shared:
                        with self._recorder.unrecorded(), context.restored():
                            require_equal_losses(self._model, copied, losses, losses_of, reduced=self.reduced)
                idle = [] if expected else sorted(self._idle & self._leaves.by_name.keys())
                sources = [anchor, *(self._leaves.by_name[name] for name in idle)]
                uses = dict(self._recorder.uses)  # before checkpointed layers are recomputed, which counts them again
                proved = expected is None and self._layouts.by_rows and self._ownership.enabled and keeps_blocks(losses)
                if not proved and self._ownership.wanted(losses, compared=expected is not None):
                    with self._ownership.weighing(losses, self._run, reduced=self.reduced) as weighed:
                        torch.autograd.grad(weighed, [anchor], retain_graph=True, allow_unused=True)
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
        self._require_separated()
        if self._leaves.any_of(
            any(gradient is not None for gradient in gradients[1:]) or (proved and not self._layouts.by_rows)
        ):  # of a parameter whose use has not been compared with autograd; or a new layout
            self._checked = False
            return self._pass(losses_of, wanted)
        passed = Pass(losses=losses, uses=uses, measured=measured, expected=expected, watched=frozenset(watched))
        if expected is not None and self.passes > 1:  # true in all processes that share the parameters, or in none
            repeat, reduced = partial(self._repeat_backward, passed, last=False), self._recorder.reduced
            require_repeatable(passed, repeat, self.trainable, reduced=reduced)
        return passed

    def _repeat_backward(self, passed: Pass, sink: Sink, *, last: bool) -> None:
        """Run another backward pass through the graph of ``passed``; the ``last`` one frees the graph."""
        with gradients_only_for(self.trainable, passed.watched), self._recorder.recording_again(sink) as anchor:
            torch.autograd.grad(passed.losses.sum(), [anchor], retain_graph=not last, allow_unused=True)
        self._require_separated()

    def _require_separated(self) -> None:
        if self._recorder.faults:
            raise NotSeparatedError(self._model, self._recorder.faults, shared=self._recorder.shared)

    def _compare_sums(self, passed: Pass, expected: check.Reference) -> None:
        sketches = passed.measured.sketches(self.trainable, expected.weights)
        if names := check.differing(sketches, expected, passed.measured.used, reduced=self._recorder.reduced):
            raise NotSeparatedError(
                self._model,
                self._recorder.owners_with_fault(names),
                check.gradient_mismatch(names[0]),
                uncalled=self._recorder.uncalled(),
            )

    def _compare(self, passed: Pass, norms: Tensor, expected: check.Reference) -> None:
        self._compare_sums(passed, expected)
        check.compare_norms(passed.measured.row_norms(check.compared_rows(len(norms))), norms)
        trim_kept_memory()  # later passes need less
        self._checked, self._checked_alone = True, len(norms) == 1
        self._used |= {name for name in self.trainable if name in passed.measured.used or name in expected.sketches}
        self._idle = self.trainable.keys() - self._used

    def _scales(self, squares: Mapping[str, Squares], norms: Tensor, weight: float) -> tuple[dict[str, Tensor], Tensor]:
        """By parameter, the factors (n,) of its examples' gradients, and which examples are clipped (n,)."""
        nothing = Squares(torch.zeros_like(norms), torch.zeros_like(norms))
        every = {name: squares.get(name, nothing) for name in self.trainable}
        clipping = self.clipping.of_pass(reduced=self.reduced)
        factors = clipping_factors(clipping, [sum_squares(every, names) for names in self._groups])
        scales: dict[str, Tensor] = {}
        for names, factor in zip(self._groups, factors, strict=True):
            scale = factor * weight
            single = scale.float()  # once for all parameters, most of which are float32
            scales |= {n: single if self.trainable[n].dtype == torch.float32 else scale for n in names}
        return scales, torch.stack(factors).amin(0) < 1

    def _add(self, passed: Pass, scales: Mapping[str, Tensor] | None) -> None:
        """Add the sums with ``scales`` to the ``grad`` of every parameter; None adds only the other processes' sums."""
        if not isinstance(passed.measured, KeepingSink):
            with self._leaves.summing():
                sink = AddingSink(self.trainable, scales, passed.losses.device, self._leaves)
                self._repeat_backward(passed, sink, last=True)
            for parameter in () if self._leaves.shared else self.trainable.values():
                if parameter.grad is None:  # not used by any example
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
        """If processes share the parameters, take part in the sums that the others are forming, with nothing to add."""
        if self._leaves.shared and self._latest is not None:
            self._add(self._latest, None)

    def _check_modules(self) -> None:
        for name, module, trained in self._modules:
            rules.check(name, module, trained=trained)
