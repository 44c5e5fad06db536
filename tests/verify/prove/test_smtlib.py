"""Exported proofs: another reader of the files comes to the answers that they expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import z3

from privctl.domain.errors import CommandError
from tests.verify.prove import lemmas
from verify.prove.library import information, quantizer, weights
from verify.prove.prover import Prover
from verify.prove.smtlib import export
from verify.prove.theorem import Theorem

THEOREMS = [
    lemmas.half_line(),
    lemmas.half_line_misplaced(),
    weights.corrected_exponent(),
    weights.printed_exponent(),
    information.fire_meets_budget(),
    quantizer.clipped_aggregate(1),
    Theorem(name="vacuous", statement="it\nwraps", assumptions=("(> x 0.0)", "(< x 0.0)"), claim="(= x 1.0)"),
]


def test_files_are_read_back_and_answered(tmp_path: Path) -> None:
    with Prover() as prover:
        proofs = [prover.prove(theorem) for theorem in THEOREMS]
    files = export(proofs, tmp_path / "proofs")
    assert len(files) == 2 * len(THEOREMS)
    for path in files:
        text = path.read_text()
        (status,) = re.findall(r"set-info :status (\w+)", text)
        assert f"Expected: {status}" in text
        solver = z3.Solver()
        solver.from_string(text)
        assert str(solver.check()) == status, path.name
    statuses = {path.name: re.findall(r":status (\w+)", path.read_text())[0] for path in files}
    assert statuses["gaussian-half-line.assumptions.smt2"] == "sat"
    assert statuses["gaussian-half-line.negation.smt2"] == "unsat"
    assert statuses["gaussian-half-line-misplaced.negation.smt2"] == "sat"
    assert statuses["vacuous.assumptions.smt2"] == "unsat"


def test_logics_are_named(tmp_path: Path) -> None:
    with Prover() as prover:
        linear, products = prover.prove(quantizer.clipped_aggregate(2)), prover.prove(lemmas.half_line())
    texts = [path.read_text() for path in export([linear, products], tmp_path)]
    assert "(set-logic QF_LRA)" in texts[1]
    assert "(set-logic QF_NRA)" in texts[3]


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(CommandError, match="not a folder"):
        export([], tmp_path / "x")
