"""``privctl.audit_module``: audit a network of the user's own class, by scores from the user's own function.

privctl compares the network with the checkpoint, passes records to the function in a random order without their
membership, and judges the scores. It cannot check what the function does; the report states that as an assumption.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from audits.places import output_paths
from audits.record_scores.audit import run_record_scores
from audits.record_scores.of_model import scored_model
from audits.record_scores.table import ScoreColumns
from audits.split.drawn import DrawnSplit, contents, read_split
from audits.split.manifest import manifest_at
from audits.whole.log_entry import log_result, logged, logged_beside
from privctl.accounting.profile import profile
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import PrivacyReport
from privctl.integrations.own_model import require_saved
from privctl.integrations.own_records import content_of, require_disjoint, require_scores_of_records
from privctl.reports.codec import encode
from privctl.reports.files import require_not_weights_or_report
from privctl.storage.atomic import require_absent, require_regular, write_bytes
from privctl.storage.json_text import parse_json
from privctl.storage.reader import missing_model

#: A function of a network and n records, which returns their scores (n,), or a mapping of names to such scores.
Scores = Callable[[nn.Module, list[Any]], Any]
_ONLY = "score"
_RESERVED = frozenset({"id", "member"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """The records to score: ``ids`` and ``member`` [records], and ``reads``, which returns record i.

    ``drawn`` is True for the records of a split, whose manifest already accounts for duplicates.
    """

    ids: Sequence[str]
    member: Sequence[bool]
    reads: Callable[[int], Any]
    drawn: bool = False


def audit_module(
    module: nn.Module,
    model: str | os.PathLike[str],
    scores: Scores,
    *,
    members: Sequence[Any] | None = None,
    nonmembers: Sequence[Any] | None = None,
    split: str | os.PathLike[str] | None = None,
    batch_size: int = 256,
    least_auc: float = 0.55,
    delta: float | None = None,
    log: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> PrivacyReport:
    """Audit ``module``, whose weights are saved at ``model``, by ``scores``, a function that scores records.

    ``scores(module, records)`` gets the network, in evaluation mode, and a list of n records. It returns a tensor (n,)
    of scores, higher for records that look like training data, or a mapping of such tensors, one for each attack.
    Records come in batches of ``batch_size`` in a random order, with members and non-members mixed. They are the items
    of ``members`` and ``nonmembers``, which should be a random split of one source. With ``split``, the folder or
    manifest of a split by ``privctl.audit_split``, they are the JSON values of its lines. The scores of a split also
    bound epsilon from below, at ``delta``, and test the claims of the model's own report; if its coins are those of
    users or other groups, groups are judged. ``least_auc`` is the AUC that must be detectable for a result without a
    leak to count.

    Writes the scores and the report beside ``model``, or the report to ``output``, and returns the report; do not
    publish it. The audit is entered into the log of audits beside the model, or at ``log``, before the function is
    called. It rests on the assumption ``scores of the model``: that the scores depend on the record and the network
    only. A gate counts the audit only where its policy accepts that assumption.

    Raises InputError for a module that differs from the saved one, for a function that does not run the module, that
    returns no finite number for a record, or one number for a whole batch, and for records among both members and
    non-members; CommandError for settings that do not go together and for existing files.
    """
    if not isinstance(module, nn.Module) or not isinstance(model, str | os.PathLike) or not callable(scores):
        raise CommandError(
            "audit_module takes the network, the path of its saved weights and a function of scores, in this order"
        )
    place, drawn = Path(model), None if split is None else read_split(manifest_at(Path(split)))
    if not place.exists():
        raise missing_model(place)
    if type(batch_size) is not int or batch_size < 1:
        raise CommandError(f"batch_size is {batch_size!r}; it must be a whole number, at least 1")
    if not 0.5 < least_auc < 1:
        raise CommandError(f"least_auc is {least_auc}; it must be above 0.5 and below 1")
    if drawn is None and delta is not None:
        raise CommandError("delta is for bounds, which need a drawn split; give split too")
    records = _records(members, nonmembers, drawn)
    path, ranks = output_paths(place, None if output is None else Path(output))
    table = ranks.with_suffix(".csv")
    for each in (path, table):
        require_regular(each)
        require_absent(each, force)
    require_not_weights_or_report(path, but="audit")
    entered = logged_beside(place, path, None if log is None else Path(log), warnings.warn)
    require_saved(module, dict(module.named_parameters()), place)
    audited = scored_model(place, path, None if drawn is None else profile, by_function=True)
    settings = {"function": getattr(scores, "__qualname__", type(scores).__name__), "records": len(records.ids)}
    settings |= {"least_auc": least_auc, **({} if delta is None else {"delta": delta})}
    settings |= {} if drawn is None else {"split": drawn.path}
    with logged(entered, path, audited.inputs, settings) as position:
        named = _scored(module, scores, records, batch_size)
        require_saved(module, dict(module.named_parameters()), place)
        write_bytes(table, _table(records, named).encode(), replace=force)
        report = run_record_scores(
            [table],
            path,
            columns=ScoreColumns(scores=tuple(named)),
            least_auc=least_auc,
            split=drawn,
            delta=delta,
            model=audited,
            enter=lambda: position,
        )
        write_bytes(path, encode(report).encode(), replace=force)
    log_result(report, entered)
    return report


def _records(members: Sequence[Any] | None, nonmembers: Sequence[Any] | None, drawn: DrawnSplit | None) -> _Records:
    if drawn is not None:
        if members is not None or nonmembers is not None:
            raise CommandError(
                "a split has its own members and non-members; give either split, or members and nonmembers"
            )
        return _of_split(drawn)
    if members is None or nonmembers is None:
        raise CommandError("an audit compares members and non-members; give both, or a drawn split")
    sides = (("members", members), ("nonmembers", nonmembers))
    for name, side in sides:
        if isinstance(side, str | os.PathLike):
            raise CommandError(f"{name} is a path; read its records, and give a list or a data set of them")
        if not isinstance(side, Sized) or not hasattr(side, "__getitem__"):
            raise CommandError(f"{name} cannot be counted and read by position; give a list or a data set of records")
    counts = [len(side) for _, side in sides]
    return _Records(
        ids=[f"{name}:{i + 1}" for (name, _), count in zip(sides, counts, strict=True) for i in range(count)],
        member=[True] * counts[0] + [False] * counts[1],
        reads=lambda i: members[i] if i < counts[0] else nonmembers[i - counts[0]],
    )


def _of_split(drawn: DrawnSplit) -> _Records:
    ids: list[str] = []
    lines: list[tuple[bytes, str]] = []
    for name, file in (("members", drawn.members), ("nonmembers", drawn.nonmembers)):
        for number, content in contents(file):
            ids.append(f"{name}:{number}")
            lines.append((content, f"{file} line {number}"))
    return _Records(
        ids=ids,
        member=[each.startswith("members") for each in ids],
        reads=lambda i: parse_json(lines[i][0].decode(), lines[i][1]),
        drawn=True,
    )


def _scored(module: nn.Module, scores: Scores, records: _Records, batch_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """The scores [records] by name, computed in a random order that does not depend on membership."""
    count = len(records.ids)
    order = np.random.default_rng(list(os.urandom(16))).permutation(count)
    named: dict[str, np.ndarray[Any, Any]] = {}
    contents: list[bytes | None] = [None] * count
    batches = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    with _evaluated(module) as runs:
        for rows in batches:
            before = len(runs)
            batch = [records.reads(int(row)) for row in rows]
            for row, record in zip(rows.tolist(), batch, strict=True):
                contents[row] = None if records.drawn else content_of(record)
            given = scores(module, batch)
            if len(runs) == before:
                raise InputError(
                    "the function of scores did not run the module that it was given, so its scores are not of it; "
                    "compute them with its first argument"
                )
            found = given if isinstance(given, Mapping) else {_ONLY: given}
            if named and found.keys() != named.keys():
                raise InputError(
                    "the function of scores returned different names for different batches; return all names for "
                    "each batch"
                )
            for name, values in found.items():
                named.setdefault(_column(name), np.full(count, math.nan))[rows] = _numbers(values, len(rows), name)
    if not named:
        raise InputError("the function of scores returned no scores; return a tensor with one score per record")
    require_disjoint(contents, records.member)
    require_scores_of_records(named, batches)
    return named


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[list[None]]:
    """A context with ``module`` in evaluation mode, without gradients.

    The value is a list that grows by one item whenever the module or a submodule runs.
    """
    runs: list[None] = []
    modes = [(each, each.training) for each in module.modules()]
    hooks = [each.register_forward_pre_hook(lambda *_: runs.append(None)) for each in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield runs
    finally:
        for hook in hooks:
            hook.remove()
        for each, training in modes:
            each.training = training


def _column(name: Any) -> str:
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum() or name in _RESERVED:
        raise InputError(
            f"the function of scores returned the name {name!r}; use letters, digits, hyphens and underscores, and not "
            f"{' or '.join(sorted(_RESERVED))}"
        )
    return name


def _numbers(values: Any, count: int, name: str) -> np.ndarray[Any, Any]:
    try:
        found = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (count,):
        raise InputError(
            f"the function of scores returned {name!r} of the shape {found.shape} for {count} records; return one "
            "number for each"
        )
    if not np.isfinite(found).all():
        raise InputError(f"the function of scores returned {name!r} that is not finite; every record needs a number")
    return found


def _table(records: _Records, named: Mapping[str, np.ndarray[Any, Any]]) -> str:
    rows = zip(records.ids, records.member, zip(*(v.tolist() for v in named.values()), strict=True), strict=True)
    lines = [",".join((each, str(int(member)), *map(repr, values))) for each, member, values in rows]
    return "\n".join([",".join(("id", "member", *named)), *lines]) + "\n"
