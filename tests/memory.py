"""How much memory a process held at most."""

from __future__ import annotations


def peak() -> int:
    """Bytes that this program has had in memory at most (Linux).

    ``ru_maxrss`` does not tell: across fork and exec it begins with what the parent had in memory, so that a test's
    own process hides what its child takes.
    """
    with open("/proc/self/status", encoding="utf-8") as status:
        return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
