"""Records each module's inputs in a forward pass, and the gradients of its outputs in the backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from privctl.domain.errors import in_one_line
from privctl.parallel import is_out_of_memory
from privctl.train.clipping.children import ChildOutputs
from privctl.train.clipping.convolution import convolution
from privctl.train.clipping.embedding import over_examples, own_frequency
from privctl.train.clipping.expanded import Reading, all_copies, expanded, has_copies, one_of, require_activations
from privctl.train.clipping.generic import generic
from privctl.train.clipping.input_gradients import InputGradients, Receive
from privctl.train.clipping.layouts import Layout, Layouts, with_rows
from privctl.train.clipping.ownership import OwnedRows, Ownership, rows_of
from privctl.train.clipping.products import full_precision
from privctl.train.clipping.recurrent import recurrent, with_output
from privctl.train.clipping.rerun import UNRUNNABLE, Mode
from privctl.train.clipping.rules import BY_POSITION, OWN_LAYOUT, RERUN
from privctl.train.clipping.runs import Runs
from privctl.train.clipping.sinks import KeepingSink, Sink
from privctl.train.clipping.site import Site
from privctl.train.clipping.tap import TAP
from privctl.train.clipping.terms import Dense, GradientTerm
from privctl.train.clipping.use import (
    CallContext,
    Inseparable,
    LastCast,
    ModuleCall,
    setting,
    tensors_in,
    with_tensors,
)

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_NOTHING = torch.empty(0)


class Recorder:
    """Hooks on the modules of ``sites``; between ``start`` and ``stop`` they turn each use into terms."""

    def __init__(self, model: nn.Module, sites: list[Site], layouts: Layouts, ownership: Ownership) -> None:
        self._sites, self.ownership = sites, ownership
        self._by_frequency = [
            site.module for site in sites if isinstance(site.module, nn.Embedding) and site.module.scale_grad_by_freq
        ]
        #: Receives the terms.
        self.sink: Sink = KeepingSink()
        #: How many uses of each parameter the forward pass made.
        self.uses: Counter[str] = Counter()
        self.rows: int | None = None
        #: How many consecutive rows each example has.
        self.run = 1
        #: The modules whose examples could not be told apart in this pass, by path, and why.
        self.faults: dict[str, str] = {}
        self.shared: set[str] = set()  # those of ``faults`` with one row for all examples
        #: The modules that a gradient reached in this pass.
        self.reached: set[str] = set()
        self._called = set[str]()
        self._layouts = layouts
        self.reduced = False  # whether anything was in half precision
        self._watching = self._comparing = False
        self._muted = False
        self._anchor: Tensor = torch.zeros((), requires_grad=True)
        self._settings: dict[nn.Module, CallContext] = {}
        self._casts = LastCast()
        self._input_gradients = InputGradients()
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._count_rows, with_kwargs=True, prepend=True)
        ]
        #: For each repeated module inside one whose examples have several rows each, such as windows: those rows.
        self._rows_of_caller: dict[str, int] = {}
        self._children = {site: ChildOutputs(site.module) for site in sites if site.reruns}
        for site in sites:
            if site.repeated and site.name:
                caller = model.get_submodule(site.name.rpartition(".")[0])
                self._handles.append(caller.register_forward_pre_hook(self._note_rows(site), with_kwargs=True))
            before, after = self._hooks(site)
            self._handles.append(site.module.register_forward_pre_hook(before, with_kwargs=True))
            # Parameters that were replaced are put back after an error, too.
            self._handles.append(site.module.register_forward_hook(after, with_kwargs=True, always_call=site.expanded))
        for children in self._children.values():
            self._handles += children.watch()
        for children in self._children.values():
            children.trust(self._handles)

    def start(self, device: torch.device, *, comparing: bool) -> Tensor:
        """Begin recording; the backward pass must differentiate with respect to the returned anchor.

        ``comparing`` is whether the gradients of this pass are compared with autograd's.
        """
        self._comparing = comparing
        self.uses, self.faults, self.shared, self.reached = Counter(), {}, set(), set()
        self._called.clear()
        self.rows, self.reduced = None, False
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._watch()
        return self._anchor

    @contextmanager
    def recording_again(self, sink: Sink) -> Iterator[Tensor]:
        """Inside, another backward pass through the same graph, to the anchor, hands its terms to ``sink``."""
        self.sink = sink
        self._watch()
        try:
            yield self._anchor
        finally:
            self.stop()

    def _watch(self) -> None:
        self._watching = True
        for module in self._by_frequency:
            module.scale_grad_by_freq = False

    def stop(self) -> None:
        """Stop recording and drop the sink."""
        self.ownership.stop()
        self._watching = False
        for module in self._by_frequency:
            module.scale_grad_by_freq = True
        self._settings.clear()
        self._casts.forget()
        self._input_gradients.forget()
        for children in self._children.values():
            children.forget()
        self.sink = KeepingSink()

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def uncalled(self) -> frozenset[str]:
        """The modules whose outputs this pass did not see."""
        return frozenset(site.name for site in self._sites) - self._called

    def owners_with_fault(self, names: Sequence[str]) -> dict[str, str]:
        """The modules that own these parameters, with the fault; if no gradient reached some of them, only those."""
        owners = {
            site.name: f"has parameter {site.parameters[local]!r}, whose gradient is another than autograd's"
            for site in self._sites
            for local in site.parameters
            if site.parameters[local] in names
        }
        return {path: fault for path, fault in owners.items() if path not in self.reached} or owners

    def reconsider(self, paths: Collection[str]) -> bool:
        """Take another layout of the outputs of the modules at ``paths``; whether any of them may have another."""
        return self._layouts.reconsider(site.module for site in self._sites if site.name in paths)

    def modes(self) -> dict[str, Mode]:
        """The slowest mode in which each promoted module was differentiated so far, in batches of several examples."""
        used = {
            site.name: [way.mode for (_, several, *_), ways in site.ways.items() for way in ways if way and several]
            for site in self._sites
        }
        return {
            site.name: max(used[site.name], key=list(Mode).index)
            for site in self._sites
            if site.whole and used[site.name]
        }

    def measure(self, on: bool) -> None:
        """Turn the timing of reruns of promoted modules on or off."""
        for site in self._sites:
            site.spent.measured = on and site.whole

    def seconds(self) -> float:
        """The seconds measured so far."""
        return sum(site.spent.seconds for site in self._sites)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Inside, nothing is recorded."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Inside, a backward pass is not recorded, but modules keep their hooks, so checkpoints recompute the same."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def _count_rows(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Take the number of rows from the model's main input, or from its first tensor."""
        if not self._watching or self.rows is not None:
            return
        main = keywords.get(getattr(module, "main_input_name", ""))
        named = [keywords[key] for key in ("input_ids", "inputs_embeds", "pixel_values") if key in keywords]
        if arguments and isinstance(arguments[0], PackedSequence):
            self.rows = int(arguments[0].batch_sizes[0])
            return
        for tensor in tensors_in([main, *named, arguments, keywords]):
            if tensor.dim() > 0:
                self.rows = len(tensor)
                return

    def _note_rows(self, site: Site) -> Callable[..., None]:
        """A hook on the module that contains ``site``, which notes its rows if there are several for each example."""

        def note(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            self._rows_of_caller.pop(site.name, None)
            tensors = [t for t in tensors_in((arguments, keywords)) if t.is_floating_point() and t.dim() > 1]
            if self._watching and self.rows and tensors and len(tensors[0]) % self.rows == 0:
                self._rows_of_caller[site.name] = len(tensors[0])

        return note

    def _hooks(self, site: Site) -> tuple[Callable[..., Any], Callable[..., Any]]:
        if site.expanded:
            return self._expansion_hooks(site)

        def before(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if not self._watching or module is not site.module:  # a copy of the module has its hooks
                return None
            if site.rule in RERUN:
                device = next(module.parameters()).device
                self._settings[module] = setting(device, stochastic=module.training)
            if site in self._children:
                self._children[site].begin(site.reused())
            if isinstance(module, nn.Embedding):
                return self._expand(arguments, keywords)
            return None

        def after(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
            if not self._watching or module is not site.module:
                return None
            kept = with_output(module, keywords, output) if site.rule is recurrent else keywords
            if site.rule in BY_POSITION and has_copies(output):
                copies = all_copies(output)
                tapped = self._tap(site, all_copies(arguments), all_copies(kept), copies)
                return one_of(copies if tapped is None else tapped, like=output)
            return self._tap(site, arguments, kept, output)

        return before, after

    def _expansion_hooks(self, site: Site) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Hooks between which the parameters of ``site`` are expanded."""
        stack = ExitStack()

        def receive(name: str, use: object, gradients: Tensor) -> None:
            rows = partial(tuple, [OwnedRows(gradients)])
            if not self._muted and self.ownership.seen(site.name, (name, use), rows, reduced=self.reduced):
                self.reached.add(site.name)
                self._hand_over([name], [(name, Dense(gradients))])

        def refuse(reason: str) -> None:
            self.faults.setdefault(site.name, reason)

        def before(module: nn.Module, *_: Any) -> None:
            if module is not site.module or not (self._watching and torch.is_grad_enabled() and self.rows):
                return
            self.uses.update(set(site.parameters.values()))
            self._called.add(site.name)
            self.reduced |= torch.is_autocast_enabled(self._anchor.device.type)
            receivers = {local: partial(receive, name, object()) for local, name in site.parameters.items()}
            reading = Reading(refuse, self._layouts.repeats(module), self._comparing)
            stack.enter_context(expanded(module, receivers, self.rows, self._anchor, reading))

        def after(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            stack.close()
            require_activations(output)

        return before, after

    def _expand(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        tensors = list(tensors_in((arguments, keywords)))
        if self.rows is None:
            self.rows = len(tensors[0])
        if len(tensors) != 1 or tensors[0].is_floating_point():
            return None
        return with_tensors((arguments, keywords), iter([over_examples(tensors[0], self.rows)]))

    def _tap(self, site: Site, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        tensors = list(tensors_in(output))
        floating = [t for t in tensors if t.is_floating_point()]
        if not torch.is_grad_enabled() or not floating:
            return None
        if self.rows is None and floating[0].dim() > 0:
            self.rows = len(floating[0])
        if site.repeated and self.rows is not None:
            rows = self._rows_of_caller.get(site.name, self.rows)
            floating = [t.expand(rows, *t.shape[1:]) if t.dim() > 1 and len(t) == 1 else t for t in floating]
        for tensor in floating:
            self.reduced |= torch.finfo(tensor.dtype).bits < 32
        self.uses.update(set(site.parameters.values()))
        self._called.add(site.name)
        calls = self._children[site].end(floating) if site in self._children else ()
        inputs = [t.detach() for t in tensors_in((arguments, keywords, calls))]
        # Only autograd holds the tensors; this structure has placeholders.
        places = with_tensors((arguments, keywords, calls), iter([_NOTHING] * len(inputs)))
        chosen = self._settings.pop(site.module, None) or setting(floating[0].device, stochastic=False)
        # Autocast may round inside a module whose outputs are in full precision.
        self.reduced |= chosen.autocast[0] and site.rule in (OWN_LAYOUT | RERUN)

        def receive(gradients: tuple[Tensor | None, ...], inputs_kept: tuple[Tensor, ...]) -> None:
            rows = partial(rows_of, site, gradients, owners, self._layouts, self.rows or 0)
            reached = not self._muted and any(gradient is not None for gradient in gradients)
            if reached and self.ownership.seen(site.name, receive, rows, reduced=self.reduced):
                self.reached.add(site.name)
                try:
                    self._receive(site, places, inputs_kept, gradients, chosen)
                except Inseparable as fault:
                    self.faults.setdefault(site.name, str(fault))
                    if fault.shared:
                        self.shared.add(site.name)

        owners = self.ownership.owners_of((*arguments, *keywords.values()))
        watched = self._attach_tap(site, receive, floating, inputs, arguments)
        if site.module in self._by_frequency and not site.whole:
            self._divide_by_frequency(site, inputs[0], watched[0])
        replaced = iter(watched)
        return with_tensors(output, iter([next(replaced) if t.is_floating_point() else t for t in tensors]))

    def _attach_tap(
        self, site: Site, receive: Receive, floating: list[Tensor], inputs: list[Tensor], arguments: tuple[Any, ...]
    ) -> tuple[Tensor, ...]:
        """Attach a tap to the ``floating`` outputs."""
        if site.rule is convolution and not site.whole and len(arguments) == len(inputs) == len(floating) == 1:
            tapped = self._input_gradients.tapped(site.module, receive, self._anchor, arguments[0], floating[0])
            if tapped is not None:
                return (tapped,)
        return TAP(receive, len(floating), self._anchor, *floating, *inputs)

    def _divide_by_frequency(self, site: Site, ids: Tensor, output: Tensor) -> None:
        """Divide the gradient of ``output`` as ``scale_grad_by_freq`` would for each example alone.

        Torch counts ids over the batch, which makes one example's gradient depend on the others.
        """
        if len(ids) != self.rows:
            self.faults.setdefault(site.name, "counts ids over a batch whose first dimension is not its examples")
            return
        output.register_hook(lambda gradient: gradient / own_frequency(ids))  # type: ignore[no-untyped-call]

    def _receive(
        self,
        site: Site,
        places: Any,
        inputs: tuple[Tensor, ...],
        gradients: tuple[Tensor | None, ...],
        chosen: CallContext,
    ) -> None:
        """Hand the terms of one use to the sink. Raises Inseparable."""
        rows = self.rows or 0
        layout = Layout.ROWS if site.rule in OWN_LAYOUT else self._layouts.find(site.module, site.rule, gradients, rows)
        try:
            if layout is not Layout.ROWS and site.rule is not generic:
                inputs, gradients = with_rows(inputs, layout, rows), with_rows(gradients, layout, rows)
            arguments, keywords, calls = with_tensors(places, iter(inputs))
            use = ModuleCall(
                arguments=arguments,
                keywords=keywords,
                children=calls,
                gradients=gradients,
                names=frozenset(site.parameters),
                setting=chosen,
                unrecorded=self.unrecorded,
                count=rows,
                whole=site.whole,
                ways=site.ways,
                agreed=site.agreed,
                spent=site.spent,
                casts=self._casts,
            )
            with torch.no_grad(), full_precision(chosen.device):
                terms = site.rule(site.module, use)
        except UNRUNNABLE as error:
            by_rows = layout is Layout.ROWS and site.rule is not generic and site.rule not in OWN_LAYOUT
            if by_rows or is_out_of_memory(error):
                raise
            reason = in_one_line(error, 120)
            raise Inseparable(f"cannot be differentiated by itself ({reason})") from None
        self._hand_over(set(site.parameters.values()), [(site.parameters[name], term) for name, term in terms.items()])

    def _hand_over(self, names: Collection[str], terms: Sequence[tuple[str, GradientTerm]]) -> None:
        """Hand the ``terms`` of rows to the sink, as those of examples, for one use of the parameters ``names``."""
        by_name: dict[str, list[GradientTerm]] = {}
        runs = None if self.run == 1 else Runs(self.run)
        with torch.no_grad():
            for name, term in terms:
                by_name.setdefault(name, []).append(term if runs is None else runs.of(term))
        self.sink.receive(names, by_name)
