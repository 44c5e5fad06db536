"""The prover, which runs a solver in its own process and enforces its timeout."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

from privctl.domain.checks import positive
from verify.prove.smtlib import assumptions_text, negation_text
from verify.prove.terms import evaluate, symbols
from verify.prove.theorem import Proof, SolverFinding, Theorem

#: Seconds beyond the solver's own limit, which it may ignore, before its process is killed; and for its start.
_GRACE, _START = 1.0, 30.0
_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))


class Prover:
    """Checks theorems one after another; a context manager, since it owns a process.

    ``timeout`` is in seconds, for each of a theorem's two queries. ``proofs`` holds all proofs so far, in order.
    """

    def __init__(self, timeout: float = 10.0, command: Sequence[str] = _WORKER) -> None:
        positive("timeout", timeout)
        self._timeout = timeout
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None
        self.proofs: list[Proof] = []

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def prove(self, theorem: Theorem) -> Proof:
        """The proof of one theorem, which is undecided if the solver hangs, dies or gives up."""
        started = time.monotonic()
        finding, reason, model, checked = self._find(theorem)
        proof = Proof(
            theorem=theorem,
            finding=finding,
            reason=reason,
            seconds=time.monotonic() - started,
            model=model,
            checked=checked,
        )
        self.proofs.append(proof)
        return proof

    def satisfiable(self, formula: str) -> bool | None:
        """Whether a formula is satisfiable; None if the solver does not decide."""
        names = sorted(symbols(formula))
        text = "".join(f"(declare-const {name} Real)\n" for name in names) + f"(assert {formula})\n"
        return {"sat": True, "unsat": False}.get(self._ask(text, ())["result"])

    def _find(self, theorem: Theorem) -> tuple[SolverFinding, str, dict[str, Fraction], bool]:
        if theorem.assumptions:
            possible = self._ask(assumptions_text(theorem), ())
            if possible["result"] == "unsat":
                return (
                    SolverFinding.VACUOUS,
                    "the assumptions contradict each other, so that anything follows",
                    {},
                    False,
                )
            if possible["result"] != "sat":
                return SolverFinding.UNDECIDED, f"whether the assumptions can hold: {possible['reason']}", {}, False
        answer = self._ask(negation_text(theorem), theorem.symbols)
        if answer["result"] == "unsat":
            return (
                SolverFinding.PROVED,
                "the assumptions can hold, and the claim's negation cannot hold with them",
                {},
                False,
            )
        if answer["result"] != "sat":
            return SolverFinding.UNDECIDED, f"whether the claim can fail: {answer['reason']}", {}, False
        values = {name: Fraction(int(top), int(bottom)) for name, (top, bottom, _) in answer["model"].items()}
        exact = all(value[2] for value in answer["model"].values())
        if exact and not _refutes(theorem, values):
            return SolverFinding.UNDECIDED, "the solver's counterexample does not hold when it is put in", values, False
        return SolverFinding.REFUTED, "numbers satisfy the assumptions and not the claim", values, exact

    def _ask(self, text: str, wanted: Sequence[str]) -> dict[str, Any]:
        """The worker's answer, or ``unknown`` with the reason; a late worker is killed."""
        request = {"text": text, "symbols": list(wanted), "timeout": max(1, round(self._timeout * 1000))}
        patience = self._timeout + _GRACE + (_START if self._process is None else 0)
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if selector.select(patience) else None
        except BrokenPipeError:
            line = ""
        answer = _answer(line)
        if answer is not None:
            if answer["reason"] in ("timeout", "canceled"):
                answer["reason"] = f"no answer within {self._timeout:g} s"
            return answer
        self._stop()
        reason = f"no answer within {self._timeout:g} s; the solver was stopped" if line is None else "the solver died"
        return {"result": "unknown", "reason": reason, "model": {}}

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own worker, by its full path
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self._process

    def _stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


def _answer(line: str | None) -> dict[str, Any] | None:
    """A worker's line as an answer; None if it is incomplete or not an answer."""
    try:
        answer = json.loads(line or "")
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and {"result", "reason", "model"} <= answer.keys() else None


def _refutes(theorem: Theorem, values: dict[str, Fraction]) -> bool:
    try:
        return all(evaluate(assumption, values) for assumption in theorem.assumptions) and not evaluate(
            theorem.claim, values
        )
    except ZeroDivisionError:
        return False
