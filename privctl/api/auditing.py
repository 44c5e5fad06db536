"""``privctl.audit``: attack a model. The command calls ``audit_model``, ``score_shares`` and ``audit_many_models``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import (
    DataPaths,
    FilePath,
    accepting,
    as_tuple,
    check_numbers,
    claim_text,
    data_or_none,
    path_at,
    path_or_none,
)
from privctl.domain.errors import CommandError
from privctl.domain.leaking import LeakingRecord
from privctl.domain.progress import Notify, Progress, unseen
from privctl.domain.report import PrivacyReport

if TYPE_CHECKING:
    from audits.whole.request import AuditRequest
    from privctl.reports.audit_log import Entry

_FILES = (
    "log", "leaks", "split", "extraction_split", "shadow", "canaries", "canary_data", "secrets", "plan", "from_scores",
    "held_out_secrets", "cache", "reference", "base",
)  # fmt: skip
_DATA = ("members", "nonmembers", "train", "held_out", "prompts", "data", "held_out_data")


def audit_model(
    request: AuditRequest,
    *,
    progress: Progress,
    notify: Notify,
    on_records: Callable[[Sequence[LeakingRecord]], None] | None = None,
    on_entry: Callable[[Entry], None] | None = None,
) -> PrivacyReport | None:
    """Run the audit ``request`` in all processes that torchrun started.

    Returns the report in the main process and None in the others. Raises the errors of ``audit``.
    """
    from audits.whole.log_entry import is_logged
    from audits.whole.run import run_audit
    from privctl.accounting.ledger import epsilon_bound
    from privctl.accounting.profile import profile
    from privctl.models.language import choose_device
    from privctl.models.precision import why_slow
    from privctl.parallel import own_device, start_workers

    if request.log is not None and is_logged(request.log, request.report):
        notify(f"{request.report} is in {request.log}, and is replaced: a gate that asks for every audit will miss it")
    device = own_device(choose_device(request.device))
    if slow := why_slow(request.precision, device):
        notify(slow)
    request = replace(request, device=str(device))
    with start_workers(device, together=False) as workers:
        seen = progress if workers.is_main else unseen
        return run_audit(
            request, seen, workers, on_records=on_records, on_entry=on_entry, profile=profile, epsilon=epsilon_bound,
            notify=notify,
        )  # fmt: skip


def score_shares(
    model: Path, output: Path, options: Mapping[str, Any], progress: Progress = unseen, notify: Notify = lambda _: None
) -> tuple[Path, int]:
    """Score the records that the options of ``privctl audit score-records`` name, in all processes of torchrun.

    Returns the file that this process wrote, and the number of records in it. Raises InputError for a model or records
    that are missing, and the errors of ``audits.record_scores.scoring.score_records``.
    """
    from audits.record_scores.scoring import ScoringRequest, score_records
    from privctl.data.columns import columns_of
    from privctl.data.places import require_inputs
    from privctl.models.language import choose_device
    from privctl.models.precision import precision_named, why_slow
    from privctl.parallel import own_device, start_workers
    from privctl.storage.reader import missing_model

    names = ("members", "nonmembers", "thorough", "task", "max_length", "resize", "force")
    device, precision = own_device(choose_device(options["device"])), precision_named(options["precision"])
    if slow := why_slow(precision, device):
        notify(slow)
    request = ScoringRequest(
        model=model,
        output=output,
        attacks=tuple(dict.fromkeys(options["attacks"])),
        reference=path_or_none(options["reference"]),
        base=path_or_none(options["base"]),
        base_bits=None if options["base_bits"] is None else int(options["base_bits"]),
        precision=precision,
        columns=columns_of(options),
        device=str(device),
        **{name: options[name] for name in names},
    )
    for path in (request.model, request.reference, request.base):
        if path is not None and not path.exists():
            raise missing_model(path)
    require_inputs(request.members, request.nonmembers)
    with start_workers(device) as workers:
        return score_records(request, progress if workers.is_main else unseen, workers)


def audit_many_models(options: Mapping[str, Any], output: Path | None) -> tuple[PrivacyReport, Path]:
    """Audit the scores of many models, and return the report and where it was written.

    That is ``output``, or beside the scores. Raises the errors of ``audit``.
    """
    from audits.whole.options import OF_A_MODEL, flag_of, is_given
    from privctl.api.scoring import MANY_MODELS, report_on_scores

    given = [flag_of(name) for name in OF_A_MODEL if is_given(name, options[name])]
    if options["model"] is not None or given:
        word = given[0] if options["model"] is None else "MODEL"
        raise CommandError(f"--from-scores audits no model; remove {word}")
    return report_on_scores([options["from_scores"]], output, {**options, **MANY_MODELS})


@accepting(heldout="held_out", heldout_secrets="held_out_secrets", heldout_data="held_out_data")
def audit(
    model: FilePath | None = None,
    *,
    members: DataPaths | None = None,
    nonmembers: DataPaths | None = None,
    split: FilePath | None = None,
    output: FilePath | None = None,
    log: FilePath | None = None,
    leaks: FilePath | None = None,
    attacks: str | Sequence[str] = (),
    thorough: bool = False,
    reference: FilePath | None = None,
    task: str | None = None,
    shadow: FilePath | None = None,
    group_by: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    resize: tuple[int, int] | None = None,
    max_length: int | None = None,
    least_auc: float = 0.55,
    canaries: FilePath | None = None,
    commitment: str | None = None,
    canary_data: FilePath | None = None,
    references: int | None = None,
    exact: bool | None = None,
    train: DataPaths | None = None,
    held_out: DataPaths | None = None,
    extraction_split: FilePath | None = None,
    prefix_tokens: int | None = None,
    suffix_tokens: int | None = None,
    least_prefix: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    queries: int = 100,
    query_probability: float = 0.5,
    greedy_only: bool = False,
    exact_only: bool = False,
    adversarial: int | None = None,
    adversarial_budget: int | None = None,
    adversarial_tokens: int | None = None,
    prompts: DataPaths | None = None,
    divergence: bool = False,
    continuations: int | None = None,
    continuation_tokens: int | None = None,
    sampling_seed: int | None = None,
    records: int | None = None,
    secrets: FilePath | None = None,
    data: DataPaths | None = None,
    held_out_secrets: FilePath | None = None,
    held_out_data: DataPaths | None = None,
    plan: FilePath | None = None,
    base: FilePath | None = None,
    base_bits: int | str | None = None,
    candidates: int | None = None,
    beam: int | None = None,
    most_secrets: int | None = None,
    from_scores: FilePath | None = None,
    claim: str | tuple[float, float] | None = None,
    delta: float | None = None,
    seed: int = 0,
    keep_scores: bool = False,
    cache: FilePath | None = None,
    no_cache: bool = False,
    device: str | None = None,
    precision: str | None = None,
    force: bool = False,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
    on_records: Callable[[Sequence[LeakingRecord]], None] | None = None,
) -> PrivacyReport:
    """Attack ``model``, and return the report, which is written beside it (or to ``output``) with the scores.

    The files decide what is tested, as with the command:

    - membership: ``members`` and ``nonmembers``, or ``split``, the manifest of a split by ``privctl audit split``;
    - canaries: ``canaries``, their manifest;
    - extraction: ``train``, with ``held_out`` as the control, or ``extraction_split``, the manifest of a split;
    - secrets: ``secrets`` and ``data``, with ``held_out_secrets`` and ``held_out_data``, of other records, as control;
    - the scores of many models: ``from_scores`` instead of ``model``.

    ``thorough`` adds attacks that score records many times. ``group_by`` is the field of the groups to judge, such as
    users; by default it is the training's ``unit``, and ``"none"`` judges records. ``reference`` is a model trained on
    none of these records, such as the base before fine-tuning. Membership attacks compare with its scores, and text of
    ``train`` and ``held_out`` that it writes too is left out of the comparison. ``prompts`` and ``divergence`` generate
    text from other prompts, and look for ``train`` in it. ``claim`` is a pair (epsilon, delta). Lengths are in tokens.
    ``precision``, ``float32`` or ``bfloat16``, is that of all forward passes. The audit is entered into the log of
    audits beside the model, or at ``log``.

    ``on_records`` is called with the training records, those that leak most first. The report holds measurements of
    private records, which no guarantee covers: do not publish it. A refuted claim is a verdict in it, not an error.

    Raises CommandError for options that do not go together and for existing files, InputError for a model or records
    that cannot be scored.
    """
    options: dict[str, Any] = {**locals()}
    for name in ("progress", "notify", "on_records", "output"):
        del options[name]
    check_numbers("audit", options)
    options |= {name: path_or_none(options[name], name) for name in _FILES}
    options |= {name: data_or_none(options[name]) for name in _DATA}
    options["attacks"] = as_tuple(attacks)
    options["claim"] = claim_text(claim)
    if from_scores is not None:
        return audit_many_models(options, path_or_none(output))[0]
    if model is None:
        raise CommandError("there is nothing to audit; give a model, or from_scores")
    from audits.whole.refusals import checked_options

    place = path_or_none(output, "output")
    checked_options(path_at(model, "model"), place, options)  # before torch is imported

    from audits.whole.from_options import request_of

    request = request_of(path_at(model, "model"), place, options)
    report = audit_model(request, progress=progress, notify=notify, on_records=on_records)
    if report is None:
        raise CommandError("only the main process of torchrun has a report; call this in one process")
    return report
