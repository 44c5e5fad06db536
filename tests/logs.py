"""Logs of audits made as ``privctl audit`` makes them, without a model, and ways to tamper with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from privctl.domain.report import LogPosition
from privctl.reports.audit_log import abandon, begin, finish
from privctl.storage.digest import file_digest
from privctl.storage.hash_chain import Chain
from tests.gate.made import auc, audit, weights


def begun(log: Path, name: str = "m") -> LogPosition:
    """Enter an audit of the weights ``name``, of which nothing more is heard."""
    entry = begin(log, (weights(name),), {"membership": {"seed": entry_seed(log)}})
    return LogPosition(path=log.name, entry=entry.number, digest=entry.digest)


def entry_seed(log: Path) -> int:
    """A setting that differs from audit to audit."""
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def audited(log: Path, report: Path, value: float = 0.5, name: str = "m") -> Path:
    """Audit the weights ``name``, with an AUC of ``value``, as privctl would: before, report, after."""
    position = begun(log, name)
    audit(report, auc(value, value - 0.05, value + 0.05), name=name, log=position)
    finish(log, position, report=file_digest(report), refuted=0, worst={"AUC": value})
    return report


def abandoned(log: Path, reason: str = "KeyboardInterrupt", name: str = "m") -> None:
    """Enter an audit that was stopped."""
    abandon(log, begun(log, name), reason)


def lines(log: Path) -> list[bytes]:
    """All lines, with their ends."""
    return log.read_bytes().splitlines(keepends=True)


def reordered(first: int, second: int) -> Callable[[Path], object]:
    """Swaps two lines, counted from 1."""

    def swap(log: Path) -> None:
        found = lines(log)
        found[first - 1], found[second - 1] = found[second - 1], found[first - 1]
        log.write_bytes(b"".join(found))

    return swap


def without(*numbers: int) -> Callable[[Path], object]:
    """Leaves lines out, counted from 1."""

    def drop(log: Path) -> None:
        log.write_bytes(b"".join(line for n, line in enumerate(lines(log), start=1) if n not in numbers))

    return drop


def edited(old: bytes, new: bytes) -> Callable[[Path], object]:
    """Replaces a text wherever it stands."""

    def edit(log: Path) -> None:
        before = log.read_bytes()
        assert old in before
        log.write_bytes(before.replace(old, new))

    return edit


def written_anew(log: Path, keep: Callable[[dict[str, object]], bool]) -> None:
    """What an attacker who holds the file can do: a whole chain of those lines alone that ``keep`` chooses."""
    from privctl.reports import audit_log

    chain: Chain = audit_log._CHAIN
    head, written, renumbered = chain.root, [], {}
    for line in lines(log):
        entry = json.loads(line)
        if not keep(entry):
            continue
        del entry["digest"]
        renumbered[entry["entry"]] = len(written) + 1
        entry |= {"entry": len(written) + 1, "previous": "blake3:" + head}
        if "begun" in entry:
            entry["begun"] = renumbered.get(entry["begun"], 99)
        text = json.dumps(entry, separators=(",", ":"))
        whole, head = chain.line(head, text.removesuffix("}").encode())
        written.append(whole)
    log.write_bytes(b"".join(written))
