"""The table of ``docs/performance.md`` that compares membership attacks of several projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.audit_peers import AREA, best
from tests.docs.figures import results
from tests.docs.pages import as_table

_RATE, _RARE = "TPR at 1 %", "TPR at 0.1 %"


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    targets = results("audit-peers")["targets"]
    return {
        "figures audit-peers": _found(targets),
        "figures audit-peers differences": _differences(targets),
        "figures audit-peers floor": _floor(targets),
    }


def _found(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            rare, by = best(found, _RARE)
            rows.append([
                target, party, *_best(found, AREA), *_best(found, _RATE), f"{rare:.3f}" if by else "-",
                f"{found['seconds']:.3g}", f"{found['whole_seconds']:.3g}" if "whole_seconds" in found else "-",
            ])  # fmt: skip
    headings = [
        "target", "by", "best AUC", "attack", f"best {_RATE} FPR", "attack", f"{_RARE} FPR", "processor s", "audit s",
    ]  # fmt: skip
    return as_table(headings, rows)


def _differences(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            if "difference" in found:
                one = found["difference"]
                interval = f"{one['lower']:+.3f} to {one['upper']:+.3f}" if "lower" in one else "the same order"
                span = f"{one['AUC']:+.4f} ({interval})"
                rows.append([target, one["attack"], f"{party}: {one['other']}", span])
    return as_table(["target", "privctl", "beside", "AUC, difference"], rows)


def _floor(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        if "floor" not in each:
            continue
        bare, one = each["floor"]["bare_seconds"], each["floor"]
        others = (
            f"{each['parties'][party]['seconds'] / bare:.2f}" if party in each["parties"] else "-"
            for party in ("Privacy Meter", "PrivacyGuard")
        )
        rows.append([target, f"{bare:.3g}", f"{one['ratio']:.2f}", *others])
    return as_table(["target", "bare passes, s", "privctl's scores", "Privacy Meter", "PrivacyGuard"], rows)


def _best(found: Mapping[str, Any], quantity: str) -> tuple[str, str]:
    value, attack = best(found, quantity)
    return f"{value:.3f}", attack
