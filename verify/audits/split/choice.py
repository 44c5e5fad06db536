"""Which records or groups got coins: those that come first in a keyed order, so that nobody could choose them.

Someone who draws a split after the training could pick training records whose coins say member, and add arbitrary
other records. Training records without a coin expose this: by their place in the order they had to get one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from blake3 import blake3

#: The domain separation of the keyed order, by whether coins are drawn for groups.
_USES = {False: b"choice\0", True: b"group choice\0"}


def has_skipped_units(key: bytes, drawn: Collection[bytes], trained: Iterable[bytes], *, of_groups: bool) -> bool:
    """Whether some unit of ``trained`` without a coin comes before a ``drawn`` one; units are lines or group names."""
    use = _USES[of_groups]
    last = max((_unit_order(key, use, unit) for unit in drawn), default=b"")
    return any(_unit_order(key, use, unit) < last for unit in trained if unit not in drawn)


def _unit_order(key: bytes, use: bytes, unit: bytes) -> bytes:
    return blake3(use + unit, key=key).digest()
