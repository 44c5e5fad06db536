"""Ledgers of other programs as events: Opacus's ``accountant.history``, and dp_accounting's trees of DpEvents.

Both define noise multipliers as privctl does (noise standard deviation / clip norm), mean Poisson batches by a sampling
rate, and by default use add-or-remove adjacency. Their ledgers do not state an adjacency; if one was added, it is used.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from privctl.domain.errors import InputError
from privctl.domain.events import Event, Ledger, SampledGaussian, TreeGaussian
from privctl.domain.guarantee import Adjacency
from privctl.plan.dp_events import DEEPEST, checked, for_neighbours, of_tree
from privctl.storage.json_text import parse_json, shown

_LONGEST_REPR = 1 << 20
_ADD_OR_REMOVE_TAKEN = (
    "Adjacency taken: add-or-remove, the default of Opacus and dp_accounting. Adding or removing one example changes a "
    "sum by the clip norm at most; replacing one may change it by twice that"
)
_REPLACE_ONE_TAKEN = (
    "Adjacency taken: replace-one, which is stated or is what batches of fixed size and answers of each record are "
    "known for. Replacing one example changes a sum by twice the clip norm at most, and noise multipliers are taken to "
    "be noise standard deviation / clip norm"
)
_ZERO_OUT_TAKEN = (
    "Adjacency taken: zero-out, dp_accounting's replace-special: one example is replaced by one that contributes "
    "nothing and leaves the others where they are"
)
_TREES_TAKEN = ". In tree aggregation a record is in one step of a tree at most, and its place stays empty"
#: Keys under which a ledger may state its adjacency, and the values they may have.
_ADJACENCY_KEYS = ("adjacency", "neighboring_relation", "neighbouring_relation", "neighbors", "neighbours")
_RELATIONS = {
    "addorremove": Adjacency.ADD_OR_REMOVE,
    "addorremoveone": Adjacency.ADD_OR_REMOVE,
    "replaceone": Adjacency.REPLACE_ONE,
    "replacespecial": Adjacency.ZERO_OUT,
    "zeroout": Adjacency.ZERO_OUT,
}
_KNOWN = (
    "a list of events as privctl writes it; Opacus's accountant.history, [[noise multiplier, sample rate, steps]], "
    'or its state_dict(), {"history": [...]}; a dp_accounting tree as repr() writes it, or as JSON with "class_name"'
)


def adjacency_taken(events: Sequence[Event]) -> str:
    """A sentence for users on how a foreign ledger of ``events`` was interpreted.

    Raises ValueError for events that do not compose.
    """
    adjacency = Ledger(events=tuple(events)).adjacency
    if adjacency is Adjacency.REPLACE_ONE:
        return _REPLACE_ONE_TAKEN
    if adjacency is Adjacency.ADD_OR_REMOVE:
        return _ADD_OR_REMOVE_TAKEN
    return _ZERO_OUT_TAKEN + _TREES_TAKEN * any(isinstance(event, TreeGaussian) for event in events)


def foreign_events(text: str, source: str) -> tuple[Event, ...] | None:
    """The events of another program's ledger; None if ``text`` is a list of objects, which is privctl's own format.

    Raises InputError, naming ``source``, for anything else, and for events without a bound in privctl.
    """
    tree = _parse_repr(text, source) if text.lstrip()[:1] not in ("[", "{") else None
    data = parse_json(text, source) if tree is None else tree
    stated = _stated_adjacency(data, source)
    if tree is not None or (isinstance(data, dict) and "class_name" in data):
        return for_neighbours(of_tree(data, source, _KNOWN), stated, source)
    history = data.get("history") if isinstance(data, dict) else data
    if not isinstance(history, list) or not (history or history is data):
        raise InputError(f"{source} is not a ledger; expected {_KNOWN}")
    if all(isinstance(entry, dict) for entry in history):
        if history is data:
            return None
        _refuse_entry(history[0], 0, source)
    return for_neighbours([_history_event(entry, i, source) for i, entry in enumerate(history)], stated, source)


def _stated_adjacency(data: Any, source: str) -> Adjacency | None:
    """The adjacency that ``data`` states, or None; raises InputError if it is not supported, or there are several."""
    stated = sorted(set(_relations(data, source, 0)))
    if len(stated) > 1:
        raise InputError(f"{source} states both {stated[0]} and {stated[1]} adjacency; state one of them")
    return stated[0] if stated else None


def _relations(data: Any, source: str, depth: int) -> Iterator[Adjacency]:
    """Every adjacency stated in ``data`` or anything nested in it."""
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for child in children if depth <= DEEPEST else ():
        if isinstance(child, dict | list):
            yield from _relations(child, source, depth + 1)
    for key in _ADJACENCY_KEYS if isinstance(data, dict) else ():
        stated = data.get(key)
        plain = "".join(c for c in str(stated).rpartition(".")[2].lower() if c.isalpha())
        if stated is not None and plain not in _RELATIONS:
            raise InputError(
                f"{source} has {key} {shown(stated)}; foreign ledgers are read with add-or-remove, replace-one or "
                "replace-special (zero-out) adjacency; give the noise multipliers of one of them, and state that"
            )
        if stated is not None:
            yield _RELATIONS[plain]


def _history_event(entry: Any, index: int, source: str) -> Event:
    numbers = isinstance(entry, list) and all(type(n) in (int, float) for n in entry)
    if not numbers or len(entry) != 3 or entry[2] % 1:
        _refuse_entry(entry, index, source)
    noise, rate, steps = entry
    where = f"{source}: entry {index + 1}"
    return checked(lambda: SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=int(steps)), where)


def _refuse_entry(entry: Any, index: int, source: str) -> NoReturn:
    raise InputError(f"{source}: entry {index + 1} is {shown(entry)}; expected {_KNOWN}")


def _parse_repr(text: str, source: str) -> Any:
    """Parse the ``repr`` of a DpEvent tree into dictionaries; nothing is evaluated."""
    fault = InputError(f"{source} is not a ledger; expected {_KNOWN}")
    if len(text) > _LONGEST_REPR:
        raise fault
    try:
        return _parsed(ast.parse(text.strip(), mode="eval").body, 0)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise fault from None


def _parsed(node: ast.expr, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        names = [keyword.arg for keyword in node.keywords]
        # Duplicate keywords, which Python itself refuses, could hide the smaller noise or the event's real class.
        if len({"class_name", *names}) != 1 + len(names) or None in names:
            raise ValueError
        return {"class_name": node.func.id, **{str(k.arg): _parsed(k.value, depth + 1) for k in node.keywords}}
    if isinstance(node, ast.List | ast.Tuple):
        return [_parsed(element, depth + 1) for element in node.elts]
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    return ast.literal_eval(node)
