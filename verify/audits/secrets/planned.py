"""Compares the bounds that an audit of secrets tested with those that the plan at hand gives.

A secret that the plan lets the model reveal by at most so many nats is told from n - 1 others no more often than Fano's
inequality allows, nor than the plan's posterior, scaled up if guessing is easier than the plan assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.storage.arrays import read_arrays
from privctl.storage.reader import SafetensorsFile
from verify.audits.secrets.kept import KeptSecrets
from verify.files.places import as_recorded
from verify.losses import secret
from verify.recompute.book_of_secrets import ids_of
from verify.recompute.protection import Arrays, arrays_of, names_of

_POSITION = "secret.position"
_CLOSE = 1e-7


def other_bounds(path: Path, report: PrivacyReport, kept: KeptSecrets, ranks: Path) -> Iterator[str]:
    """Yields a sentence for the first secret whose bound, in the file ``ranks``, is not what the plan gives.

    Nothing without the plan and its book. A secret without a bound, as one that stands in other records too, is passed
    over. Raises InputError for files that cannot be read.
    """
    named = {role: [item for item in report.inputs if item.role == role] for role in ("plan", "secrets")}
    plan, book = (as_recorded(path, items[0]) if len(items) == 1 else None for items in named.values())
    if plan is None or book is None:
        return
    with SafetensorsFile(ranks) as file:
        if all(tensor.name != _POSITION for tensor in file.tensors):
            return
        positions = read_arrays(file, {_POSITION: "I64"}, "an audit's secrets")[_POSITION].tolist()
    with SafetensorsFile(plan) as file:
        arrays, (names, _) = arrays_of(file), names_of(file)
    ids, places = ids_of(book), {name: j for j, name in enumerate(names)}
    found = zip(positions, kept["candidates"].tolist(), kept["bound"].tolist(), kept["held_out"].tolist(), strict=True)
    for position, count, bound, held_out in found:
        if held_out or math.isnan(bound):
            continue
        j = places.get(ids[position]) if 0 <= position < len(ids) else None
        if j is None:
            raise InputError("a secret that it attacked is not one of the plan's")
        wanted = _success(arrays, j, count)
        if not math.isclose(bound, wanted, rel_tol=_CLOSE):
            yield f"it tested a bound of {bound:.6g} for a secret, to which the plan gives {wanted:.6g}"
            return


def _success(arrays: Arrays, j: int, count: int) -> float:
    """The largest probability of telling secret ``j`` from ``count`` - 1 other values that the plan permits."""
    if count < 2:
        return 1.0
    nats, prior = float(arrays["information"][j]), float(arrays["priors"][j])
    allowed = [float(arrays[name][j]) for name in ("posterior_bounds", "curve_bounds")]
    least = min(each for each in allowed if not math.isnan(each))
    return min(1.0, secret.posterior(nats, 1 / count), least * max(1.0, 1 / count / prior))
