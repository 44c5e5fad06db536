"""Theorems as SMT-LIB 2 files: two per theorem, with the answers that any solver should give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from privctl.domain.errors import CommandError
from privctl.storage.atomic import writing
from privctl.storage.commit import write_together
from verify.prove.terms import symbols
from verify.prove.theorem import Proof, SolverFinding, Theorem

_STATUS = {
    SolverFinding.PROVED: ("sat", "unsat"),
    SolverFinding.REFUTED: ("sat", "sat"),
    SolverFinding.VACUOUS: ("unsat", "unsat"),
    SolverFinding.UNDECIDED: ("unknown", "unknown"),
}


def assumptions_text(theorem: Theorem) -> str:
    """Declarations and assumptions; these must be satisfiable, or else the proof is vacuous."""
    names = sorted(set().union(*(symbols(text) for text in theorem.assumptions), set()))
    return _script(names, theorem.assumptions)


def negation_text(theorem: Theorem) -> str:
    """Declarations, assumptions and the negated claim; these must be unsatisfiable."""
    return _script(theorem.symbols, (*theorem.assumptions, f"(not {theorem.claim})"))


def smt_files(proofs: Iterable[Proof], folder: Path) -> dict[Path, bytes]:
    """The contents of NAME.assumptions.smt2 and NAME.negation.smt2 in ``folder``, for each proof."""
    files = {}
    for proof in {proof.theorem.name: proof for proof in proofs}.values():
        theorem = proof.theorem
        first, second = _STATUS[proof.finding]
        parts = (
            ("assumptions", assumptions_text(theorem), first, "the assumptions alone; unsat would make the proof void"),
            ("negation", negation_text(theorem), second, "the assumptions and not the claim; unsat proves the claim"),
        )
        for part, text, status, meaning in parts:
            files[folder / f"{theorem.name}.{part}.smt2"] = _file(theorem, text, status, meaning).encode()
    return files


def export(proofs: Iterable[Proof], folder: Path, others: Mapping[Path, bytes] = MappingProxyType({})) -> list[Path]:
    """Write the files of ``proofs`` to ``folder``, created if absent, together with the files ``others``.

    Raises CommandError if ``folder`` is not a folder.
    """
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{folder} is not a folder; name one to export the proofs to")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = smt_files(proofs, folder)
    write_together({**files, **others}, public=True)
    return list(files)


def _file(theorem: Theorem, text: str, status: str, meaning: str) -> str:
    words = " ".join(theorem.statement.split())
    return (
        f"; {words}\n; Here: {meaning}. Expected: {status}\n"
        f"(set-info :smt-lib-version 2.6)\n(set-info :status {status})\n(set-logic {_logic(text)})\n{text}(check-sat)\n"
    )


def _script(names: Iterable[str], formulas: Iterable[str]) -> str:
    lines = [f"(declare-const {name} Real)" for name in names]
    return "".join(f"{line}\n" for line in [*lines, *(f"(assert {formula})" for formula in formulas)])


def _logic(text: str) -> str:
    """The SMT-LIB logic: linear arithmetic if no product or quotient contains two symbols, otherwise nonlinear."""
    from verify.prove.terms import Term, parse

    def linear(term: Term) -> bool:
        if isinstance(term, str):
            return True
        head, *rest = term
        constant = [not symbols(_text(part)) for part in rest]
        if head == "*" and constant.count(False) > 1:
            return False
        if head == "/" and not all(constant[1:]):
            return False
        return all(linear(part) for part in rest)

    formulas = [line[len("(assert ") : -1] for line in text.splitlines() if line.startswith("(assert ")]
    return "QF_LRA" if all(linear(parse(formula)) for formula in formulas) else "QF_NRA"


def _text(term: object) -> str:
    return term if isinstance(term, str) else f"({' '.join(_text(part) for part in term)})"  # type: ignore[attr-defined]
