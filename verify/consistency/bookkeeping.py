"""Training settings on which no guarantee rests: those that follow from other entries, and those that nothing shows.

``disagreements`` compares the former with the entries they follow from. ``unchecked`` names the latter, so that nobody
mistakes a report that passed for one in which every entry was checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from privctl.data.packed import suffix_of
from privctl.data.places import RECORDS
from privctl.domain.events import Ledger
from privctl.domain.guarantee import Guarantee, Notion, Status
from privctl.domain.mechanism import ClippedTraining
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.version import VERSION
from privctl.reports.audit_parameters import OF_ATTACKS, AuditParameters
from privctl.reports.parameters import ScanParameters, parameters_as, unknown_entries
from verify.compare import compare, shown
from verify.methods.expected import EXTERNAL, TRAINING, ExpectedMethod, StatedTraining
from verify.settings import public_records
from verify.stated import kind_of, method_of, training_of

_TITLE = "bookkeeping"
_REDUCED = "bfloat16"
_STDIN = "-"
#: Folders inside a data set that may hold its files.
_INNER = ("data", "train", "test", "validation")
#: Relative excess over the target epsilon that is allowed for rounding in the search for the noise.
_ROOM = 1e-6
#: By how much the epsilon that a training computes may exceed the bound here.
_LOOSE = 1e-3
#: Parameters of a training that nothing else in the report reveals.
_UNCHECKED = (
    "epsilon",
    "text_column",
    "label_column",
    "max_length",
    "long",
    "resize",
    "clipping",
    "clipping_passes",
    "micro_examples",
    "micro_tokens",
    "records_per_draw",
    "fresh_tensors",
    "frozen_norm_layers",
    "fsdp",
    "history",
    # Of DPQuant and FERRET.
    "format",
    "luq_levels",
    "quantized_fraction",
    "compute_target",
    "full_precision",
    "multiply_adds",
    "last_chances",
    "beta",
    "smoothing",
    "measure_every",
    "measure_clip",
    "group_sizes",
    "silent",
    "update_scale",
    "derivatives",
    "derivatives_by",
)
#: Settings that are only compared, all together, with how far the weights moved.
_DIVIDED_OUT = ("optimizer", "clip_norm", "learning_rate", "schedule", "warmup_steps", "momentum", "beta1", "beta2")
_ADAPTIVE = ("adam", "adamw")
#: How an audit measured, as far as nothing else in its report reveals it.
_UNCHECKED_OF_AUDITS = ("task", "dtype", "max_length", "canary_groups")
#: Settings of an audit of secrets that nothing else in its report reveals.
_OF_SECRETS = ("candidates", "most_secrets", "eligible", "data_records")
_MAKERS = (TRAINING, EXTERNAL, "noise", "replay")
#: Settings of moves along public directions that only the released numbers reveal.
_OF_DIRECTIONS = ("public_seed", "learning_rate", "schedule", "warmup_steps", "weight_decay")
#: It sets the spacing of a tensor's weights if all are smaller than it, and that spacing is a power of two.
_PERTURBATION = "perturbation (but for its power of two)"


def disagreements(report: PrivacyReport, parameters: StatedTraining, method: ExpectedMethod | None) -> Iterator[str]:
    """Yields one sentence per setting that differs from the entries it follows from."""
    yield from _steps(parameters, method)
    yield from _data(report, parameters)
    yield from public_records.disagreements(report, parameters)
    test = parameters.contribution_test
    if test is not None and test.differences and parameters.bf16 is not None:
        tested = any(_REDUCED in stage for stage in test.differences)
        yield from compare("parameter bf16", parameters.bf16, tested, "the test before the first step says")
    if parameters.momentum and parameters.optimizer != "momentum":
        yield f"parameter momentum is {parameters.momentum:g}, which {shown(parameters.optimizer)} does not have"
    yield from _released(report, parameters)
    yield from _target(report, parameters)
    yield from _without_noise(report, parameters)
    yield from _pairs(report, parameters)
    yield from _measured_share(report, parameters)


def _measured_share(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """The cost of private measurements (DPQuant) must be what follows from the ledger with and without them."""
    without = getattr(parameters, "epsilon_without_measurements", None)
    share, ledger = getattr(parameters, "epsilon_share_of_measurements", None), report.mechanism
    whole = next((guarantee for guarantee in report.guarantees if guarantee.name == parameters.method), None)
    if (without is None and share is None) or whole is None or whole.epsilon is None:
        return
    if without is None or share is None or not isinstance(ledger, Ledger) or len(ledger.events) < 2:
        yield "it says what its measurements cost, and not all that this follows from"
        return
    from verify.recompute.ledger import epsilon_of  # needs more than the standard library

    yield from compare("epsilon_share_of_measurements", share, 1 - without / whole.epsilon, "its epsilons give")
    actual = epsilon_of(Ledger(events=ledger.events[:1]), whole.delta, [without])
    if not actual.lower * (1 - _ROOM) <= without <= actual.upper * (1 + _LOOSE):
        follows = f"between {actual.lower:.9g} and {actual.upper:.9g}"
        yield f"epsilon_without_measurements is {without:.9g}, and the steps alone have {follows}"


def _pairs(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """Yields a sentence for each setting that is stated without its counterpart."""
    if parameters.secrets is not None and parameters.plan is None:
        yield f"it followed the plan {shown(parameters.secrets)}, of which no parameter says what it holds"
    if bool(parameters.gradient_canaries) is not (parameters.gradient_canaries_file is not None):
        yield "gradient_canaries and gradient_canaries_file go together, and one of them is missing"
    if parameters.gradient_canaries and parameters.plan is not None:
        yield "it mixed in canary gradients, and a plan says how often each record is drawn: no training does both"
    if parameters.base_bits is not None and not parameters.adapter:
        yield f"base_bits is {parameters.base_bits}, and only the base of an adapter is held in fewer bits"
    names = (tensor.name for artifact in report.outputs for tensor in artifact.tensors)
    if parameters.converted is not None and not any(name.endswith("running_mean") for name in names):
        yield f"it says that it converted {shown(parameters.converted)}, and no tensor holds the statistics of batches"


def _steps(parameters: StatedTraining, method: ExpectedMethod | None) -> Iterator[str]:
    """A report is written after all planned steps: steps begun if the method adds noise, otherwise updates made."""
    done = parameters.steps_begun if method is not None and method.noised else parameters.updates
    if parameters.steps is not None and done is not None:
        yield from compare("parameter steps", parameters.steps, done, "a training ends after all its steps, and made")


def _data(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """The data must be named after its files, or after a folder that holds them or a pattern that matches them."""
    files = [PurePath(artifact.path) for artifact in report.inputs if artifact.role == "data"]
    name = parameters.data
    if name is None or not files or name == _STDIN:
        return
    several = len(files) > 1
    parts = [name] if all(_fits(name, file, several) for file in files) else name.split(" + ")
    of_files = all(any(_fits(part, file, several) for part in parts) for file in files)
    if not of_files or not all(any(_fits(part, file, several) for file in files) for part in parts):
        yield f"the data is called {shown(name)}, and the file recorded is {shown(files[0].as_posix())}"


def _fits(name: str, file: PurePath, several: bool) -> bool:
    """Whether ``name`` may refer to ``file``.

    Paths are relative to the report, so the folder of ``several`` files does not appear in them if the report lies in
    that folder. Neither does the current folder (``.``).
    """
    if not name or name in file.parts or fnmatchcase(file.name, name) or _is_shard(name, file):
        return True
    if not several or suffix_of(Path(name)) in RECORDS:
        return False
    above = file.parts[:-1]
    if above and above[-1] in _INNER:
        above = above[:-1]
    return not above or above[-1] == ".."


def _is_shard(split: str, file: PurePath) -> bool:
    stem = file.name.split(".")[0]
    return stem == split or re.fullmatch(re.escape(split) + r"[-_]\d{5}-of-\d{5}", stem) is not None


def _released(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    counts = {
        g.arithmetic.coordinates for g in report.guarantees if g.name == parameters.method and g.arithmetic is not None
    }
    if len(counts) == 1 and parameters.released_numbers is not None:
        yield from compare("released_numbers", parameters.released_numbers, counts.pop(), "its guarantee is for")


def _target(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """The guarantee's epsilon must not exceed the budget: a training whose steps would exceed it does not start."""
    for guarantee in report.guarantees:
        bound = guarantee.follows if guarantee.follows is not None else guarantee.epsilon
        if (
            _is_target(guarantee, parameters)
            and guarantee.status in (Status.PROVED, Status.CONDITIONAL)
            and parameters.epsilon is not None
            and bound is not None
            and bound > parameters.epsilon * (1 + _ROOM)
        ):
            yield f"parameter epsilon is {parameters.epsilon:g}, but its guarantee has {bound:g}, which is more"


def _is_target(guarantee: Guarantee, parameters: StatedTraining) -> bool:
    """Whether the parameter epsilon is the target of ``guarantee``: in nats, if published signs are its mechanism."""
    if getattr(parameters, "release", None) == "published":
        return guarantee.notion is Notion.MUTUAL_INFORMATION
    return guarantee.name == parameters.method and guarantee.notion is Notion.APPROXIMATE_DP


def _without_noise(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """Yields a sentence for each setting of a private training that one without noise cannot have."""
    if report.mechanism is not None and not isinstance(report.mechanism, ClippedTraining):
        return
    if parameters.noise_multiplier:
        yield f"parameter noise_multiplier is {parameters.noise_multiplier:g}, and this training adds no noise"
    if parameters.sample_rate is not None and parameters.examples > 0:
        rate = min(1.0, parameters.batch_size / parameters.examples)
        yield from compare("parameter sample_rate", parameters.sample_rate, rate, "batch_size / examples is")
    for name, value in (("epsilon", parameters.epsilon), ("delta", parameters.delta)):
        if value is not None:
            yield f"parameter {name} is {value:g}, and this training has no guarantee"
    if report.mechanism is not None:
        for name, known in (
            ("smoothness", report.mechanism.smoothness),
            ("strong_convexity", report.mechanism.strong_convexity),
        ):
            if known is not None:
                yield f"mechanism's {name} is {known:g}, which no training of privctl knows of its loss"


def unchecked(report: PrivacyReport, *, kept_settings: bool = False, kept_versions: bool = False) -> Iterator[Omission]:
    """Names the entries that no check covers, and says whether a guarantee may rest on one.

    ``kept_settings`` says that all parameters of an audit were compared with what it kept, and ``kept_versions`` that
    the versions of packages were.
    """
    named = [*([] if kept_versions else ["library versions"]), "its date"]
    named += ["names and most numbers in its warnings"] if report.warnings else []
    named += ["what it says was left out"] if report.omissions else []
    named += ["the reasons of its verdicts"] if report.verdicts else []
    named += ["why figures were not measured"] if any(item.reason for item in report.evidence) else []
    if parameters := [] if kept_settings else [*_names(report)]:
        named.append(f"the parameters {', '.join(parameters)}")
    but = ", but no guarantee rests on it" if report.guarantees or report.step in _MAKERS else ""
    listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    reason = f"no check rests on {listed}: an edit there may go unnoticed{but}"
    yield Omission(what=_TITLE, reason=reason)
    if report.guarantees and (writer := report.versions.get("privctl")) != VERSION:
        yield Omission(
            what="notes of another version",
            reason=f"it says that privctl {writer or 'without a version'} wrote it, and this is {VERSION}: that a note "
            "is missing beside a bound, which says what the bound does not cover, would not be noticed",
        )
    if report.step == TRAINING:
        yield from _untested_measurements(training_of(report))
    test = training_of(report).contribution_test if report.step == TRAINING else None
    if test is not None and test.differences:
        yield Omission(
            what="self-test",
            reason="the differences in contribution_test are what the run says that it measured: an edit there, and in "
            "the assumptions 'contribution' and 'rounding of sums' that rest on it, may go unnoticed; training again "
            "from the same start measures them again",
        )


def _untested_measurements(parameters: StatedTraining) -> Iterator[Omission]:
    """Says what of the noise of private measurements (DPQuant) is tested, if there were any."""
    if not getattr(parameters, "measurements_begun", None):
        return
    count = getattr(parameters, "measure_control_numbers", None)
    yield Omission(
        what="noise of measurements",
        reason="it states no control numbers, so nothing shows how much noise its measurements had"
        if not count
        else f"that {count} control numbers have the stated deviation is the run's word; no number shows which "
        "examples were drawn, and that their vectors were clipped",
    )


def _names(report: PrivacyReport) -> Iterator[str]:
    """Yields the names of the parameters that no check covers."""
    if report.step == "audit":
        stated, others = parameters_as(AuditParameters, report), unknown_entries(AuditParameters, report)
        yield from (name for name in _UNCHECKED_OF_AUDITS if getattr(stated, name) is not None)
        yield from (name for name in OF_ATTACKS if name in others)
        yield from ("extraction",) if stated.extraction else ()
        yield from (f"secrets.{name}" for name in _OF_SECRETS if name in (stated.secrets or ()))
    elif kind_of(report) is None:  # of a step whose parameters are read nowhere but for the counts of a scan
        yield from unknown_entries(ScanParameters, report)
    if report.step != TRAINING:
        return
    parameters, method = training_of(report), method_of(report)
    yield from (name for name in _UNCHECKED if getattr(parameters, name, None) not in (None, 0))
    if getattr(parameters, "clip_norms", None) is not None:
        yield from ("clip_norms", "target_unclipped_quantile", "clip_norm_learning_rate")
    if getattr(parameters, "perturbation", None) is not None:
        yield from (_PERTURBATION, "clip_norm", "beta1", "beta2")
        # The best run of a search keeps no numbers, with which the others would be compared.
        yield from () if getattr(parameters, "search", None) is None else _OF_DIRECTIONS
    elif parameters.optimizer in _ADAPTIVE or (method is not None and method.noised):
        yield from _DIVIDED_OUT
