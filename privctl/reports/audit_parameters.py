"""What the parameters of an audit's report say; ``privctl.reports.parameters`` reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privctl.domain.events import Ledger
from privctl.domain.guarantee import Assumption

#: The assumption under which scores that privctl did not make say something of a model; a gate's policy accepts it by
#: this name.
SCORES_OF_MODEL = "scores of the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAudit:
    """What an audit was asked, as far as something could be left out of its report.

    ``files`` are the digests of the data by role, ``claims`` the epsilon and delta of each that was to be judged, those
    of the model's own report included; ``curve`` says that of its mechanism was, ``noise`` that its noise was to be
    bounded. ``columns`` are those of scores, ``record_column`` and ``member_column`` those beside them, None where they
    are ``id`` and ``member``; ``text_column`` and ``label_column`` the fields of records, None where they have the
    usual names.
    ``beam`` is the width of a beam search for secrets, and ``secret_figures`` name all that was measured of secrets:
    method, colon, quantity. ``reference`` says that what a reference model gives too was not to count as extracted.
    ``precision`` is the format of forward passes, ``max_length`` the tokens kept of a record. ``logged`` says that it
    was entered into a log.
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
    """Of ``privctl audit``, as far as other parts go by it: each attack adds entries of its own.

    ``asked`` is what it was asked; a report without it does not pass.
    ``score_conditions`` is what an audit of scores that privctl did not make rests on, where it is tied to a model.
    ``canary_steps`` is what a bound on the noise multiplier rests on.
    ``extraction`` holds the settings of that attack, such as ``prefix_tokens`` and ``suffix_tokens``.
    Of each record the first ``max_length`` tokens were scored; ``cut`` counts the records that are longer, by side.
    ``resize`` is the height and width that images were brought to, None where they were read as they are.
    """

    task: str | None = None
    attack: tuple[str, ...] = ()
    asked: AskedAudit | None = None
    extraction: Mapping[str, Any] | None = None
    confidence: float | None = None
    dtype: str | None = None
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
    canary_groups: int | None = None
    canary_exact_groups: int | None = None
    canary_commitment: str | None = None
    canary_conditions: tuple[Assumption, ...] | None = None
    canary_mechanism: Ledger | None = None
    canary_curve: tuple[tuple[float, float], ...] | None = None
    canary_steps: Assumption | None = None
