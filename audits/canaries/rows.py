"""Canaries and their references as rows of token ids.

The complete text is tokenized, including the words around the secret, as in training. A token belongs to the secret if
any of its characters does, so one that spans the secret's edge counts. Rows end with the secret's last token. Secrets
are compared only with others of the same number of tokens after the same preceding tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.canaries.cuts import can_be_cut, cuts_around
from audits.canaries.manifest import Manifest
from audits.scores.rows import begins_with_bos, encode, length_limit
from privctl.domain.errors import InputError
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Default numbers of references: in total over all groups, and the minimum and maximum per group.
_TOTAL, _FEWEST, _MOST = 20_000, 63, 4095
#: The maximum number of candidates per reference: some have another number of tokens.
_TRIES = 8
_AT_ONCE = 4096

#: A class of comparable secrets: the tokens before them, and their number of tokens.
Class = tuple[bytes, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """A text up to its secret's end; the tokens from ``start`` on are the secret's."""

    ids: NDArray[np.int64]
    start: int

    @property
    def kind(self) -> Class:
        """The class of comparable rows."""
        return self.ids[: self.start].tobytes(), len(self.ids) - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryGroup:
    """Canaries of one format after one prefix, by index in the manifest."""

    format: int
    prefix: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRows:
    """The rows to score: one per canary, None for one that cannot be scored, and the references by class.

    ``groups`` are in the manifest's order. ``unscored`` maps canary indices to reasons.
    """

    rows: tuple[SecretRow | None, ...]
    groups: tuple[CanaryGroup, ...]
    references: Mapping[tuple[int, Class], tuple[SecretRow, ...]]
    unscored: Mapping[int, str]


def groups_of(manifest: Manifest) -> tuple[CanaryGroup, ...]:
    """Groups of canaries that may share references."""
    members_by_group: dict[tuple[int, str], list[int]] = {}
    for i, canary in enumerate(manifest.canaries):
        members_by_group.setdefault((canary.format, canary.prefix), []).append(i)
    return tuple(CanaryGroup(format=f, prefix=p, members=tuple(places)) for (f, p), places in members_by_group.items())


def references_per_group(groups: int, requested: int | None) -> int:
    """The number of references per group: as requested, otherwise 63 to 4095, about 20,000 in all."""
    return requested if requested is not None else min(_MOST, max(_FEWEST, _TOTAL // groups))


def canary_rows(model: LanguageModel, manifest: Manifest) -> tuple[list[SecretRow | None], dict[int, str]]:
    """A row for each canary, and the reasons for missing ones, by index.

    Raises InputError if the tokenizer does not map tokens to characters, or gives ids unknown to the model.
    """
    encode(model, [manifest.text(canary) for canary in manifest.canaries])  # raises for ids that the model lacks
    rows: list[SecretRow | None] = []
    unscored: dict[int, str] = {}
    limit = length_limit(model, None)
    for i, canary in enumerate(manifest.canaries):
        after = manifest.formats[canary.format].after
        (row,) = secret_rows(model, canary.prefix, [canary.secret], after)
        reason = _unscorable_reason(row, limit) or _unreadable_reason(model, row)
        if reason:
            unscored[i] = reason
        rows.append(None if reason else row)
    for i in _indistinguishable(manifest, rows):
        rows[i], unscored[i] = None, "whose secret the tokenizer does not tell from another's"
    return rows, unscored


def draw_references(
    model: LanguageModel, manifest: Manifest, groups: Sequence[CanaryGroup], rows: Sequence[SecretRow | None],
    per_group: int, seed: int,
) -> dict[tuple[int, Class], tuple[SecretRow, ...]]:  # fmt: skip
    """About ``per_group`` distinct fresh secrets for each of ``groups``, none of them a canary's.

    The classes of a group share them, but each gets 63 if that many were requested; a rare class may get fewer. The
    draws depend only on ``seed`` and the group.
    """
    planted = {canary.secret for canary in manifest.canaries}
    references: dict[tuple[int, Class], tuple[SecretRow, ...]] = {}
    for g, group in enumerate(groups):
        form = manifest.formats[group.format]
        kinds = {row.kind for i in group.members if (row := rows[i]) is not None}
        rows_by_class: dict[Class, list[SecretRow]] = {kind: [] for kind in sorted(kinds)}
        share = max(min(per_group, _FEWEST), per_group // max(1, len(kinds)))
        source = random.Random(f"privctl references {seed} {g}")  # noqa: S311 (nothing secret)
        used = set(planted)
        tries = _TRIES * per_group
        while tries > 0 and any(len(rows_by_class[kind]) < share for kind in kinds):
            size = min(tries, max(per_group, 64), _AT_ONCE)
            fresh = [s for s in dict.fromkeys(form.draw(source) for _ in range(size)) if s not in used]
            used |= set(fresh)
            tries -= size
            for row in secret_rows(model, group.prefix, fresh, form.after):
                if row.kind in kinds and len(rows_by_class[row.kind]) < share:
                    rows_by_class[row.kind].append(row)
        references |= {(group.format, kind): tuple(class_rows) for kind, class_rows in rows_by_class.items()}
    return references


def secret_rows(model: LanguageModel, prefix: str, secrets: Sequence[str], after: str) -> list[SecretRow]:
    """Each secret between ``prefix`` and ``after``, as a row that ends with it.

    Raises InputError if the tokenizer does not map tokens to characters.
    """
    front = [model.tokenizer.bos_token_id] if begins_with_bos(model) else []
    return [
        SecretRow(ids=np.array(front + ids[:last], dtype=np.int64), start=len(front) + first)
        for ids, first, last in locate_secrets(model, prefix, secrets, after)
    ]


def locate_secrets(
    model: LanguageModel, prefix: str, secrets: Sequence[str], after: str
) -> Iterator[tuple[list[int], int, int]]:
    """The ids of each secret between ``prefix`` and ``after``, without special tokens, and the secret's token range.

    The range is half-open. Where the tokenizer allows it, only the words around the secret are tokenised for each.
    Raises InputError as ``secret_rows`` does.
    """
    if not model.tokenizer.is_fast:
        raise InputError(
            f"{model.folder} has a tokenizer that does not tell which characters its tokens stand for, so that secrets "
            "cannot be found among them; give the model's tokenizer.json"
        )
    front, back = cuts_around(prefix, after) if can_be_cut(model.tokenizer) else (0, len(after))
    left, right = prefix[front:], after[:back]
    for begin in range(0, len(secrets), _AT_ONCE):
        some_secrets = secrets[begin : begin + _AT_ONCE]
        texts = [prefix[:front], after[back:], *(left + secret + right for secret in some_secrets)]
        with quiet_transformers():
            encoded = model.tokenizer(
                texts, add_special_tokens=False, return_attention_mask=False, return_offsets_mapping=True
            )
        (head, tail, *middles), spans_of_texts = encoded["input_ids"], encoded["offset_mapping"][2:]
        for secret, ids, spans in zip(some_secrets, middles, spans_of_texts, strict=True):
            first, last = _span(spans, len(left), len(left) + len(secret))
            shift = len(head) if last else 0
            yield head + ids + tail, first + shift, last + shift


def _span(spans: Sequence[tuple[int, int]], begin: int, end: int) -> tuple[int, int]:
    """The half-open range of tokens that contain a character from ``begin`` to ``end``; empty if none does."""
    touching = [i for i, (a, b) in enumerate(spans) if a < end and b > begin]
    return (touching[0], touching[-1] + 1) if touching else (0, 0)


def _unscorable_reason(row: SecretRow, limit: int) -> str:
    if len(row.ids) == row.start:
        return "whose secret the tokenizer leaves no token of"
    if row.start == 0:
        return "whose secret has no token before it, from which the first could be predicted"
    if len(row.ids) > limit:
        return f"longer than the {limit} tokens that the model reads"
    return ""


def _unreadable_reason(model: LanguageModel, row: SecretRow) -> str:
    """Why the model cannot read a secret: it contains the tokenizer's unknown token."""
    unknown = model.tokenizer.unk_token_id
    if unknown is None or not (row.ids[row.start :] == unknown).any():
        return ""
    return "whose secret holds what the tokenizer does not know"


def _indistinguishable(manifest: Manifest, rows: Sequence[SecretRow | None]) -> list[int]:
    """The canaries, by index, that have the same tokens as another one with a different secret."""
    sharing: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows):
        if row is not None:
            sharing.setdefault(row.ids.tobytes(), []).append(i)
    return [
        i
        for places in sharing.values()
        if len({manifest.canaries[place].secret for place in places}) > 1
        for i in places
    ]


def secret_sums(values: NDArray[Any], rows: Sequence[SecretRow]) -> NDArray[np.float64]:
    """The sum of ``values`` [scores of all rows, concatenated] over each row's secret, in double precision."""
    counts = np.array([len(row.ids) - 1 for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)
    starts = ends - counts + np.array([row.start - 1 for row in rows], dtype=np.int64)
    # Every other segment is a secret. Differences of cumulative sums would add rounding errors.
    edges = np.stack([starts, ends], axis=1).reshape(-1)
    padded = np.append(values.astype(np.float64), 0.0)
    return np.asarray(np.add.reduceat(padded, edges)[::2], dtype=np.float64)
