"""Attacks beyond causal language models: those that apply find what is planted, the others say why they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from audits import load_attack
from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.queries import ask
from audits.membership.records import prepare
from audits.scores.rows import Rows
from audits.scores.tasks import MASKED_LM, SEQ2SEQ_LM
from audits.statistics.metrics import auc
from privctl.cli import run
from privctl.data.columns import HeadKind
from privctl.data.records import Record
from privctl.reports.files import read_report
from tests.audits.membership.leaks import certain, likely, of_tokens
from tests.audits.membership.planted import END, Rule, Ruled, asked, records
from tests.audits.membership.test_null import nothing_to_find
from tests.audits.membership.test_thorough import OLDER
from tests.audits.other import save, write_data
from tests.few import few

SETTINGS = Settings()
#: Ids of a source, the same for all pairs.
SOURCE = (7, 8, 9)


@dataclass
class Framed(Ruled):
    """Texts between two special tokens, each of whose own tokens has a score."""

    def rows(self, records: Sequence[Record]) -> Rows:
        rows = [np.array([1, *map(int, record.text.split()), END], np.int64) for record in records]
        return Rows(rows=rows, truncated=np.zeros(len(rows), np.bool_))

    def counts(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(row) - 2 for row in rows], np.int64)


@dataclass
class Paired(Ruled):
    """Targets that end in a special token, of one source; every token of the target has a score."""

    def rows(self, records: Sequence[Record]) -> Rows:
        rows = [np.array([len(SOURCE), *SOURCE, *map(int, r.text.split()), END], np.int64) for r in records]
        return Rows(rows=rows, truncated=np.zeros(len(rows), np.bool_))

    def counts(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(row) - 1 - len(SOURCE) for row in rows], np.int64)


def altered(less: float) -> Callable[[set[bytes]], Rule]:
    """A member's altered copies are less likely than others'; records themselves are not."""

    def leak(known: set[bytes]) -> Rule:
        def rule(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
            paired = row[0] == len(SOURCE)
            assert row[-1] == END
            assert tuple(row[1:4]) == SOURCE if paired else row[0] == 1, "only what has scores is altered"
            drop = less if row[-2] % 2 == 0 and row.tobytes() not in known else 0.0
            return np.asarray(-4 - drop + random.normal(size=len(row) - (4 if paired else 2)))

        return rule

    return leak


def area(name: str, found: Candidates) -> float:
    attack = load_attack(name)
    assert isinstance(attack, ScoreAttack)
    assert not attack.missing(found)
    return auc(*found.table.split(attack.score(found, SETTINGS))).value


@pytest.mark.parametrize(("task", "kind"), [(MASKED_LM, Framed), (SEQ2SEQ_LM, Paired)])
@pytest.mark.parametrize("name", few(["neighbour", "pac"], 1))
def test_a_leak_in_altered_copies(name: str, task: str, kind: Callable[..., Ruled]) -> None:
    found = asked(altered(0.5), name, task, 60, kind=kind)
    assert area(name, found) > 0.8
    assert all(area(older, found) < 0.6 for older in OLDER)
    assert abs(area(name, asked(altered(0), name, task, 60, kind=kind)) - 0.5) < 0.17


@pytest.mark.parametrize(("name", "leak"), [("surp", certain), ("min-k++-all", likely)])
def test_a_leak_in_some_masked_tokens(name: str, leak: Callable[..., np.ndarray]) -> None:
    found = replace(of_tokens(leak), task=MASKED_LM)
    assert area(name, found) > area("min-k++", found) + 0.05


@pytest.mark.parametrize(
    ("name", "task", "reason"),
    [
        ("repeat", MASKED_LM, "puts text in front of a record, which a model for masked-lm does not continue"),
        ("recall", SEQ2SEQ_LM, "puts text in front of a record, which a model for seq2seq-lm does not continue"),
        ("con-recall", MASKED_LM, "puts text in front of a record"),
        ("neighbour", "text-classification", "alters tokens that a model predicts, which one for text-classification"),
        ("augmented", MASKED_LM, "looks at the labels of records"),
    ],
)
def test_what_does_not_apply_is_said(name: str, task: str, reason: str) -> None:
    found = asked(altered(0), name, task, kind=Framed)
    assert reason in load_attack(name).missing(found)
    for course in ("slope", "rises"):
        assert "next token" in load_attack(course).missing(replace(nothing_to_find(0, 20), task=MASKED_LM))
    assert "each token" in load_attack("surp").missing(replace(nothing_to_find(0, 20), task="question-answering"))


def test_no_label_is_kept_where_a_number_is_predicted() -> None:
    subject = Ruled(rule=lambda row, random: np.zeros(1), task="text-classification")
    work = prepare(subject, records(20, 1, odd=False), records(20, 2, odd=True))
    for head in (HeadKind.ONE, HeadKind.SEVERAL):
        assert not ask(subject, replace(work, head=head), ["label-only"]).unasked
    questions = ask(subject, replace(work, head=HeadKind.NUMBER), ["label-only", "augmented"])
    assert questions.unasked == {
        "label-only": "it counts the copies that keep their label, and this model predicts a number; augmented judges "
        "those"
    }
    assert set(questions.asked) == {"augmented"}


@pytest.mark.slow
def test_a_masked_model_that_knows_its_texts_by_heart(tmp_path: Path) -> None:
    members, others = (write_data(tmp_path / f"d{seed}", "masked", 40, seed) for seed in (1, 2))
    model = save(tmp_path / "m", "masked", learned=40, wide=False, steps=150)
    call = ["audit", "membership", str(model), "--members", str(members), "--nonmembers", str(others), "--thorough"]
    assert run([*call, "--device", "cpu", "-q", "-o", str(tmp_path / "r.json")]) == 0
    report = read_report(tmp_path / "r.json")
    areas = {item.method: item.estimate for item in report.evidence if item.quantity == "AUC"}
    assert {"min-k", "min-k++", "min-k++-all", "surp", "neighbour", "pac"} <= set(areas)
    for name in ("min-k", "min-k++", "surp", "pac"):
        assert (areas[name] or 0) > 0.7
    reasons = {omission.what: omission.reason for omission in report.omissions}
    assert "does not continue" in reasons["repeat attack"]
