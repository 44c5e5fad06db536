"""The parameters of an audit's report, as typed values; ``privctl.reports.parameters`` reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privctl.domain.events import Ledger
from privctl.domain.guarantee import Assumption

#: The assumption that scores which privctl did not compute are those of the model; a gate's policy accepts it by this
#: name.
SCORES_OF_MODEL = "scores of the model"

#: Entries of an audit's parameters that say how it measured, and that no other part reads.
OF_ATTACKS = (
    "seed", "nonmember_loss", "zlib", "bos", "hidden", "scored", "truncation", "shadow", "device", "canary_references",
    "canary_seed", "canary_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAudit:
    """What an audit was requested to do, as far as results could be missing from its report.

    ``files`` are the digests of the data by role, ``claims`` the epsilon and delta of each claim to judge, including
    those of the model's own report; ``curve`` says that the trade-off curve of its mechanism was to be judged, and
    ``noise`` that its noise was to be bounded. ``columns`` are the columns of scores; ``record_column`` and
    ``member_column`` are None if they are ``id`` and ``member``; ``text_column`` and ``label_column`` are None if the
    fields of records have the default names. ``beam`` is the width of a beam search for secrets, and ``secret_figures``
    name all figures on secrets as method, colon, quantity. ``reference`` says that text which a reference model also
    produces was not to count as extracted. ``precision`` is the format of forward passes, ``max_length`` the number of
    tokens kept of a record. ``logged`` says that the audit was recorded in a log.
    """

    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    attacks: tuple[str, ...] = ()
    thorough: bool = False
    least_auc: float | None = None
    claims: tuple[tuple[float, float], ...] = ()
    curve: bool = False
    noise: bool = False
    delta: float | None = None
    threshold: float | None = None
    columns: tuple[str, ...] = ()
    record_column: str | None = None
    member_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    group_by: str | None = None
    greedy_only: bool = False
    exact_only: bool = False
    adversarial: bool = False
    divergence: bool = False
    reference: bool = False
    beam: int | None = None
    secret_figures: tuple[str, ...] = ()
    precision: str | None = None
    max_length: int | None = None
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditParameters:
    """Parameters of ``privctl audit`` that other parts read; each attack adds entries of its own.

    ``asked`` is the request; a report without it does not pass. ``score_conditions`` are the assumptions of an audit of
    scores that privctl did not compute, if it is tied to a model. ``canary_steps`` is the assumption of a bound on the
    noise multiplier. ``extraction`` and ``secrets`` hold the settings of these attacks, such as ``prefix_tokens`` and
    ``candidates``. The first ``max_length`` tokens of each record were scored; ``cut`` is the number of longer records
    by side. ``resize`` is the height and width to which images were resized, None if they were not. ``base_bits`` are
    those of an adapter's base, None if it was loaded in full.
    """

    task: str | None = None
    attack: tuple[str, ...] = ()
    asked: AskedAudit | None = None
    extraction: Mapping[str, Any] | None = None
    secrets: Mapping[str, Any] | None = None
    confidence: float | None = None
    dtype: str | None = None
    base_bits: int | None = None
    least_auc: float | None = None
    claimed_epsilon: float | None = None
    claimed_delta: float | None = None
    split_commitment: str | None = None
    split_records: int | None = None
    split_groups: int | None = None
    group_by: str | None = None
    similar_names: int | None = None
    grouped_records: Mapping[str, int] | None = None
    max_length: int | None = None
    cut: Mapping[str, int] | None = None
    resize: tuple[int, ...] | None = None
    score_conditions: tuple[Assumption, ...] | None = None
    canary_delta: float | None = None
    canary_groups: int | None = None
    canary_exact_groups: int | None = None
    canary_commitment: str | None = None
    canary_conditions: tuple[Assumption, ...] | None = None
    canary_mechanism: Ledger | None = None
    canary_curve: tuple[tuple[float, float], ...] | None = None
    canary_steps: Assumption | None = None
