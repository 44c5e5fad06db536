"""The tables of ``docs/attack-comparison.md`` that compare membership attacks of several projects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.bench.audit_peers import AREA, OURS, best
from tests.docs.figures import results
from tests.docs.pages import as_table

_RATE, _RARE = "TPR at 1 %", "TPR at 0.1 %"


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    targets = results("audit-peers")["targets"]
    return {
        "figures audit-peers summary": summary(targets),
        "figures audit-peers": _found(targets),
        "figures audit-peers floor": _floor(targets),
    }


def summary(targets: Mapping[str, Any]) -> str:
    """Of each target privctl's default attacks and the other project with the largest AUC, and how far they are apart.

    The p-value is that of privctl's joint test.
    """
    rows = []
    for target, each in targets.items():
        ours = each["parties"][OURS]
        others = {party: found for party, found in each["parties"].items() if not party.startswith(OURS)}
        party = max(others, key=lambda name: best(others[name], AREA)[0], default="")
        theirs = others.get(party, {"attacks": {}})
        area, attack = _best(theirs, AREA)
        rates = (max((best(found, _RATE)[0] for found in some), default=math.nan) for some in ([ours], others.values()))
        rows.append([
            target, "{} ({})".format(*_best(ours, AREA)), f"{area} ({party}: {attack})" if party else "-",
            _apart(theirs), *(f"{rate:.3f}" if rate == rate else "-" for rate in rates), f"{ours['p_value']:.2g}",
        ])  # fmt: skip
    headings = [
        "target", "privctl's best AUC", "best AUC of another", "privctl ahead by (95 %)", f"{_RATE} FPR, privctl",
        "others", "p",
    ]  # fmt: skip
    return as_table(headings, rows)


def _found(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            rare, by = best(found, _RARE)
            rows.append([
                target, party, *_best(found, AREA), _apart(found), *_best(found, _RATE), f"{rare:.3f}" if by else "-",
                f"{found['seconds']:.3g}", f"{found['whole_seconds']:.3g}" if "whole_seconds" in found else "-",
            ])  # fmt: skip
    headings = [
        "target", "by", "best AUC", "attack", "privctl ahead by (95 %)", f"best {_RATE} FPR", "attack", f"{_RARE} FPR",
        "processor s", "audit s",
    ]  # fmt: skip
    return as_table(headings, rows)


def _apart(found: Mapping[str, Any]) -> str:
    """By how much privctl's best AUC is above that of ``found``, with its interval."""
    if "difference" not in found:
        return "-"
    one = found["difference"]
    interval = f"{one['lower']:+.3f} to {one['upper']:+.3f}" if "lower" in one else "the same order"
    return f"{one['AUC']:+.4f} ({interval})"


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
