"""The solver's own process, which reads and writes one line of JSON per request. It may hang or die without harm.

It runs as a script, so that the process loads nothing but the solver. A request holds SMT-LIB ``text`` of declarations
and assertions, ``symbols``, and ``timeout`` in milliseconds. The answer holds ``result`` (sat, unsat or unknown),
``reason`` and ``model``, which maps names to [numerator, denominator, whether this is exact].
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The solver's answer to one request."""
    import z3

    solver = z3.Solver()
    solver.set("timeout", int(request["timeout"]))
    solver.from_string(request["text"])
    result = solver.check()
    if result == z3.unknown:
        return {"result": "unknown", "reason": solver.reason_unknown(), "model": {}}
    model = solver.model() if result == z3.sat else None
    values = {}
    for name in request["symbols"] if model is not None else ():
        assert model is not None
        value = model.eval(z3.Real(name), model_completion=True)
        exact = bool(z3.is_rational_value(value))
        rational = value if exact else value.approx(40)
        values[name] = [str(rational.numerator()), str(rational.denominator()), exact]
    return {"result": str(result), "reason": "", "model": values}


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            reply = {"result": "unknown", "reason": f"{type(error).__name__}: {error}", "model": {}}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
