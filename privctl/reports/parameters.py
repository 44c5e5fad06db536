"""The parameters of reports as typed values: one class per kind of report.

The codec keeps ``parameters`` as JSON, whose entries depend on the step. Code that needs them reads them here into a
frozen value; nothing else accesses entries by name. An entry that older reports lack is None. What verify expects of
each training method is in ``verify.methods``; the classes of audits are in ``audit_parameters``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.codec import decode_value, encode_value

Parameters = TypeVar("Parameters")


class ParametersError(InputError):
    """The parameters of a report lack an entry, or hold one of the wrong type."""


def parameters_as(kind: type[Parameters], report: PrivacyReport) -> Parameters:
    """The parameters of ``report`` that are fields of ``kind``; ``unknown_entries`` names the others.

    Raises ParametersError if a field without a default is missing, or if an entry has the wrong type.
    """
    # Every class is hashable, but mypy does not know it of a type variable.
    parsed = _read_as(kind, _Identity(report.parameters), report.step)  # type: ignore[arg-type]
    assert isinstance(parsed, kind)
    return parsed


def readable(kind: type[Parameters], report: PrivacyReport) -> Parameters | None:
    """The parameters read as ``kind``; None if they are unreadable, which a check in ``verify.checks`` reports."""
    try:
        return parameters_as(kind, report)
    except ParametersError:
        return None


def unknown_entries(kind: type, report: PrivacyReport) -> list[str]:
    """The sorted names of the parameters of ``report`` that are not fields of ``kind``."""
    return sorted(report.parameters.keys() - _names(kind))


class _Identity:
    """Compares a mapping by identity: reports do not change, and comparing large ones is slower than reading them."""

    __slots__ = ("mapping",)

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self.mapping = mapping

    def __hash__(self) -> int:
        return id(self.mapping)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.mapping is self.mapping


@lru_cache(maxsize=32)
def _read_as(kind: type[object], given: _Identity, step: str) -> object:
    names = _names(kind)
    known = {name: encode_value(value) for name, value in given.mapping.items() if name in names}
    try:
        return decode_value(kind, known, f"the {step} report", "parameters")
    except InputError as fault:
        raise ParametersError(str(fault)) from None


def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionTest:
    """The test, before the first step, that no record affects the contribution of another.

    The largest batch had ``records`` records and ``tokens`` tokens including padding; texts were padded to
    ``padded_to`` tokens (None: to the longest). ``differences`` are those found, and ``allowed`` the limits, by stage,
    relative to the size of what was compared. Each of ``promoted`` is a ``module`` that was differentiated as a whole,
    with its ``class``, the reason (``because``) and how it is ``differentiated``; these modules took
    ``promoted_share`` of the time for gradients.
    """

    records: int
    tokens: int
    padded_to: int | None = None
    differences: Mapping[str, float]
    allowed: Mapping[str, float]
    promoted: tuple[Mapping[str, str | None], ...] = ()
    promoted_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPlan:
    """The plan of protection that a training run followed; ``digest`` is its file's, ``book`` that of its book."""

    digest: str
    book: str | None = None
    secrets: int | None = None
    secrets_checked: int | None = None
    form: str | None = None
    calibration: str | None = None
    cap: float | None = None
    kept_fraction: float | None = None
    records_never_drawn: int | None = None
    largest_probability: float | None = None
    expected_epochs: float | None = None
    steps: int | None = None
    batch_size: float | None = None
    noise_multiplier: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParameters:
    """Parameters of ``privctl retrain`` that the reports of all methods share.

    ``batch_size`` is the expected one, ``sample_rate`` the probability that a step samples an example. ``updates`` is
    the number of updates made, ``steps_begun`` that of steps begun, which all count as spent. ``text_column`` and
    ``label_column`` are fields of the data, None for the default names. At most ``max_length`` tokens of a text were
    read, or of each piece if ``long`` is ``split``; None in older reports and if nothing limits it. Images were resized
    to the height and width of ``resize``. ``history`` has the scores of each epoch by name. ``similar_names`` is the
    number of users whose name differs from another's only in spelling, None in older reports.
    """

    method: str | None = None
    steps: int | None = None
    batch_size: float | None = None
    sample_rate: float | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    schedule: str | None = None
    warmup_steps: int | None = None
    micro_tokens: int | None = None
    micro_examples: int | None = None
    bf16: bool | None = None
    task: str | None = None
    clipping: str | None = None
    clipping_passes: int | None = None
    examples: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    data: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    max_length: int | None = None
    long: str | None = None
    resize: tuple[int, ...] | None = None
    unit: str | None = None
    similar_names: int | None = None
    max_records_per_user: int | None = None
    records_per_draw: int | None = None
    shared_records: str | None = None
    initial_weights: str | None = None
    initial_seed: int | None = None
    trained: tuple[str, ...] | None = None
    lora_rank: int | None = None
    adapter: bool | None = None
    base_bits: int | None = None
    fsdp: bool | None = None
    fresh_tensors: tuple[str, ...] = ()
    frozen_norm_layers: int | None = None
    converted: str | None = None
    collected_from_data: tuple[str, ...] | None = None
    updates: int | None = None
    steps_begun: int | None = None
    released_numbers: int | None = None
    noise_source: str | None = None
    contribution_test: ContributionTest | None = None
    history: tuple[Mapping[str, float], ...] = ()
    secrets: str | None = None
    plan: FollowedPlan | None = None
    gradient_canaries: int | None = None
    gradient_canaries_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesWithoutNoise:
    """What records taken for public chose in a training: the best run of a ``search``, or which layers to quantize.

    ``measured_public_digest`` is the digest of the records that layers were measured on.
    """

    search: Mapping[str, Any] | None = None
    measured_public_digest: str | None = None


def chosen_by_search(report: PrivacyReport) -> dict[str, Any]:
    """The values, by option, of the run that a search released; empty without a search.

    The settings of a search are a text such as ``learning-rate=1e-3,1e-2 clip-norm=1,2``.
    """
    search = (readable(ChoicesWithoutNoise, report) or ChoicesWithoutNoise()).search or {}
    names = [each.partition("=")[0] for each in str(search.get("settings", "")).split() if "=" in each]
    values = {name: report.parameters.get(name.replace("-", "_")) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTrainingParameters:
    """Parameters of training in a loop that is not privctl's; ``program`` is what wrote the report.

    ``batch_size`` is the expected one. ``steps_begun`` counts as spent; ``updates`` is the number of updates made.
    ``accountant_history`` is Opacus's: noise multiplier, sampling rate and steps of each entry. ``clip_norms`` are the
    successive values of an adaptive clip norm. ``unit`` is the term for a user if all ``records`` of one were an
    example; ``similar_names`` and ``records_per_draw`` are as in ``TrainingParameters``.
    """

    program: str
    examples: int | None = None
    unit: str | None = None
    records: int | None = None
    similar_names: int | None = None
    records_per_draw: int | None = None
    batch_size: float | None = None
    sample_rate: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float | None = None
    clipping: str | None = None
    delta: float | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    steps_begun: int | None = None
    updates: int | None = None
    released_numbers: int | None = None
    noise_source: str | None = None
    accountant_history: tuple[tuple[float, float, int], ...] = ()
    target_unclipped_quantile: float | None = None
    clip_norm_learning_rate: float | None = None
    unclipped_count_stddev: float | None = None
    sum_noise_multiplier: float | None = None
    clip_norms: tuple[float, ...] | None = None
    measured_members: int | None = None
    measured_nonmembers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitParameters:
    """The field whose records are one example together, in the report of any training; None: a record is one."""

    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseParameters:
    """Parameters of ``privctl noise``; ``tensors_untouched`` maps each tensor without noise to the reason."""

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    collected_from_data: tuple[str, ...] | None = None
    epsilon: float | None = None
    delta: float | None = None
    calibration: str | None = None
    tensors_noised: int | None = None
    tensors_untouched: Mapping[str, str] | None = None
    tensors_tied: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMethod:
    """One accountant of a privacy plan."""

    title: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetParameters:
    """Parameters of ``privctl account``: the given options; ``found`` is the answer.

    ``ledgers`` are the files where there were several. Options of a single kind of event are in its row of
    ``verify.events``.
    """

    mechanism: str | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    sample_rate: float | None = None
    steps: int | None = None
    dataset_size: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    batches: str | None = None
    posterior: float | None = None
    priors: tuple[float, ...] | None = None
    ledger: str | None = None
    ledgers: tuple[str, ...] | None = None
    no_peers: bool | None = None
    methods: Mapping[str, PlannedMethod] | None = None
    rely_on: str | None = None
    found: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCap:
    """A cap (None: no cap) that a plan of protection tried, and the noise that sufficed."""

    cap: float | None
    kept: float
    noise_multiplier: float
    held_out: int | None = None
    whole: int | None = None
    largest_probability: float | None = None
    fano_noise_multiplier: float | None = None
    solver: str | None = None
    gap: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionParameters:
    """Parameters of ``privctl secrets plan``; ``targets`` are (prior, posterior) of each kind that has its own."""

    steps: int | None = None
    batch_size: float | None = None
    delta: float | None = None
    form: str | None = None
    calibration: str | None = None
    dataset_size: int | None = None
    secrets: int | None = None
    secrets_in_no_record: int | None = None
    memberships: int | None = None
    records_with_a_secret: int | None = None
    largest_secret: int | None = None
    kinds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    default_prior: float | None = None
    default_posterior: float | None = None
    targets: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    caps: tuple[TriedCap, ...] = ()

    def __post_init__(self) -> None:
        for kind, target in self.targets.items():
            if len(target) != 2:
                raise ValueError(f"targets of {kind!r} are {len(target)} numbers; expected a prior and a posterior")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKind:
    """How many secrets of one kind a scan found, in how many records."""

    secrets: int
    records: int
    memberships: int
    most_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanParameters:
    """Parameters of ``privctl secrets scan``; ``text_column`` is the field of the texts, None for the default."""

    dataset_size: int
    found: Mapping[str, FoundKind]
    text_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowParameters:
    """Parameters of ``privctl shadow``: ``count`` models, each trained on half of the ``records``."""

    count: int
    records: int
