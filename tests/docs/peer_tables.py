"""The tables of ``docs/attack-comparison.md`` that compare membership attacks of several projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench import audit_wide
from tests.bench.audit_peers import AREA, OURS, best
from tests.docs.figures import results
from tests.docs.pages import as_table

_RATE, _RARE = "TPR at 1 %", "TPR at 0.1 %"


def parts() -> dict[str, str]:
    """Each made part by its mark."""
    targets = results("audit-peers")["targets"]
    return {
        "figures audit-peers summary": f"{summary(targets)}\n{ahead(targets)}",
        "figures audit-peers rare": rare(targets),
        "figures audit-peers": _found(targets),
        "figures audit-peers floor": _floor(targets, results("audit-precision")["targets"]),
        "figures audit-precision": _lost(results("audit-precision")["targets"]),
        "figures audit-wide": as_table(list(audit_wide.HEADINGS), audit_wide.rows(results("audit-wide")["targets"])),
    }


def of_precision() -> dict[str, str]:
    """The made part of ``docs/performance.md`` about forward passes in bfloat16."""
    networks = results("audit-precision")["networks"]
    rows = [
        [name, f"{each['bfloat16']:.2f}", " to ".join(f"{one:.2f}" for one in each["bfloat16_range"])]
        for name, each in networks.items()
    ]
    return {"figures audit-precision": as_table(["network", "time / float32", "least to most"], rows)}


def summary(targets: Mapping[str, Any]) -> str:
    """Of each target privctl's default attacks and the other projects' best, and how far they are apart.

    AUCs are beside the project with the largest one, TPRs beside the one with the largest TPR, of equal ones the first.
    The p-value is that of privctl's joint test.
    """
    rows = []
    for target, each in targets.items():
        ours, others = each["parties"][OURS], _others(each)
        nobody = {"attacks": {}}
        party = max(others, key=lambda name: best(others[name], AREA)[0], default="")
        area, attack = _best(others.get(party, nobody), AREA)
        resolved = {name: rate for name, found in others.items() if (rate := best(found, _RATE)[0]) == rate}
        second = max(resolved, key=lambda name: resolved[name], default="")
        rates = (best(found, _RATE)[0] for found in (ours, others.get(second, nobody)))
        rows.append([
            target, "{} ({})".format(*_best(ours, AREA)), f"{area} ({party}: {attack})" if party else "-",
            _lead(others.get(party, nobody)), *(f"{rate:.3f}" if rate == rate else "-" for rate in rates),
            _rates_apart(others.get(second, nobody)), f"{ours['p_value']:.2g}",
        ])  # fmt: skip
    headings = [
        "target", "privctl's best AUC", "best AUC of another", "privctl ahead by (95 %)", f"{_RATE} FPR, privctl",
        "others", "privctl ahead by (95 %)", "p",
    ]  # fmt: skip
    return as_table(headings, rows)


def rare(targets: Mapping[str, Any]) -> str:
    """Best TPRs at 0.1 %, where other parties' were compared; of another the largest, of equal ones the first."""
    rows = []
    for target, each in targets.items():
        compared = {name: found for name, found in _others(each).items() if _RARE in found.get("difference", {})}
        if compared:
            party = max(compared, key=lambda name: best(compared[name], _RARE)[0])
            rate, attack = _best(compared[party], _RARE)
            rows.append([
                target, "{} ({})".format(*_best(each["parties"][OURS], _RARE)), f"{rate} ({party}: {attack})",
                _rates_apart(compared[party], _RARE),
            ])  # fmt: skip
    return as_table(["target", f"{_RARE} FPR, privctl", "best of another", "privctl ahead by (95 %)"], rows)


def ahead(targets: Mapping[str, Any]) -> str:
    """The sentence that counts, of the targets that saw the members, those on which an interval leaves out 0."""
    trained = [_others(target) for target in targets.values() if not target["null"]]
    clauses = []
    for quantity in (AREA, _RATE):
        counts = []
        for party in sorted({party for others in trained for party in others}, key=str.lower):
            judged = [_interval(others[party], quantity) for others in trained if party in others]
            known = [each for each in judged if each is not None]
            above, below = sum(lower > 0 for lower, _ in known), sum(upper < 0 for _, upper in known)
            counts.append(f"{party}'s on {above} of {len(known)} and behind on {below}")
        clauses.append(f"best {quantity} is ahead of {', of '.join(counts)}")
    counted = "; its ".join(clauses)
    return (
        f"On the targets that were trained on their members, by an interval that leaves out 0, privctl's {counted}.\n"
    )


def _others(target: Mapping[str, Any]) -> dict[str, Any]:
    """What parties other than privctl found."""
    return {party: found for party, found in target["parties"].items() if not party.startswith(OURS)}


def _interval(found: Mapping[str, Any], quantity: str) -> tuple[float, float] | None:
    """Of privctl's best ``quantity`` less that of ``found``; both ends 0 where all records stand in the same order."""
    differences = found.get("difference", {})
    difference = differences.get(quantity) if quantity == _RATE else differences
    return (difference.get("lower", 0.0), difference.get("upper", 0.0)) if difference else None


def _found(targets: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        for party, found in each["parties"].items():
            rare, by = best(found, _RARE)
            rows.append([
                target, party, *_best(found, AREA), _lead(found), *_best(found, _RATE), f"{rare:.3f}" if by else "-",
                f"{found['seconds']:.3g}", f"{found['whole_seconds']:.3g}" if "whole_seconds" in found else "-",
            ])  # fmt: skip
    headings = [
        "target", "by", "best AUC", "attack", "privctl ahead by (95 %)", f"best {_RATE} FPR", "attack", f"{_RARE} FPR",
        "processor s", "audit s",
    ]  # fmt: skip
    return as_table(headings, rows)


def _lead(found: Mapping[str, Any]) -> str:
    """By how much privctl's best AUC is above that of ``found``, with its interval."""
    if "difference" not in found:
        return "-"
    difference = found["difference"]
    interval = (
        f"{difference['lower']:+.3f} to {difference['upper']:+.3f}" if "lower" in difference else "the same order"
    )
    return f"{difference['AUC']:+.4f} ({interval})"


def _rates_apart(found: Mapping[str, Any], quantity: str = _RATE) -> str:
    """By how much privctl's best TPR, ``quantity``, is above that of ``found``, with its interval."""
    difference = found.get("difference", {}).get(quantity)
    return (
        f"{difference['difference']:+.3f} ({difference['lower']:+.3f} to {difference['upper']:+.3f})"
        if difference
        else "-"
    )


def _floor(targets: Mapping[str, Any], precisions: Mapping[str, Any]) -> str:
    rows = []
    for target, each in targets.items():
        if "floor" not in each:
            continue
        bare, one = each["floor"]["bare_seconds"], each["floor"]
        others = (
            f"{each['parties'][party]['seconds'] / bare:.2f}" if party in each["parties"] else "-"
            for party in ("Privacy Meter", "PrivacyGuard")
        )
        coarse = f"{precisions[target]['bfloat16']:.2f}" if target in precisions else "-"
        rows.append([target, f"{bare:.3g}", f"{one['ratio']:.2f}", coarse, *others])
    headings = ["target", "bare passes, s", "privctl's scores", "in bfloat16", "Privacy Meter", "PrivacyGuard"]
    return as_table(headings, rows)


def _lost(precisions: Mapping[str, Any]) -> str:
    """What scores take in both formats, of bare passes in float32 of the same rounds, and how AUCs differ."""
    rows = []
    for target, each in precisions.items():
        most = max(each["attacks"], key=lambda name: abs(each["attacks"][name]["difference"]))
        loss, other = (
            f"{one['difference']:+.4f} ({one['lower']:+.4f} to {one['upper']:+.4f})"
            for one in (each["attacks"]["loss"], each["attacks"][most])
        )
        times = (f"{each[name]:.2f}" for name in ("float32", "bfloat16"))
        rows.append([target, *times, f"{each['attacks']['loss']['float32']:.3f}", loss, f"{most}: {other}"])
    headings = [
        "target",
        "float32",
        "bfloat16",
        "loss, AUC in float32",
        "loss, changed by (95 %)",
        "changed most (95 %)",
    ]
    return as_table(headings, rows)


def _best(found: Mapping[str, Any], quantity: str) -> tuple[str, str]:
    value, attack = best(found, quantity)
    return f"{value:.3f}", attack
