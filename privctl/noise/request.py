"""Releases from the options of ``privctl noise``; used by the command and by the function ``privctl.noise``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privctl.data.recorded import recorded_files
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import Calibration, Formula, Regime
from privctl.noise.candidates import NoiseRelease, noise_premises
from privctl.noise.dp_weights import Premises, PrivacyTarget, default_delta
from privctl.noise.facts import (
    REQUIRED,
    TRAINING_ROUNDING,
    FactSource,
    collected_names,
    from_file,
    from_flags,
    from_report,
    training_facts,
)
from privctl.noise.own_report import describes, own_report, require_bounded, require_untrained
from privctl.noise.placement import companions
from privctl.noise.public_base import reports_of_base, require_public
from privctl.noise.selection import select
from privctl.reports.files import FoundReport, pointer_of
from privctl.storage.reader import Checkpoint

#: Another name for ``Calibration.DP_WEIGHTS``.
PUBLISHED = "published"


def release_of(checkpoint: Checkpoint, base: Checkpoint | None, options: Mapping[str, Any]) -> NoiseRelease:
    """The release of ``checkpoint`` that the options of ``privctl noise`` ask for, all given by name.

    ``base`` is the public base model, or an adapter's. Raises CommandError for contradictory options and missing facts,
    InputError for models and reports that rule a release out.
    """
    return (_for_stddevs if options["noise_stddev"] else _for_targets)(checkpoint, base, options)


def _for_targets(checkpoint: Checkpoint, base: Checkpoint | None, options: Mapping[str, Any]) -> NoiseRelease:
    files = {"facts": options["facts"] and Path(options["facts"]), "evaluation": options["evaluate"]}
    inputs: dict[str, DataPath] = {role: path for role, path in files.items() if path}
    before = {role: recorded_files(path) for role, path in inputs.items()}
    model_report = own_report(checkpoint)
    require_bounded(model_report, checkpoint, facts=any(options[name] is not None for name in ("facts", *REQUIRED)))
    base_reports = reports_of_base(base)
    require_public(base, base_reports, model_report, checkpoint)
    reported = from_report(model_report.path, model_report.report) if model_report else None
    from_facts = from_file(Path(options["facts"])) if options["facts"] else None
    sources = [source for source in (reported, from_facts, from_flags(options)) if source is not None]
    training, trust = training_facts(sources, str(checkpoint.root))
    delta = _delta(options, sources, default_delta(training.dataset_size))
    selection = select(
        checkpoint, include=options["include"], exclude=options["exclude"], base=_given_base(base, options)
    )
    require_untrained(model_report, checkpoint, selection.left_out)
    try:
        targets = tuple(target_of(epsilon, delta, options) for epsilon in options["epsilon"] or (1.0,))
    except ValueError as error:
        raise CommandError(f"{error}; give another --{str(error).split()[0]}") from None
    collected = collected_names(model_report.report) if model_report else ()
    inputs |= {f"base-{file.path.name}": file.path for file in base.files} if base else {}
    assumptions = (trust, TRAINING_ROUNDING, noise_premises(options["seed"]), *collected, *selection.assumptions)
    return NoiseRelease(
        checkpoint=checkpoint,
        training=training,
        selection=selection,
        premises=Premises(assumptions=assumptions),
        targets=targets,
        model_report=model_report if reported is not None or _is_own(model_report, checkpoint) else None,
        base_reports=base_reports,
        inputs=inputs,
        before=before,
        parameters={
            "include": list(options["include"]),
            "exclude": list(options["exclude"]),
        },
        collected=tuple(assumption.name for assumption in collected),
        seed=options["seed"],
        companions=companions(checkpoint),
    )


def _is_own(model_report: FoundReport | None, checkpoint: Checkpoint) -> bool:
    """Whether a report without facts describes these weights, so that it becomes a parent of the new report."""
    compared = pointer_of(checkpoint) is None  # ``own_report`` compares a report that no pointer names
    return model_report is not None and (compared or describes(model_report.report, checkpoint))


def _given_base(base: Checkpoint | None, options: Mapping[str, Any]) -> Checkpoint | None:
    """The ``base`` whose equal weights get no noise: only one given by the user, not one that an adapter names."""
    return base if options["base"] else None


#: Options about facts and targets, which do not apply to noise of a given size.
_TARGET_OPTIONS = (
    "epsilon", "delta", "facts", "epochs", "learning_rate", "clip_norm", "dataset_size", "batch_size", "steps",
    "optimizer", "momentum", "beta1", "beta2", "weight_decay", "smoothness", "strong_convexity", "calibration",
    "formula", "regime", "adjacency",
)  # fmt: skip


def _for_stddevs(checkpoint: Checkpoint, base: Checkpoint | None, options: Mapping[str, Any]) -> NoiseRelease:
    """A release with given standard deviations and no claim; raises CommandError for options that do not apply."""
    ignored = [f"--{name.replace('_', '-')}" for name in _TARGET_OPTIONS if options[name] not in (None, ())]
    if ignored:
        raise CommandError(
            f"--noise-stddev adds noise of that size and guarantees nothing, so {', '.join(ignored)} would change "
            "nothing; remove one or the other"
        )
    model_report = own_report(checkpoint)
    model_report = model_report if model_report and describes(model_report.report, checkpoint) else None
    inputs: dict[str, DataPath] = {"evaluation": options["evaluate"]} if options["evaluate"] else {}
    before = {role: recorded_files(path) for role, path in inputs.items()}
    inputs |= {f"base-{file.path.name}": file.path for file in base.files} if base else {}
    return NoiseRelease(
        checkpoint=checkpoint,
        training=None,
        selection=select(
            checkpoint, include=options["include"], exclude=options["exclude"], base=_given_base(base, options)
        ),
        premises=Premises(assumptions=()),
        targets=(),
        stddevs=options["noise_stddev"],
        model_report=model_report,
        base_reports=reports_of_base(base),
        inputs=inputs,
        before=before,
        parameters={"include": list(options["include"]), "exclude": list(options["exclude"])},
        collected=tuple(name.name for name in collected_names(model_report.report)) if model_report else (),
        seed=options["seed"],
        companions=companions(checkpoint),
    )


def _delta(options: Mapping[str, Any], sources: Sequence[FactSource], default: float) -> float:
    """Delta from the option, the facts file or the default; raises CommandError if the first two disagree."""
    stated = {source.values["delta"] for source in sources if "delta" in source.values}
    flag = options["delta"]
    if flag is not None and stated - {flag}:
        raise CommandError(f"--delta {flag} contradicts delta {stated.pop()} of the facts file; remove one")
    return flag if flag is not None else next(iter(stated), default)


def _calibration(options: Mapping[str, Any]) -> Calibration:
    """The calibration chosen; by default the one whose epsilon is proved."""
    chosen = options["calibration"] or Calibration.GAUSSIAN
    return Calibration.DP_WEIGHTS if chosen == PUBLISHED else Calibration(chosen)


def target_of(epsilon: float, delta: float, options: Mapping[str, Any]) -> PrivacyTarget:
    """The target at ``epsilon`` and ``delta``; raises CommandError for options that the calibration does not use."""
    calibration = _calibration(options)
    if calibration is Calibration.DP_WEIGHTS and options["regime"] is not None:
        raise CommandError(
            "--regime applies to --calibration gaussian only; remove one: the published formula reports every regime"
        )
    if calibration is Calibration.DP_WEIGHTS and options["adjacency"] is not None:
        raise CommandError("--adjacency applies to --calibration gaussian only; remove it: the report has both")
    if calibration is Calibration.GAUSSIAN and options["formula"] is not None:
        raise CommandError("--formula applies to --calibration published only; add that or remove --formula")
    return PrivacyTarget(
        epsilon=epsilon,
        delta=delta,
        calibration=calibration,
        formula=Formula(options["formula"] or Formula.ALGORITHM_2),
        regime=Regime(options["regime"] or Regime.NONCONVEX),
        adjacency=Adjacency(options["adjacency"] or Adjacency.REPLACE_ONE),
    )
