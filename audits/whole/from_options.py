"""Makes the request for an audit from the options of ``privctl audit``, for the command and ``privctl.audit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audits.canaries.audit import CanaryRequest
from audits.claims import claim_of
from audits.extraction.adversarial import Adversary
from audits.extraction.law import SamplingLaw
from audits.extraction.request import ExtractionRequest
from audits.extraction.summary import QueryBudget
from audits.extraction.untargeted import UntargetedRequest
from audits.membership.request import MembershipRequest
from audits.places import output_paths
from audits.scores.cache import default_root
from audits.secrets.audit import SecretRequest
from audits.secrets.heldout import ControlBook
from audits.whole.log_entry import log_path
from audits.whole.refusals import checked_options
from audits.whole.request import AuditRequest
from privctl.data.columns import columns_of
from privctl.models.precision import precision_named


def request_of(model: Path, output: Path | None, options: Mapping[str, Any]) -> AuditRequest:
    """The request that the options of ``privctl audit``, keyed by name, make for ``model``.

    The report goes to ``output``, by default beside the model, as does the log if ``log`` is None. Raises CommandError
    for options that do not go together and for files that are in the way.
    """
    options = checked_options(model, output, options)
    report, scores = output_paths(model, output)
    return AuditRequest(
        model=model,
        report=report,
        scores=scores,
        membership=_membership(options),
        canaries=_canaries(options),
        extraction=_extraction(options),
        secrets=_secrets(options),
        claim=claim_of(options["claim"]),
        task=options["task"],
        max_length=options["max_length"],
        resize=options["resize"],
        columns=columns_of(options),
        reference=None if options["reference"] is None else Path(options["reference"]),
        base=None if options["base"] is None else Path(options["base"]),
        base_bits=None if options["base_bits"] is None else int(options["base_bits"]),
        precision=precision_named(options["precision"]),
        cache=options["cache"] or (default_root() if options["keep_scores"] else None),
        device=options["device"],
        force=options["force"],
        log=log_path(output_paths(model, None)[0], options["log"]),
        leaks=options["leaks"],
    )


def _membership(options: Mapping[str, Any]) -> MembershipRequest | None:
    members, nonmembers = options["members"], options["nonmembers"]
    if members is None or nonmembers is None:
        return None
    return MembershipRequest(
        members=members,
        nonmembers=nonmembers,
        split=options["split"],
        attacks=tuple(dict.fromkeys(options["attacks"])),
        thorough=bool(options["thorough"]),
        shadow=options["shadow"],
        group_by=options["group_by"],
        seed=options["seed"],
        least_auc=options["least_auc"],
        explain=options["leaks"] is not None,
        delta=options["delta"],
    )


def _canaries(options: Mapping[str, Any]) -> CanaryRequest | None:
    if options["canaries"] is None:
        return None
    claim = claim_of(options["claim"])
    delta = options["delta"] if options["delta"] is not None or claim is None else claim.delta
    return CanaryRequest(
        manifest=options["canaries"],
        references=options["references"],
        exact=options["exact"],
        delta=delta,
        commitment=options["commitment"],
        planted=options["canary_data"],
        seed=options["seed"],
    )


def _extraction(options: Mapping[str, Any]) -> ExtractionRequest | None:
    if options["train"] is None:
        return None
    return ExtractionRequest(
        train=options["train"],
        heldout=options["held_out"],
        split=options["extraction_split"],
        prefix_tokens=options["prefix_tokens"],
        suffix_tokens=options["suffix_tokens"],
        least_prefix=options["least_prefix"],
        law=SamplingLaw(temperature=options["temperature"], top_k=options["top_k"], top_p=options["top_p"]),
        queries=QueryBudget(count=options["queries"], probability=options["query_probability"]),
        greedy_only=options["greedy_only"],
        exact_only=options["exact_only"],
        adversary=_adversary(options),
        untargeted=_untargeted(options),
        records=options["records"],
        seed=options["seed"],
    )


def _adversary(options: Mapping[str, Any]) -> Adversary | None:
    if options["adversarial"] is None:
        return None
    budget = {} if options["adversarial_budget"] is None else {"budget": options["adversarial_budget"]}
    return Adversary(texts=options["adversarial"], tokens=options["adversarial_tokens"], **budget)


def _untargeted(options: Mapping[str, Any]) -> UntargetedRequest | None:
    if options["prompts"] is None and not options["divergence"]:
        return None
    count = {} if options["continuations"] is None else {"continuations": options["continuations"]}
    return UntargetedRequest(
        prompts=options["prompts"],
        divergence=bool(options["divergence"]),
        tokens=options["continuation_tokens"],
        seed=options["sampling_seed"],
        **count,
    )


def _secrets(options: Mapping[str, Any]) -> SecretRequest | None:
    if options["secrets"] is None:
        return None
    sizes = {"candidates": options["candidates"], "most": options["most_secrets"], "beam": options["beam"]}
    return SecretRequest(
        secrets=options["secrets"],
        data=options["data"],
        held_out=_held_out(options),
        plan=options["plan"],
        manifest=options["canaries"],
        commitment=options["commitment"],
        queries=QueryBudget(count=options["queries"], probability=options["query_probability"]),
        seed=options["seed"],
        **{name: value for name, value in sizes.items() if value is not None},
    )


def _held_out(options: Mapping[str, Any]) -> ControlBook | None:
    if options["held_out_secrets"] is None:
        return None
    return ControlBook(book=options["held_out_secrets"], data=options["held_out_data"])
