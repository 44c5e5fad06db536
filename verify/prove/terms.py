"""Terms of real arithmetic as SMT-LIB text: writing rationals, parsing, and evaluating formulas.

The evaluator shares nothing with a solver, so it checks counterexamples independently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise

from verify.prove.enclosures.enclosure import Interval

Term = str | list["Term"]
Value = Fraction | bool

_TOKEN = re.compile(r"[()]|[^\s()]+")


def real(value: Fraction | int) -> str:
    """A rational as an SMT-LIB term of sort Real."""
    exact = Fraction(value)
    size = abs(exact)
    text = f"{size.numerator}.0" if size.denominator == 1 else f"(/ {size.numerator}.0 {size.denominator}.0)"
    return f"(- {text})" if exact < 0 else text


def lies_in(name: str, enclosure: Interval) -> str:
    """The formula that the symbol ``name`` lies in ``enclosure``."""
    return f"(and (<= {real(enclosure.low)} {name}) (<= {name} {real(enclosure.high)}))"


def parse(text: str) -> Term:
    """The term in ``text`` as nested lists. Raises ValueError unless it is exactly one term."""
    stack: list[list[Term]] = [[]]
    for part in _TOKEN.findall(text):
        if part == "(":
            stack.append([])
        elif part == ")":
            if len(stack) == 1:
                raise ValueError(f"{text[:60]!r} closes a parenthesis that it did not open")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(part)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError(f"{text[:60]!r} is not one term")
    return stack[0][0]


def symbols(text: str) -> set[str]:
    """The names in a term that are neither operators nor numbers."""

    def walk(term: Term, head: bool) -> set[str]:
        if isinstance(term, str):
            return set() if head or _is_number(term) or term in ("true", "false") else {term}
        return {name for i, part in enumerate(term) for name in walk(part, i == 0)}

    return walk(parse(text), head=False)


def evaluate(text: str, values: Mapping[str, Fraction]) -> bool:
    """Whether a formula holds at rational ``values``, computed exactly. Raises ValueError if it is not a formula."""
    value = _value(parse(text), values)
    if not isinstance(value, bool):
        raise ValueError(f"{text[:60]!r} is a number, not a formula")
    return value


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def _value(term: Term, values: Mapping[str, Fraction]) -> Value:
    if isinstance(term, str):
        if term in ("true", "false"):
            return term == "true"
        return Fraction(term) if _is_number(term) else values[term]
    head, *rest = term
    assert isinstance(head, str)
    arguments = [_value(term, values) for term in rest]
    if head in _LOGIC:
        return _LOGIC[head]([bool(argument) for argument in arguments])
    numbers = [Fraction(argument) for argument in arguments]
    if head in _COMPARISONS:
        pairs = pairwise(numbers)
        return all(_COMPARISONS[head](left, right) for left, right in pairs)
    if head in _ARITHMETIC:
        return _ARITHMETIC[head](numbers)
    raise ValueError(f"{head} is no operator that is known here")


def _implies(parts: list[bool]) -> bool:
    return parts[-1] or not all(parts[:-1])


def _difference(parts: list[Fraction]) -> Fraction:
    return -parts[0] if len(parts) == 1 else parts[0] - sum(parts[1:])


def _product(parts: Iterable[Fraction]) -> Fraction:
    result = Fraction(1)
    for part in parts:
        result *= part
    return result


def _quotient(parts: list[Fraction]) -> Fraction:
    return parts[0] / _product(parts[1:])


_LOGIC: dict[str, Callable[[list[bool]], bool]] = {
    "and": all,
    "or": any,
    "not": lambda parts: not parts[0],
    "=>": _implies,
}
_COMPARISONS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
}
_ARITHMETIC: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "+": lambda parts: sum(parts, Fraction(0)),
    "-": _difference,
    "*": _product,
    "/": _quotient,
}
