"""Lines of values in JSON, against texts whose every value says on which line it stands."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from privctl.gate.files import JsonLines


def test_a_known_text() -> None:
    lines = JsonLines('{"a":\n [1,\n 2], "b": {"c": "x\\n]", "d"\n:\n[]}}\n')
    assert lines.of(["a", 1]) == 3
    assert lines.of(["a"]) == 2
    assert lines.of(["b", "c"]) == 3
    assert lines.of(["b", "d"]) == 5
    assert lines.of([]) == 1


@pytest.mark.parametrize("steps", [["z"], ["a", 9], ["a", 0, "deeper"], ["a", "key"], [3]])
def test_what_is_not_there_stands_where_the_way_to_it_ends(steps: list[Any]) -> None:
    assert JsonLines('\n{"a": [1]}').of(steps) == 2


@pytest.mark.parametrize("text", ["3", '"x"', "[]", "{}", "null"])
def test_the_smallest_texts(text: str) -> None:
    assert JsonLines(text).of(["a", 0]) == 1


def test_random_texts() -> None:
    """Every leaf is made to name its own line, as a printer that this module does not know lays them out."""
    drawn = random.Random(0)

    def make(depth: int) -> Any:
        kind = drawn.random()
        if depth == 0 or kind < 0.3:
            return drawn.choice([None, True, -1.5e-7, 0, "", 'q"\\', "ü\n{", "]"])
        if kind < 0.65:
            return [make(depth - 1) for _ in range(drawn.randint(0, 4))]
        return {f'k"{i}\\': make(depth - 1) for i in range(drawn.randint(0, 4))}

    checked = 0
    for _ in range(200):
        tree = make(4)
        steps: list[Any] = []
        node = tree
        while isinstance(node, (dict, list)) and node:
            step = drawn.choice(list(node)) if isinstance(node, dict) else drawn.randrange(len(node))
            steps.append(step)
            node = node[step]
        plain = json.dumps(tree, indent=drawn.choice([0, 1, 4]))
        _put(tree, steps, "HERE")
        marked = json.dumps(tree, indent=2)
        expected = next(i for i, line in enumerate(marked.splitlines(), start=1) if "HERE" in line) if steps else 1
        assert JsonLines(marked).of(steps) == expected
        assert 1 <= JsonLines(plain).of(steps) <= plain.count("\n") + 1
        checked += bool(steps)
    assert checked > 80


def _put(tree: Any, steps: list[Any], value: str) -> None:
    for step in steps[:-1]:
        tree = tree[step]
    if steps:
        tree[steps[-1]] = value


def test_many_items_cost_no_more_than_once_each() -> None:
    """Looked up one by one without memory, these would take a minute."""
    text = json.dumps({"evidence": [{"upper": i} for i in range(30_000)]}, indent=2)
    lines = JsonLines(text)
    assert [lines.of(["evidence", i, "upper"]) for i in range(30_000)] == [4 + 3 * i for i in range(30_000)]
