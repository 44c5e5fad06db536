"""Modules that are differentiated as a whole, because the examples of one of their submodules cannot be told apart.

Such a submodule flattens rows in its own order, returns one tensor for all examples, or is never called because its
parent reads its weight. The parent's inputs and outputs may still have one row per example, and then its gradient for
an example is what autograd computes for that example alone. A parent that reads the weights of submodules need not be
taken as a whole if these are few: there is a copy of them for each example, see ``expanded``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from privctl.domain.errors import InputError
from privctl.domain.shown import counted
from privctl.train.clipping import rules
from privctl.train.clipping.expanded import may_expand
from privctl.train.clipping.generic import generic
from privctl.train.clipping.rerun import Mode
from privctl.train.clipping.site import Site
from privctl.train.settings.choices import ClippingStyle

#: How often a module's state may change: its output is repeated; its parent reads it; its own parameters are copied; it
#: is a whole; it is a whole whose outputs are repeated; it is inside another whole. Only what is below a module whose
#: parameters are copied begins anew.
ROUNDS_EACH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """The path of a module that is differentiated as a whole, its class, and why; ``mode`` is None before its use.

    In mode ``REPEATED`` the module is not a whole: only its output, which all examples share, is repeated for each. A
    whole module with ``repeats`` repeats those of its outputs that all examples share, such as T5's position biases.
    Neither is it in mode ``EXPANDED``: its own parameters and those of the submodules ``reads``, given by their paths
    below it, are copied for each example.
    """

    module: str
    kind: str
    reason: str
    mode: Mode | None = None
    repeats: bool = False
    reads: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether the module is differentiated as a whole."""
        return self.mode not in (Mode.REPEATED, Mode.EXPANDED)


class NotSeparatedError(InputError):
    """The examples of some modules cannot be told apart; ``faults`` maps each module's path to the reason.

    The modules in ``shared`` have one row for all examples; those in ``uncalled`` were not called in the pass.
    """

    def __init__(
        self,
        model: nn.Module,
        faults: Mapping[str, str],
        sentence: str | None = None,
        *,
        shared: Iterable[str] = (),
        uncalled: Iterable[str] = (),
    ) -> None:
        path, fault = next(iter(faults.items()), ("", ""))
        module = model.get_submodule(path)
        super().__init__(sentence or f"module {path!r} ({type(module).__name__}) {fault}")
        self.faults, self.shared, self.uncalled = dict(faults), frozenset(shared), frozenset(uncalled)


def with_parents(model: nn.Module, promoted: Mapping[str, Promotion], error: NotSeparatedError) -> dict[str, Promotion]:
    """The promoted modules, extended by the parents of the modules in ``error``, or by those that are ``shared``.

    The parent of a module that was not ``uncalled`` is a whole at once; an expanded module with a fault becomes one.
    Where the parent is not called itself, because an expanded module reads its parameters, that module becomes one.

    Raises InputError, with the original reason, for a module that has no parent to promote.
    """
    grown = dict(promoted)
    readers: set[str] = set()
    for path, fault in sorted(error.faults.items(), key=lambda item: item[0] not in error.uncalled):
        if _is_inside(path, readers):  # the copies may mend it
            continue
        first = grown.get(path)
        kind = type(model.get_submodule(path)).__name__
        reason = first.reason if first else f"{path} ({kind}) {_before_remedy(fault)}"
        if path in error.shared and first is None:
            grown[path] = Promotion(module=path, kind=kind, reason=reason, mode=Mode.REPEATED)
            continue
        if path in error.shared and first is not None and first.whole and not first.repeats:
            grown[path] = replace(first, repeats=True)
            continue
        if first is not None and first.mode is Mode.EXPANDED:
            grown[path] = replace(first, mode=None, reads=frozenset())
            continue
        if first is None and path in error.uncalled and (reader := _reader(model, path, reason, grown)):
            # What is below it now gets copies, and may need no promotion any more.
            grown = {path: each for path, each in grown.items() if not _is_inside(path, [reader.module])}
            grown[reader.module] = reader
            readers.add(reader.module)
            continue
        parent = _parent(model, path) if path else _whole_model(promoted)
        parent = _readers(grown).get(parent, parent)
        if parent is None:
            raise _not_promotable(model, path, promoted, error)
        if first is not None:
            del grown[path]
        above = grown.get(parent)
        if above is None or not above.whole:
            grown[parent] = Promotion(module=parent, kind=type(model.get_submodule(parent)).__name__, reason=reason)
    whole = [path for path, promotion in grown.items() if promotion.whole]
    return {path: promotion for path, promotion in grown.items() if not _is_inside(path, whole)}


def faults_of(promoted: Iterable[Promotion], error: Exception) -> dict[str, str]:
    """The modules that may be the reason why the forward pass raised ``error``, and the fault of each."""
    what = {Mode.REPEATED: "its one output repeated", Mode.EXPANDED: "its parameters copied"}
    modes = {each.module: Mode.REPEATED if each.repeats else each.mode for each in promoted}
    return {
        path: f"cannot have {what[mode]} for each example ({type(error).__name__})"
        for path, mode in modes.items()
        if mode in what
    }


def promotion_sentence(promotions: Sequence[Promotion], share: float | None) -> str | None:
    """A sentence on what is differentiated as a whole, why, and the ``share`` of time it takes; None if nothing is."""
    promoted = [promotion for promotion in promotions if promotion.whole]
    if not promoted:
        return None
    first = promoted[0]
    modules = f"module {first.module} ({first.kind})" if first.module else f"the whole model ({first.kind})"
    others = f" and {counted(len(promoted) - 1, 'other module')}" if len(promoted) > 1 else ""
    how = ", ".join(dict.fromkeys(promotion.mode for promotion in promoted if promotion.mode is not None))
    cost = "" if share is None else f"; on made-up records that takes {100 * share:.2g} % of the time of gradients"
    return (
        f"{modules}{others} {'are' if others else 'is'} differentiated as a whole ({how}), because {first.reason}{cost}"
    )


def _reader(model: nn.Module, path: str, reason: str, promoted: Mapping[str, Promotion]) -> Promotion | None:
    """The nearest ancestor of the module at ``path``, which reads its parameters; None if these cannot be expanded."""
    parent = _parent(model, path)
    if parent is None:
        return None
    module, child = model.get_submodule(parent), path[len(parent) :].removeprefix(".")
    above = promoted.get(parent) or Promotion(module=parent, kind=type(module).__name__, reason=reason)
    if above.mode not in (None, Mode.EXPANDED) or (above.mode is None and parent in promoted):
        return None
    reads = above.reads | {child}
    return replace(above, mode=Mode.EXPANDED, reads=reads) if may_expand(module, reads) else None


def _readers(promoted: Mapping[str, Promotion]) -> dict[str | None, str]:
    """By the path of a module whose parameters are read without a call of it, the expanded module that reads them."""
    return {
        _below(path, child): path
        for path, promotion in promoted.items()
        if promotion.mode is Mode.EXPANDED
        for child in promotion.reads
    }


def _not_promotable(
    model: nn.Module, path: str, promoted: Mapping[str, Promotion], error: NotSeparatedError
) -> InputError:
    if path not in promoted:
        return error
    return InputError(
        f"module {promoted[path].reason}; the model as a whole ({type(model).__name__}) "
        f"{_before_remedy(error.faults[path])}: examples of a batch are mixed, or a parameter is used outside the "
        "model, as in a penalty on weights; freeze it, or return losses that depend on one row each, and leave weight "
        "decay to the optimizer"
    )


def _before_remedy(fault: str) -> str:
    return fault.partition("; ")[0]


def _parent(model: nn.Module, path: str) -> str | None:
    """The nearest ancestor that has a forward pass of its own; None for the model itself."""
    while path:
        path = path.rpartition(".")[0]
        module = model.get_submodule(path)
        if type(module).forward is not nn.Module.forward and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            return path
    return None


def _whole_model(promoted: Mapping[str, Promotion]) -> str | None:
    """The model's path, if it is not yet promoted."""
    return None if "" in promoted else ""


def _below(path: str, child: str) -> str:
    return f"{path}.{child}" if path else child


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path != other and (not other or path.startswith(f"{other}.")) for other in others)


def sites(model: nn.Module, trainable: Mapping[str, nn.Parameter], promoted: Mapping[str, Promotion]) -> list[Site]:
    """The modules that own trained parameters, in order; a tied weight has the same name in each of its modules.

    A ``promoted`` module, given by path, owns everything below it, unless only its output is repeated or only some
    parameters are expanded. Raises InputError for a module whose gradients depend on counts over the batch.
    """
    names = {id(parameter): name for name, parameter in trainable.items()}
    wholes = {path for path, promotion in promoted.items() if promotion.whole}
    expanded = {path: promotion for path, promotion in promoted.items() if promotion.mode is Mode.EXPANDED}
    read = _readers(promoted)
    listed: list[Site] = []
    for path, module in model.named_modules():
        inside = {*wholes, *(site.name for site in listed if isinstance(site.module, rules.WHOLE))}
        if _is_inside(path, inside) or path in read:
            continue
        whole = path in wholes
        owned = list(module.named_parameters(recurse=whole or isinstance(module, rules.WHOLE), remove_duplicate=False))
        for child in sorted(expanded[path].reads) if path in expanded else ():
            owned += module.get_submodule(child).named_parameters(child, recurse=False, remove_duplicate=False)
        parameters = {local: names[id(p)] for local, p in owned if id(p) in names}
        if parameters:
            rule = generic if whole else rules.rule_for(module)
            rules.require_own_frequency(path, module, rule, whole=whole)
            repeated = path in promoted and (promoted[path].mode is Mode.REPEATED or promoted[path].repeats)
            site = Site(name=path, module=module, rule=rule, parameters=parameters, whole=whole, repeated=repeated)
            listed.append(replace(site, expanded=path in expanded))
    return listed


def groups(sites: Sequence[Site], trainable: Mapping[str, nn.Parameter], style: ClippingStyle) -> list[list[str]]:
    """The groups of parameters clipped together: all, or each module's; a tied weight belongs to its first module."""
    if style is not ClippingStyle.PER_LAYER:
        return [list(trainable)]
    assigned: set[str] = set()
    groups = []
    for site in sites:
        names = sorted(set(site.parameters.values()) - assigned)
        assigned.update(names)
        groups.append(names)
    return [names for names in groups if names]
