"""The prover: three honest findings, vacuity noticed, and no wait longer than its time limit."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest

from privctl.domain.verdict import Outcome
from verify.prove import prover as module
from verify.prove.prover import Prover
from verify.prove.terms import evaluate, parse, real, symbols
from verify.prove.theorem import Proof, SolverFinding, Theorem


def theorem(claim: str, *assumptions: str) -> Theorem:
    return Theorem(name="it", statement="it", assumptions=assumptions, claim=claim)


def prove(claim: str, *assumptions: str) -> Proof:
    with Prover() as prover:
        return prover.prove(theorem(claim, *assumptions))


def test_proved_refuted_and_vacuous() -> None:
    assert prove("(> (* x x) 0.0)", "(> x 0.0)").outcome is Outcome.PROVED
    refuted = prove("(> (* x x) x)", "(> x 0.0)")
    assert refuted.outcome is Outcome.REFUTED
    assert refuted.checked
    assert 0 < refuted.model["x"] <= 1
    # From x > 0 and x < 0 anything follows, and so nothing: a prover that only negates would say "proved".
    vacuous = prove("(= x 7.0)", "(> x 0.0)", "(< x 0.0)")
    assert vacuous.finding is SolverFinding.VACUOUS
    assert vacuous.outcome is Outcome.INCONCLUSIVE


def test_irrational_counterexamples_are_shown_and_said_to_be_unchecked() -> None:
    found = prove("(< x 0.0)", "(= (* x x) 2.0)", "(> x 0.0)")
    assert found.finding is SolverFinding.REFUTED
    assert not found.checked
    assert float(found.model["x"]) == pytest.approx(2**0.5)


#: Fermat for a high odd power, over the reals with a twist that the solver does not settle quickly.
HARD = " ".join(
    f"(= (+ (* a{i} (* a{i} (* b{i} b{i}))) (* a{i + 1} (* c a{i}))) (+ (* b{i + 1} (* b{i + 1} b{i})) {i + 1}.0))"
    for i in range(7)
)


def test_a_proof_that_takes_too_long_is_undecided() -> None:
    with Prover(timeout=1) as prover:
        found = prover.prove(theorem(f"(not (and {HARD}))"))
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "1 s" in found.reason
        assert prover.prove(theorem("(>= (* x x) 0.0)")).finding is SolverFinding.PROVED, "the next one is not held up"


def test_a_solver_that_heeds_no_limit_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START", 0.1)
    monkeypatch.setattr(module, "_GRACE", 0.1)
    deaf = (sys.executable, "-c", "import time\ntime.sleep(600)")
    with Prover(timeout=0.2, command=deaf) as prover:
        found = prover.prove(theorem("(> x 0.0)"))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "stopped" in found.reason


def test_a_solver_that_dies_decides_nothing() -> None:
    with Prover(command=(sys.executable, "-c", "raise SystemExit(1)")) as prover:
        found = prover.prove(theorem("(> x 0.0)"))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "died" in found.reason


def test_a_solver_that_babbles_decides_nothing() -> None:
    loop = "import sys\nfor line in sys.stdin: print('unsat', flush=True)"
    with Prover(command=(sys.executable, "-c", loop)) as prover:
        assert prover.prove(theorem("(> x 0.0)")).outcome is Outcome.INCONCLUSIVE


def test_a_solver_that_lies_is_noticed() -> None:
    """Its counterexample is put into the formulas outside of it."""
    lie = 'print(\'{"result": "sat", "reason": "", "model": {"x": ["5", "1", true]}}\', flush=True)'
    loop = f"import sys\nfor line in sys.stdin: {lie}"
    with Prover(command=(sys.executable, "-c", loop)) as prover:
        found = prover.prove(theorem("(> x 0.0)", "(< x 9.0)"))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "does not hold" in found.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(< x 1.0)", True),
        ("(= (- x) (/ -1 3))", None),
        ("(and (<= 0.0 x) (not (> x y)) (=> (> x 9.0) (= x y)))", True),
        ("(= (+ x x x) (* y 1.0))", False),
        ("(or (> x y) (>= (- y x) (/ 5.0 3.0)))", True),
    ],
)
def test_formulas_are_evaluated_exactly(text: str, value: bool | None) -> None:
    if value is None:
        with pytest.raises(KeyError):
            evaluate(text, {"x": Fraction(1, 3)})  # a sign is an operator in this language, so -1 is a name
    else:
        assert evaluate(text, {"x": Fraction(1, 3), "y": Fraction(2)}) is value


def test_terms_are_written_read_and_evaluated() -> None:
    assert real(Fraction(-1, 3)) == "(- (/ 1.0 3.0))"
    assert evaluate(f"(= x {real(Fraction(-7, 5))})", {"x": Fraction(-7, 5)})
    assert symbols("(=> (> a 1.0) (= b (* a c)))") == {"a", "b", "c"}
    for wrong in ("(> a", "(> a 1.0))", "a b", ""):
        with pytest.raises(ValueError, match="not one term|did not open"):
            parse(wrong)
    with pytest.raises(ValueError, match="no operator"):
        evaluate("(sin x)", {"x": Fraction(0)})
    with pytest.raises(ValueError, match="not a formula"):
        evaluate("(+ x x)", {"x": Fraction(0)})
    with pytest.raises(ValueError, match="names no symbol"):
        theorem("(> 1.0 0.0)")
