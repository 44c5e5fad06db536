"""Squared norms of per-example gradients by parameter, over all uses of the parameter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from privctl.train.clipping.embedding import Lookup, cross
from privctl.train.clipping.gram import squares_of_groups
from privctl.train.clipping.linear import Outer, forming_is_cheaper
from privctl.train.clipping.terms import (
    Dense,
    GradientTerm,
    Squares,
    chunk_bytes,
    chunks,
    dense_squares,
    memory_key,
    squared_lengths,
)


def squares_by_parameter(terms: Mapping[str, Sequence[GradientTerm]]) -> dict[str, Squares]:
    """The squares of each parameter's gradients, from all its uses' terms.

    Layers that read the same tensor (query, key and value; gate and up) share its Gram matrix. So do those whose
    outputs are added, which have the same gradients (an LSTM's, of inputs and of states).
    """
    merged = {name: merge(uses) for name, uses in terms.items()}
    squares: dict[str, Squares] = {}
    by_gram: dict[str, Outer] = {}
    dense: dict[str, Dense] = {}
    for name, uses in merged.items():
        match uses:
            case [Outer() as term] if not _is_cheaper_formed(term):
                by_gram[name] = term
            case [Dense() as term]:
                dense[name] = term
            case _:
                squares[name] = squares_of(uses)
    return squares | dict(zip(dense, dense_squares(dense.values()), strict=True)) | _squares_by_gram(by_gram)


def _squares_by_gram(terms: Mapping[str, Outer]) -> dict[str, Squares]:
    by_input = _grouped({name: term.inputs for name, term in terms.items()})
    sharing = [names for names in by_input if len(names) > 1]
    groups = [(terms[names[0]].inputs, [terms[name].gradients for name in names]) for names in sharing]
    alone = [names[0] for names in by_input if len(names) == 1]
    by_gradient = _grouped({name: terms[name].gradients for name in alone})
    groups += [(terms[names[0]].gradients, [terms[name].inputs for name in names]) for names in by_gradient]
    names_of = [*sharing, *by_gradient]
    return {
        name: each
        for names, squares in zip(names_of, squares_of_groups(groups), strict=True)
        for name, each in zip(names, squares, strict=True)
    }


def _grouped(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each group that has the same tensor."""
    names: dict[object, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        names[memory_key(tensor)].append(name)
    return list(names.values())


def gram_inputs(uses: Sequence[GradientTerm]) -> object | None:
    """The memory key of the tensor whose Gram matrix measures these ``uses``; None if they need no Gram matrix."""
    match uses:
        case [Outer(inputs=inputs) as term] if not _is_cheaper_formed(term):
            return memory_key(inputs)
    return None


def merge(uses: Sequence[GradientTerm]) -> list[GradientTerm]:
    """The same gradients in fewer terms: uses are concatenated along positions, and dense terms are added."""
    if len(uses) == 1:
        return list(uses)
    dense = [term for term in uses if isinstance(term, Dense)]
    lookups = [term for term in uses if isinstance(term, Lookup)]
    outers = [term for term in uses if isinstance(term, Outer)]
    merged: list[GradientTerm] = [term for term in uses if not isinstance(term, Dense | Lookup | Outer)]
    if dense:
        merged.append(dense[0] if len(dense) == 1 else Dense(torch.stack([t.gradients for t in dense]).sum(0)))
    if lookups:
        merged.append(lookups[0] if len(lookups) == 1 else _joined_lookups(lookups))
    for transposed in (False, True):
        same = [term for term in outers if term.transposed is transposed]
        if same:
            inputs = torch.cat([t.inputs for t in same], 1) if len(same) > 1 else same[0].inputs
            gradients = torch.cat([t.gradients for t in same], 1) if len(same) > 1 else same[0].gradients
            merged.append(Outer(inputs, gradients, transposed))
    return merged


def _joined_lookups(lookups: list[Lookup]) -> Lookup:
    ids, gradients = ([getattr(t, field) for t in lookups] for field in ("ids", "gradients"))
    return Lookup(torch.cat(ids, 1), torch.cat(gradients, 1), lookups[0].vocabulary)


def squares_of(merged: Sequence[GradientTerm]) -> Squares:
    """The squares of the sum of merged terms; for an output layer tied to an embedding, without forming either."""
    match merged:
        case [Outer() as term] if _is_cheaper_formed(term):
            return formed_squares(merged)
        case [term]:
            return term.squares()
        case [Lookup() as lookup, Outer(transposed=False) as product]:
            separate = lookup.squares(), product.squares()
            square = separate[0].square + separate[1].square + 2 * cross(product, lookup)
            return Squares(square.clamp(min=0), _joint_slack([each.slack for each in separate]))
    return formed_squares(merged)


def formed_squares(merged: Sequence[GradientTerm]) -> Squares:
    """The squares of the sum of any terms, from the gradients of a few examples formed at a time."""
    one_example = merged[0].example_gradients(slice(0, 1))
    count = _count(merged[0])
    chunk_squares = []
    for rows in chunks(count, 8 * one_example.numel(), chunk_bytes(one_example)):
        gradients = merged[0].example_gradients(rows)
        for term in merged[1:]:
            gradients = gradients + term.example_gradients(rows)
        chunk_squares.append(squared_lengths(gradients.flatten(1)))
    return Squares(torch.cat(chunk_squares), _joint_slack([term.slack() for term in merged]))


def example_norm(terms: Mapping[str, Sequence[GradientTerm]], row: int) -> float:
    """The norm of one example's gradient over all parameters, formed one parameter at a time."""
    rows = slice(row, row + 1)
    square = 0.0
    for uses in terms.values():
        gradient = sum((term.example_gradients(rows) for term in uses[1:]), uses[0].example_gradients(rows))
        square += float(squared_lengths(gradient.flatten(1)))
    return math.sqrt(square)


def _is_cheaper_formed(term: Outer) -> bool:
    """Whether a term, such as one of several uses, has so many positions that forming gradients is cheaper."""
    features = term.inputs.shape[2], term.gradients.shape[2]
    return forming_is_cheaper(term.inputs.shape[1] // 2, *features)


def _joint_slack(slacks: Sequence[Tensor]) -> Tensor:
    """The slack of a sum: the square of the summed roots of its terms' ``slacks``."""
    return torch.stack([slack.sqrt() for slack in slacks]).sum(0).square()


def _count(term: GradientTerm) -> int:
    match term:
        case Outer() | Dense() | Lookup():
            return len(term.gradients)
    return len(term.slack())
