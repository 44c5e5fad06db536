"""Scores records independently of each other, in any number of processes; ``privctl audit scores`` judges the scores.

Each process scores a share of the records and writes it. No process gathers the scores of all tokens, which would take
much memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audits import ATTACKS, THOROUGH, load_attack
from audits.lineage import lineage_of, require_unseen
from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.gradients import Differentiator
from audits.membership.queries import ask
from audits.membership.records import candidates_of, prepare
from audits.model_scorer import ModelScorer, OpenedModel
from audits.record_scores.parts import ScoredWork, ScorePart, part_path, write_part
from audits.scores.subject import read
from audits.whole.request import require_kept
from privctl.data.columns import USUAL, Columns
from privctl.data.recorded import data_digest, recorded_files, require_same
from privctl.data.several import DataPath, paths_of, real_paths
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Progress
from privctl.models.choices import FloatFormat
from privctl.parallel import ALONE, Workers
from privctl.reports.files import versions
from privctl.storage.atomic import require_absent, require_regular
from privctl.storage.digest import bytes_digest

_SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """Which records to score with which model, and the Parquet file ``output`` for their scores.

    Empty ``attacks`` means all that score each record independently and apply to the model, costly ones only if
    ``thorough``. Raises CommandError for options that do not go together.
    """

    model: Path
    members: DataPath
    nonmembers: DataPath
    output: Path
    attacks: tuple[str, ...] = ()
    thorough: bool = False
    reference: Path | None = None
    base: Path | None = None
    base_bits: int | None = None
    precision: FloatFormat | None = None
    task: str | None = None
    max_length: int | None = None
    resize: tuple[int, int] | None = None
    columns: Columns = USUAL
    device: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.output.suffix != _SUFFIX:
            raise CommandError(f"--output {self.output} does not end in {_SUFFIX}; name the file of scores so")
        if real_paths(self.members) == real_paths(self.nonmembers):
            raise CommandError(f"--members and --nonmembers are the same, {self.members}; give two sets to compare")
        require_kept([*paths_of(self.members), *paths_of(self.nonmembers)])
        if self.thorough and self.attacks:
            raise CommandError("--thorough runs every attack; remove --attack")
        if self.base_bits is not None and self.precision is not None:
            raise CommandError("--base-bits holds the base in 4 bits and computes in float32; remove --precision")
        for name in self.attacks:
            if not _is_alone(name):
                raise CommandError(
                    f"--attack {name} scores records by what others score, so no share of them; give some of "
                    f"{', '.join(filter(_is_alone, ATTACKS | THOROUGH))}, or run privctl audit membership"
                )


def score_records(request: ScoringRequest, progress: Progress, workers: Workers = ALONE) -> tuple[Path, int]:
    """Score this process's share of the records and write it; returns the file and its number of records.

    Raises InputError for a model or data that cannot be scored, CommandError for settings that do not fit the model,
    for a file that exists, and for non-members that the model's reports name as training data.
    """
    output = part_path(request.output, workers.rank, workers.size)
    require_regular(output)
    require_absent(output, request.force)
    scorer = ModelScorer(
        cache=None, device=request.device, workers=ALONE, progress=progress, precision=request.precision
    )
    opened = scorer.open(
        request.model,
        output,
        task=request.task,
        max_length=request.max_length,
        resize=request.resize,
        base=request.base,
        base_bits=request.base_bits,
    )
    subject = opened.subject
    require_unseen(lineage_of(request.model, opened.inputs, output), "--nonmembers", request.nonmembers)
    reference = None
    if request.reference is not None:
        reference = scorer.open(request.reference, output, task=subject.task, resize=request.resize, beside=opened)
    before = {path: recorded_files(path) for path in (request.members, request.nonmembers)}
    members, nonmembers = (read(subject, path, request.columns, progress) for path in before)
    work = prepare(subject, members, nonmembers, workers, drawn=True, progress=progress)  # checked when judging
    means = None if reference is None or not work.records else scorer.means(reference, work.records)
    if not work.records:
        raise InputError(
            f"{request.members} and {request.nonmembers} hold no record for process {workers.rank + 1} of "
            f"{workers.size} to score; start fewer, or give records that can be scored"
        )
    names = request.attacks or tuple(filter(_is_alone, ATTACKS | THOROUGH if request.thorough else ATTACKS))
    questions = ask(subject, work, names)
    differentiator = Differentiator(
        subject=subject, reference=None if reference is None else reference.subject, progress=progress
    )
    gradients = differentiator.scores(names, work)
    row_scores = scorer.score(opened, [*work.rows, *questions.rows])
    candidates = candidates_of(work, row_scores, means, questions, gradients)
    attacks = _attacks(names, bool(request.attacks), candidates)
    sides = np.where(candidates.table.member, "members", "nonmembers").tolist()
    lines = candidates.table.line.tolist()
    for path, digested in before.items():
        require_same(path, digested)
    opened.require_unchanged()
    if reference is not None:
        reference.require_unchanged()
    part = ScorePart(
        work=ScoredWork(
            model=_digest(opened),
            reference=None if reference is None else _digest(reference),
            members=data_digest(request.members),
            nonmembers=data_digest(request.nonmembers),
            attacks=tuple(attack.name for attack in attacks),
            settings={**subject.describe(), "dtype": subject.model.dtype, "device": subject.model.device.type},
            versions=versions(("torch", "transformers", "numpy", "tokenizers")),
        ),
        rank=workers.rank,
        size=workers.size,
        ids=[f"{side}:{line}" for side, line in zip(sides, lines, strict=True)],
        member=candidates.table.member,
        tokens=np.diff(candidates.table.offsets),
        scores={attack.name: np.asarray(attack.score(candidates, Settings()), np.float64) for attack in attacks},
        left_out=candidates.table.skip_counts(),
    )
    write_part(output, part, replace=request.force)
    return output, len(lines)


def _is_alone(name: str) -> bool:
    attack = load_attack(name)
    return isinstance(attack, ScoreAttack) and attack.alone


def _attacks(names: Sequence[str], by_name: bool, candidates: Candidates) -> Sequence[ScoreAttack]:
    """The possible attacks among ``names``. Raises CommandError for another if it was asked for ``by_name``."""
    chosen = []
    for name in names:
        attack = load_attack(name)
        assert isinstance(attack, ScoreAttack)
        missing = attack.missing(candidates)
        if not missing:
            chosen.append(attack)
        elif by_name:
            raise CommandError(f"--attack {name} cannot be run: {missing}")
    return chosen


def _digest(opened: OpenedModel) -> str:
    """A digest of a model's files, without their names."""
    return bytes_digest("\n".join(f"{file.role} {file.digest}" for file in opened.inputs).encode())
