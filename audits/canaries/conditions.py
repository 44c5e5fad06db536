"""Whether planted canaries meet the conditions of the bounds, checked where possible."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3
from scipy.special import bdtr

from audits.canaries.design import blocks
from audits.canaries.manifest import Coins, Manifest, commitment_of
from audits.canaries.plant import record_lines
from privctl.data.records import read_records
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.shown import counted
from privctl.storage.digest import file_digest, tag

#: Counts with a smaller probability under fair coins are rejected.
_RARE = 1e-6
#: With this many canaries or more, fair coins include exactly half of them one time in eight or more rarely.
_FEWEST_SUSPECT = 40

_CHECKED, _VIOLATED = AssumptionState.CHECKED, AssumptionState.VIOLATED
_ASSERTED = AssumptionState.ASSERTED


def conditions(
    manifest: Manifest, *, commitment: str | None = None, trained_on: Sequence[str] | None = None
) -> tuple[Assumption, ...]:
    """The conditions of the one-run bounds, as far as the manifest shows them.

    ``commitment`` is the hash published before training, ``trained_on`` the digests of the data named by the model's
    own training report; None if unknown.
    """
    return (
        _commitment(manifest, commitment),
        _coins(manifest),
        number_included(sum(canary.included for canary in manifest.canaries), len(manifest.canaries)),
        _distinct(manifest),
        _training(manifest, trained_on),
    )


def data_conditions(manifest: Manifest, path: Path) -> tuple[Assumption, ...]:
    """Whether the data at ``path`` is as the manifest describes: every copy present, nothing else changed or leaked.

    Raises InputError for a file without records.
    """
    planted = Counter({manifest.line(canary): canary.copies for canary in manifest.canaries if canary.included})
    copies_found: Counter[bytes] = Counter()
    source = blake3()
    for line, _ in record_lines(path):
        if line in planted:
            copies_found[line] += 1
        else:
            source.update(line)
    miscounted = sum(copies_found[line] != copies for line, copies in planted.items())
    rest_is_source = tag(source) == manifest.source.content
    return (
        _state(
            "planted data",
            file_digest(path) == manifest.planted.digest,
            "the file is the one that was planted, byte for byte",
            "the file has other bytes than the one that was planted",
        ),
        _state(
            "copies",
            not miscounted,
            "every included canary is there in exactly its number of copies",
            f"{miscounted} included canaries are there in another number of copies than the manifest says",
        ),
        _state(
            "source",
            rest_is_source,
            "without the canaries the file is the source, byte for byte",
            "without the canaries the file is not the source that the manifest names",
        ),
        _secrets(manifest, path),
    )


def violated_conditions(conditions: Sequence[Assumption]) -> list[Assumption]:
    """The conditions that do not hold."""
    return [condition for condition in conditions if condition.state is _VIOLATED]


def _state(name: str, holds: bool, good: str, bad: str) -> Assumption:
    return Assumption(name=name, statement=good if holds else bad, state=_CHECKED if holds else _VIOLATED)


def _commitment(manifest: Manifest, expected: str | None) -> Assumption:
    name = "commitment"
    if commitment_of(manifest) != manifest.commitment:
        statement = "the manifest was changed after it was committed to: its content does not give its commitment"
        return Assumption(name=name, statement=statement, state=_VIOLATED)
    if expected is None:
        statement = "the manifest is the one written before training; give the published commitment to have it checked"
        return Assumption(name=name, statement=statement, state=_ASSERTED)
    return _state(
        name,
        expected.strip().lower() == manifest.commitment,
        "the manifest is the one that the given commitment stands for",
        "the manifest is not the one that the given commitment stands for",
    )


def _coins(manifest: Manifest) -> Assumption:
    """The coins' condition.

    Including a fixed number would void the bounds; only the source of the coins can rule that out. A commitment shows
    that the manifest is older than the training, not what drew its coins.
    """
    name = "independent coins"
    if manifest.coins is Coins.SEED:
        statement = "the coins come from a given seed, so whoever knows it can tell them without the model"
        return Assumption(name=name, statement=statement, state=_VIOLATED)
    statement = "each canary was included by a fair coin of its own, from the operating system, as the manifest says"
    return Assumption(name=name, statement=statement, state=_ASSERTED)


def number_included(included: int, count: int) -> Assumption:
    """The condition on the number of included canaries.

    A draw of fixed size would include exactly half. If half are included, the bounds hold for such a draw too, because
    ``share_of_failures`` makes them fail so much more rarely.
    """
    name = "number included"
    if is_exact_half(included, count):
        statement = (
            f"exactly {included} of {count} canaries are included; the bounds hold even if that number was fixed"
        )
        return Assumption(name=name, statement=statement, state=_CHECKED)
    tail = float(bdtr(min(included, count - included), count, 0.5))
    return _state(
        name,
        2 * tail >= _RARE,
        f"{included} of {count} canaries are included, which fair coins give",
        f"{included} of {count} canaries are included, which fair coins give less than once in a million times",
    )


def is_exact_half(included: int, count: int) -> bool:
    """Whether exactly half are included, of so many canaries that fair coins rarely give this."""
    return count >= _FEWEST_SUSPECT and 2 * included == count


def share_of_failures(included: int, count: int) -> float:
    """The share of the failure probability that the bounds may use; below 1 only if exactly half are included.

    The theorems are on fair coins, and a draw of fixed size is fair coins on the condition that they include that many.
    So a bound that fails with probability b for fair coins fails with probability b / P(exactly half) at most for it.
    """
    return math.comb(count, included) / 2**count if is_exact_half(included, count) else 1.0


def _distinct(manifest: Manifest) -> Assumption:
    repeated = len(manifest.canaries) - len({canary.secret for canary in manifest.canaries})
    return _state(
        "distinct canaries",
        not repeated,
        "no two canaries share a secret",
        f"{counted(repeated, 'canary repeats', 'canaries repeat')} the secret of another, so that one secret hangs on "
        "two coins",
    )


def _training(manifest: Manifest, trained_on: Sequence[str] | None) -> Assumption:
    name = "trained on the planted data"
    if trained_on is None:
        statement = "the model was trained on the planted data, every copy a record of its own"
        return Assumption(name=name, statement=statement, state=_ASSERTED)
    return _state(
        name,
        manifest.planted.digest in trained_on,
        "the model's training report names the planted data, by digest",
        "the model's training report names other data than the planted ones",
    )


def _secrets(manifest: Manifest, path: Path) -> Assumption:
    """Whether every secret occurs exactly as often as it was planted, and so in no other record."""
    counts = Counter[str]()
    expected = {canary.secret: canary.copies if canary.included else 0 for canary in manifest.canaries}
    for block in blocks(record.text for record in read_records(path)):
        for secret in expected:
            counts[secret] += block.count(secret)
    miscounted = [secret for secret, copies in expected.items() if counts[secret] != copies]
    return _state(
        "secrets",
        not miscounted,
        "no secret occurs anywhere but in its own copies, and none of a canary that was left out",
        f"{counted(len(miscounted), 'secret occurs', 'secrets occur')} elsewhere in the data, or in another number "
        "than was planted",
    )
