"""An audit from the options of ``privctl audit``, by their names; the command and ``privctl.audit`` both call it."""

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
from audits.split.manifest import manifest_at, read_manifest
from audits.whole.log_entry import log_path
from audits.whole.options import flag_of
from audits.whole.request import AuditRequest
from privctl.data.columns import columns_of
from privctl.data.places import require_inputs
from privctl.domain.errors import CommandError
from privctl.models.precision import precision_named
from privctl.storage.atomic import require_absent, require_regular
from privctl.storage.reader import holds_adapter, missing_model, refuse_adapter_file

#: Option -> the option that it refines, without which it does not apply.
_BELONGS = {
    **dict.fromkeys(("commitment", "canary_data", "references", "exact"), "canaries"),
    **dict.fromkeys(("attacks", "thorough", "group_by", "shadow"), "members"),
    **dict.fromkeys(("heldout", "least_prefix", "top_k", "top_p", "greedy_only", "exact_only", "records"), "train"),
    **dict.fromkeys(("adversarial", "prompts", "divergence"), "train"),
    **dict.fromkeys(("adversarial_budget", "adversarial_tokens"), "adversarial"),
    **dict.fromkeys(("data", "plan", "candidates", "most_secrets", "beam"), "secrets"),
}


def _check(options: Mapping[str, Any]) -> None:
    """Raise CommandError for options that do not go together, or whose files are in the way."""
    for name, owner in _BELONGS.items():
        if options[name] not in (None, (), False) and options[owner] is None:
            raise CommandError(f"{flag_of(name)} needs {flag_of(owner)}; give both")
    if options["reference"] is not None and options["members"] is None and options["heldout"] is None:
        raise CommandError(
            "--reference says what is known from elsewhere in a comparison; give --members and --nonmembers, or "
            "--train and --heldout"
        )
    for name in ("claim", "delta"):
        if options[name] is not None and options["canaries"] is None and options["split"] is None:
            raise CommandError(f"{flag_of(name)} needs {flag_of('canaries')} or {flag_of('split')}; give one of them")
    if options["group_by"] is not None and options["split"] is not None and options["canaries"] is not None:
        raise CommandError(
            "a claim about a canary is one about a record, and --split tossed coins for groups; audit --canaries by "
            "itself"
        )
    if options["leaks"] is not None and options["members"] is None and options["train"] is None:
        raise CommandError("--leaks lists the records of --members and --train; give one of them")
    if options["no_cache"] and (options["keep_scores"] or options["cache"] is not None):
        raise CommandError("--no-cache contradicts --keep-scores and --cache; remove one")
    if options["greedy_only"] and (options["top_k"] is not None or options["top_p"] is not None):
        raise CommandError("--greedy-only does not sample; remove --top-k and --top-p")


def _check_untargeted(options: Mapping[str, Any]) -> None:
    """Raise CommandError for refinements of prompts from outside where there are none."""
    if options["prompts"] is None and not options["divergence"]:
        for name in ("continuations", "continuation_tokens", "sampling_seed"):
            if options[name] is not None:
                raise CommandError(f"{flag_of(name)} needs --prompts or --divergence; give one of them")
    if options["greedy_only"] and options["continuations"] is not None:
        raise CommandError("--greedy-only continues each prompt once; remove --continuations")


def request_of(model: Path, output: Path | None, options: Mapping[str, Any]) -> AuditRequest:
    """What the options of ``privctl audit``, all by their names, ask to do with ``model``.

    The report goes to ``output``, or beside the model; where ``log`` is None the log lies beside the model. Raises
    CommandError for options that do not go together and for files that are in the way.
    """
    options = _with_extraction_split(_with_split(options))
    _check(options)
    _check_untargeted(options)
    refuse_adapter_file(model)
    if options["base"] is not None and options["secrets"] is None and not holds_adapter(model):
        raise CommandError("--base needs --secrets, or an adapter as MODEL; give both, or remove it")
    if options["base_bits"] is not None and not holds_adapter(model):
        raise CommandError(
            "--base-bits holds the base of an adapter in fewer bits; give an adapter as MODEL, or remove it"
        )
    if options["base_bits"] not in (None, "4", 4):
        raise CommandError(f"--base-bits is {options['base_bits']}; it must be 4")
    if options["base_bits"] is not None and options["precision"] is not None:
        raise CommandError("--base-bits holds the base in 4 bits and computes in float32; remove --precision")
    report, scores = output_paths(model, output)
    request = AuditRequest(
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
    for path in (request.model, request.reference, request.base):
        if path is not None and not path.exists():
            raise missing_model(path)
    require_inputs(*request.files.values())
    for path in request.written:
        option = "--leaks" if path == request.leaks else "--output"
        require_regular(path, option=option)
        require_absent(path, request.force, option=option)
    return request


def _with_split(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the members and non-members of the split, if one is given."""
    split = options["split"]
    if split is None:
        return dict(options)
    if options["members"] is not None or options["nonmembers"] is not None:
        raise CommandError("--split brings the members and non-members; remove --members and --nonmembers")
    path = manifest_at(Path(split))
    manifest = read_manifest(path)
    sides = {name: path.with_name(file.name) for name, file in manifest.sides.items()}
    groups = options["group_by"]
    if groups is not None and manifest.group_by is None:
        raise CommandError(
            "--split tossed a coin for each record, so a group has records on both sides; remove --group-by, or draw a "
            f"split with --group-by {groups}"
        )
    if groups is not None and groups != manifest.group_by:
        raise CommandError(
            f"--split tossed a coin for each value of {manifest.group_by!r}, and --group-by names {groups!r}; remove it"
        )
    return {**options, **sides, "split": path, "group_by": manifest.group_by}


def _with_extraction_split(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the split's sides as training and held-out text, if one is given for extraction."""
    split = options["extraction_split"]
    if split is None:
        return dict(options)
    if options["train"] is not None or options["heldout"] is not None:
        raise CommandError("--split brings the training and held-out text; remove --train and --heldout")
    path = manifest_at(Path(split))
    if options["members"] is not None and options["split"] != path:
        raise CommandError("--extraction-split is of one split and --members of other records; give it as --split too")
    manifest = read_manifest(path)
    train, heldout = (path.with_name(file.name) for file in manifest.sides.values())
    return {**options, "train": train, "heldout": heldout, "extraction_split": path}


def _membership(options: Mapping[str, Any]) -> MembershipRequest | None:
    members, nonmembers = options["members"], options["nonmembers"]
    if members is None and nonmembers is None:
        return None
    if members is None or nonmembers is None:
        raise CommandError("a membership audit compares two files; give both --members and --nonmembers, or --split")
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
        heldout=options["heldout"],
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
    if options["data"] is None:
        raise CommandError("--secrets needs the records that hold the secrets; give --data too")
    sizes = {"candidates": options["candidates"], "most": options["most_secrets"], "beam": options["beam"]}
    return SecretRequest(
        secrets=options["secrets"],
        data=options["data"],
        plan=options["plan"],
        manifest=options["canaries"],
        commitment=options["commitment"],
        queries=QueryBudget(count=options["queries"], probability=options["query_probability"]),
        seed=options["seed"],
        **{name: value for name, value in sizes.items() if value is not None},
    )
