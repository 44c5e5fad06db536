"""A checkpoint, for the terminal: the chain of its reports, newest first, then its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.guarantee import Notion, Scope, Status
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import TRAININGS, PrivacyReport, TensorDigest
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.plain import plain
from privctl.show.text.style import Colour, bound, coloured, number, paragraph, short, size, table

_MOST_DIMENSIONS = 16
#: Tensors of a file that are listed one by one without ``--verbose``.
_MOST_TENSORS = 20
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRow:
    """One report of the chain, None if it cannot be read; ``depth`` 0 is the model's own."""

    depth: int
    path: Path
    report: PrivacyReport | None
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One weight file; each of ``tensors`` has its size in bytes."""

    path: Path
    bytes: int
    digest: str
    tensors: Sequence[tuple[TensorDigest, int]]


def inspect_text(
    files: Sequence[FileRow],
    chain: Sequence[ChainRow],
    beside: Sequence[Verdict] = (),
    group: Mapping[str, float | None] | None = None,
    *,
    verbose: bool = False,
) -> str:
    """The chain of reports behind a checkpoint, and the tensors of its files.

    ``beside`` are verdicts on reports next to the model that are not its own. ``group`` has the size, epsilon and delta
    for examples that are added or removed together. Without ``verbose``, more than 20 tensors are grouped by names
    that differ only in numbers.
    """
    text = paragraph(_sentence(chain, beside)) + "\n"
    if chain:
        text += "".join(part for row in chain for part in _chain_parts(row))
    else:
        text += "no report: the header names none, and none next to it is about these weights (--report gives one)\n"
    text += "".join(f"\n{_doubt(verdict)}" for verdict in beside) + _group_text(group)
    tables = (_tensor_table(file, verbose=verbose) for file in files)
    return text + "".join(
        f"\n{plain(str(file.path))}  {size(file.bytes)}  {file.digest}\n\n{shown}"
        for file, shown in zip(files, tables, strict=True)
    )


def _sentence(chain: Sequence[ChainRow], beside: Sequence[Verdict]) -> str:
    """What a reader may rely on, in one sentence."""
    verdicts = [*beside, *(verdict for row in chain for verdict in row.verdicts)]
    changed = [plain(verdict.subject) for verdict in verdicts if verdict.outcome is Outcome.REFUTED]
    if changed:
        return f"Do not rely on the reports: {changed[0]} is not what they describe."
    own = chain[0].report if chain else None
    if own is None:
        missing = "its report is missing" if chain else "it has no report"
        return f"Nothing is known of what this model reveals: {missing}. Treat it as you treat its training data."
    standing = [g for g in own.guarantees if g.status in (Status.PROVED, Status.CONDITIONAL) and g.epsilon is not None]
    states = "states a privacy guarantee, which privctl verify recomputes"
    if not standing:
        states = "states no privacy guarantee that anyone can rely on"
    if any(verdict.outcome is not Outcome.PROVED for verdict in verdicts):
        return f"Not all files could be compared with the reports. This model's own {states}."
    return f"These files are those that the model's report describes; it {states}."


def _group_text(group: Mapping[str, float | None] | None) -> str:
    if group is None:
        return ""
    return "\n" + paragraph(
        f"{group['size']:g} examples added or removed together: epsilon {bound(group['epsilon'])} at delta "
        f"{bound(group['delta'])}, by the privacy loss distribution of the group, in real arithmetic; for a single "
        f"example it is {bound(group['epsilon_of_one'])}"
    )


def _tensor_table(file: FileRow, *, verbose: bool) -> str:
    if not verbose and len(file.tensors) > _MOST_TENSORS:
        return _kinds_table(file)
    rows = [[plain(t.name), t.dtype, _shape(t.shape), size(count), short(t.digest)] for t, count in file.tensors]
    return table(["tensor", "dtype", "shape", "size", "digest"], rows)


def _kinds_table(file: FileRow) -> str:
    """A table with one line for tensors whose names differ only in numbers, such as those of all layers."""
    kinds: dict[object, list[tuple[TensorDigest, int]]] = {}
    for tensor, count in file.tensors:
        kinds.setdefault((_NUMBER.sub("*", tensor.name), tensor.dtype, tensor.shape), []).append((tensor, count))
    rows = []
    for alike in kinds.values():
        first, alone = alike[0][0], len(alike) == 1
        name = first.name if alone else _NUMBER.sub("*", first.name)
        digest = short(first.digest) if alone else "-"
        total = size(sum(count for _, count in alike))
        rows.append([plain(name), str(len(alike)), first.dtype, _shape(first.shape), total, digest])
    shown = table(["tensor", "number", "dtype", "shape", "size in all", "digest"], rows)
    hidden = f"({len(file.tensors)} tensors on {len(rows)} lines: --verbose shows each with its digest)"
    return shown + paragraph(hidden)


def _shape(shape: Sequence[int]) -> str:
    shown = "x".join(map(str, shape[:_MOST_DIMENSIONS])) or "scalar"
    return f"{shown}x..." if len(shape) > _MOST_DIMENSIONS else shown


def _chain_parts(row: ChainRow) -> Iterator[str]:
    indent = 2 * row.depth
    step = f"{row.report.step} at {row.report.created}" if row.report else "no report"
    yield paragraph(f"{step}  ({_near(row.path)})", indent=indent)
    for line in _content(row.report) if row.report else ():
        yield paragraph(line.strip(), indent=indent + 4 + len(line) - len(line.lstrip()))
    matching = [v for v in row.verdicts if v.outcome is Outcome.PROVED]
    if matching:
        names = ", ".join(v.subject for v in matching)
        word = coloured(str(Outcome.PROVED), Colour.GOOD)
        yield paragraph(f"{word}: the digests of {names} are those recorded", indent=indent + 4)
    for verdict in row.verdicts:
        if verdict not in matching:
            yield _doubt(verdict, indent=indent + 4)


def _near(path: Path) -> str:
    """``path`` relative to the current folder if it lies below it."""
    here = Path.cwd()
    return plain(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _doubt(verdict: Verdict, *, indent: int = 0) -> str:
    word = coloured(str(verdict.outcome), Colour.BAD if verdict.outcome is Outcome.REFUTED else Colour.CARE)
    return paragraph(f"{word}: {verdict.subject}: {verdict.reason}", indent=indent)


def _content(report: PrivacyReport) -> Iterator[str]:
    mechanism = report.mechanism
    if isinstance(mechanism, WeightNoise):
        yield f"noise stddev {number(mechanism.noise_stddev)} on {counted(mechanism.dimension, 'weight')}"
    training = mechanism.training if isinstance(mechanism, WeightNoise) else mechanism
    if isinstance(training, ClippedTraining):
        yield (
            f"{counted(training.epochs, 'epoch')} of {counted(training.dataset_size, 'example')} in batches of "
            f"{training.batch_size}, {training.optimizer}, learning rate {number(training.learning_rate)}, "
            f"clip norm {number(training.clip_norm)}"
        )
    if report.guarantees:
        yield "as the report says, not recomputed:"
    elif report.step in TRAININGS:
        yield "no privacy guarantee"
    for g in report.guarantees:
        if g.scope is Scope.THIS_MODEL:
            numbers = f"epsilon {bound(g.epsilon)} at delta {bound(g.delta)}"
            if g.notion is Notion.SECRET_PROTECTION and not g.delta:
                numbers = f"at most {bound(g.epsilon)} nats about a secret"
            yield f"  {g.name}: {numbers}, {g.adjacency}, {g.status}"
