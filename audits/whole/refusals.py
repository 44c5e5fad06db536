"""Checks of the options of ``privctl audit`` that need no torch, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audits import ATTACKS, FUSED, THOROUGH
from audits.claims import claim_of
from audits.places import output_paths
from audits.split.manifest import manifest_at, read_manifest
from audits.whole.options import flag_of, is_given
from privctl.data.places import require_inputs
from privctl.data.several import real_paths
from privctl.domain.errors import CommandError
from privctl.models.choices import TASKS
from privctl.reports.files import REPORT_SUFFIX, require_not_weights_or_report
from privctl.storage.atomic import require_absent, require_regular
from privctl.storage.reader import holds_adapter, missing_model, refuse_adapter_file

#: Option -> the option that it refines and requires.
_BELONGS = {
    **dict.fromkeys(("commitment", "canary_data", "references", "exact"), "canaries"),
    **dict.fromkeys(("attacks", "thorough", "group_by", "shadow", "least_auc"), "members"),
    **dict.fromkeys(("prefix_tokens", "suffix_tokens", "temperature"), "train"),
    **dict.fromkeys(("held_out", "least_prefix", "top_k", "top_p", "greedy_only", "exact_only", "records"), "train"),
    **dict.fromkeys(("adversarial", "prompts", "divergence"), "train"),
    **dict.fromkeys(("adversarial_budget", "adversarial_tokens"), "adversarial"),
    **dict.fromkeys(("data", "held_out_secrets", "plan", "candidates", "most_secrets", "beam"), "secrets"),
    "held_out_data": "held_out_secrets",
}
#: Options that name input files.
_READ = (
    "members", "nonmembers", "split", "canaries", "canary_data", "train", "held_out", "extraction_split", "prompts",
    "secrets", "data", "held_out_secrets", "held_out_data", "plan",
)  # fmt: skip


def checked_options(model: Path, output: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` by name, completed with the files of a split.

    Raises CommandError for options that do not go together and for files that are in the way, InputError for missing
    inputs.
    """
    options = _with_held_out_data(_with_extraction_split(_with_split(options)))
    _check_names(options)
    _check(options)
    _check_sampling(options)
    _check_untargeted(options)
    claim_of(options["claim"])
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
    if model.name.endswith(REPORT_SUFFIX) and model.is_file():
        raise CommandError(f"{model} is a report; give the model that it describes")
    for path in (model, *(Path(options[name]) for name in ("reference", "base") if options[name] is not None)):
        if not path.exists():
            raise missing_model(path)
    require_inputs(*(options[name] for name in _READ))
    _check_texts(options)
    require_not_weights_or_report(output_paths(model, output)[0], but="audit")
    for path in output_paths(model, output):
        _require_free(path, options["force"], "--output")
    if options["leaks"] is not None:
        _require_free(options["leaks"], options["force"], "--leaks")
        require_not_weights_or_report(options["leaks"])
    return options


def _require_free(path: Path, force: bool, option: str) -> None:
    require_regular(path, option=option)
    require_absent(path, force, option=option)


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise CommandError for a task or an attack that does not exist."""
    names = [*ATTACKS, *THOROUGH, FUSED]
    if options["task"] is not None and options["task"] not in TASKS:
        raise CommandError(f"--task is {options['task']!r}; it must be one of {', '.join(TASKS)}")
    for attack in options["attacks"] or ():
        if attack not in names:
            raise CommandError(f"--attack is {attack!r}; it must be one of {', '.join(names)}")


def _check(options: Mapping[str, Any]) -> None:
    """Raise CommandError for options that do not go together, or whose files are in the way."""
    for name, owner in _BELONGS.items():
        if is_given(name, options[name]) and options[owner] is None:
            raise CommandError(f"{flag_of(name)} needs {flag_of(owner)}; give both")
    if options["reference"] is not None and options["members"] is None and options["held_out"] is None:
        raise CommandError(
            "--reference says what is known from elsewhere in a comparison; give --members and --nonmembers, or "
            "--train and --held-out"
        )
    _check_pairs(options)
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


def _check_sampling(options: Mapping[str, Any]) -> None:
    """Raise CommandError for options of what is not drawn."""
    for name in ("queries", "query_probability"):
        if is_given(name, options[name]) and options["train"] is None and options["secrets"] is None:
            raise CommandError(f"{flag_of(name)} needs --train or --secrets; give one of them")
    if options["exact"] and options["references"] is not None:
        raise CommandError("--exact ranks among all possible secrets, and --references among random ones; remove one")
    sampling = ["top_k", "top_p", "temperature"]
    sampling += ["queries", "query_probability"] if options["secrets"] is None else []
    if options["greedy_only"] and (unused := [flag_of(name) for name in sampling if is_given(name, options[name])]):
        raise CommandError(f"--greedy-only does not sample; remove {' and '.join(unused)}")


def _check_pairs(options: Mapping[str, Any]) -> None:
    """Raise CommandError for a file without its counterpart."""
    if (options["members"] is None) != (options["nonmembers"] is None):
        raise CommandError("a membership audit compares two files; give both --members and --nonmembers, or --split")
    if options["secrets"] is not None and options["data"] is None:
        raise CommandError("--secrets needs the records that hold the secrets; give --data too")


def _check_untargeted(options: Mapping[str, Any]) -> None:
    """Raise CommandError for options of prompts from outside if there are none."""
    if options["prompts"] is None and not options["divergence"]:
        for name in ("continuations", "continuation_tokens", "sampling_seed"):
            if options[name] is not None:
                raise CommandError(f"{flag_of(name)} needs --prompts or --divergence; give one of them")
    for given, sentence in (
        (options["adversarial"] is not None, "--adversarial needs --held-out: a prefix can be found for text that "
         "nobody trained on too"),
        (options["prompts"] is not None or options["divergence"], "--prompts and --divergence need --held-out: what "
         "everybody writes comes out of any model"),
    ):  # fmt: skip
        if given and options["held_out"] is None:
            raise CommandError(sentence)
    if options["greedy_only"] and options["continuations"] is not None:
        raise CommandError("--greedy-only continues each prompt once; remove --continuations")


def _check_texts(options: Mapping[str, Any]) -> None:
    """Raise CommandError for lengths and files of an extraction that do not fit any model."""
    train, held_out = options["train"], options["held_out"]
    if train is None:
        return
    if held_out is not None and real_paths(train) == real_paths(held_out):
        raise CommandError(f"--train and --held-out are the same file, {train}; give text it never saw")
    prefix, least = options["prefix_tokens"], options["least_prefix"]
    if prefix is not None and least is not None and least > prefix > 0:
        raise CommandError(f"--least-prefix is {least}, more than --prefix-tokens {prefix}; give at most that")


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
    if options["train"] is not None or options["held_out"] is not None:
        raise CommandError("--split brings the training and held-out text; remove --train and --held-out")
    path = manifest_at(Path(split))
    if options["members"] is not None and options["split"] != path:
        raise CommandError("--extraction-split is of one split and --members of other records; give it as --split too")
    manifest = read_manifest(path)
    train, held_out = (path.with_name(file.name) for file in manifest.sides.values())
    return {**options, "train": train, "held_out": held_out, "extraction_split": path}


def _with_held_out_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the records of ``--held-out-secrets``, by default the non-members or held-out text."""
    if options["held_out_secrets"] is None or options["held_out_data"] is not None:
        return dict(options)
    given = next((options[name] for name in ("nonmembers", "held_out") if options[name] is not None), None)
    if given is None:
        raise CommandError("--held-out-secrets needs the records that hold these secrets; give --held-out-data too")
    return {**options, "held_out_data": given}
