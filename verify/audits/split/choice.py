"""Which records or groups of the data got coins: those that come first in an order by the key, so that nobody chose.

Whoever draws a split after the training may pick, of what was trained on, the records whose coins say member, and put
others of any kind beside them. What was trained on and got no coin shows it: by its place it had to get one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from blake3 import blake3

#: What the key orders, by whether groups have the coins.
_USES = {False: b"choice\0", True: b"group choice\0"}


def passed_over(key: bytes, drawn: Collection[bytes], trained: Iterable[bytes], *, of_groups: bool) -> bool:
    """Whether one of ``trained`` that is not ``drawn`` comes before one that is; records are lines, groups names."""
    use = _USES[of_groups]
    last = max((_place(key, use, unit) for unit in drawn), default=b"")
    return any(_place(key, use, unit) < last for unit in trained if unit not in drawn)


def _place(key: bytes, use: bytes, unit: bytes) -> bytes:
    return blake3(use + unit, key=key).digest()
