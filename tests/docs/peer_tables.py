"""The table of ``docs/performance.md`` that compares membership attacks of several projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.audit_peers import AREA, best
from tests.docs.figures import results
from tests.docs.pages import as_table

_RATE = "TPR at 1 %"


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    return {"figures audit-peers": _found(results("audit-peers")["targets"])}


def _found(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            seconds = found["seconds"]
            rows.append([
                target, party, *_best(found, AREA), *_best(found, _RATE),
                f"{seconds:.3g}", f"{each['records'] / seconds:.0f}",
            ])  # fmt: skip
    headings = ["target", "by", "best AUC", "attack", f"best {_RATE} FPR", "attack", "processor s", "records/s"]
    return as_table(headings, rows)


def _best(found: Mapping[str, Any], quantity: str) -> tuple[str, str]:
    value, attack = best(found, quantity)
    return f"{value:.3f}", attack
