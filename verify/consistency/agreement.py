"""Whether a report agrees with itself: its parameters with its mechanism, and its guarantees with both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from privctl.domain.guarantee import Adjacency, Notion, Scope
from privctl.domain.mechanism import Calibration, ClippedTraining, Formula, Regime, WeightNoise
from privctl.domain.report import BEGUN_WITH, PrivacyReport
from privctl.reports.parameters import NoiseParameters, parameters_as
from privctl.storage.folder import BASE_ROLE
from privctl.storage.header import elements_of
from privctl.storage.reader import ADAPTER_CONFIG, ADAPTER_NAME
from verify.compare import LARGEST, ROUNDING, compare, shown
from verify.consistency import bookkeeping, history
from verify.consistency.account_plan import plan_disagreements
from verify.methods import external_training
from verify.methods.expected import TRAINING, StatedTraining
from verify.recompute import dp_weights, gaussian, gridded
from verify.recompute.sensitivity import TooManyStepsError, sensitivity
from verify.settings import users
from verify.stated import delta_of, method_of, training_of

_INTEGER, _LEFT_OUT = "integer type", "left out by --include or --exclude"
_UNTOUCHED = frozenset({
    _INTEGER, _LEFT_OUT, "equal to the public base", "initial value of a statistic",
})  # fmt: skip


#: The role of the settings of an adapter that a training began with.
_GIVEN_ADAPTER = f"start-{ADAPTER_CONFIG}"
_IMAGES = "image-classification"
_SOUNDS = "audio-classification"
_TASKS = (
    "causal-lm", "masked-lm", "seq2seq-lm", "text-classification", "token-classification", "question-answering",
    _IMAGES,
    _SOUNDS,
)  # fmt: skip
_CHOICES = {
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
    "schedule": ("constant", "linear", "cosine"),
    "long": ("split",),
    "converted": ("batch-norm",),
}
#: The least value of settings that are numbers.
_LEAST = {
    "learning_rate": 0, "weight_decay": 0, "warmup_steps": 0, "updates": 0, "steps": 0, "initial_seed": 0,
    "frozen_norm_layers": 0, "micro_tokens": 1, "micro_examples": 1, "clipping_passes": 1, "lora_rank": 1,
    "base_bits": 1, "max_length": 1,
}  # fmt: skip
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt", "merges.txt", "spiece.model"})


def contradictions(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence per disagreement, naming what disagrees."""
    try:
        if report.step in _OF_STEP:
            yield from _OF_STEP[report.step](report)
    except (ArithmeticError, ValueError) as error:
        yield f"the parameters hold a number that no {report.step} step has: {error}"
    deltas = {g.delta for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP or g.delta > 0}
    delta = delta_of(report)
    if report.guarantees and report.step in (*_OF_STEP, "secrets-plan") and delta is None:
        yield "the parameters do not say for which delta the guarantees are"
    if delta is not None and deltas - {delta}:
        yield f"a guarantee has delta {max(deltas - {delta}):g}, but the parameters say {delta:g}"
    elif len(deltas) > 1:
        yield f"its guarantees have different deltas: {', '.join(f'{d:g}' for d in sorted(deltas))}"


def _noise(report: PrivacyReport) -> Iterator[str]:
    mechanism, parameters = report.mechanism, parameters_as(NoiseParameters, report)
    if not isinstance(mechanism, WeightNoise):
        yield "a noise step has no mechanism that says how much noise was added"
        return
    yield from compare("parameter calibration", parameters.calibration, mechanism.calibration.value, "mechanism says")
    training = mechanism.training
    if training is None or mechanism.calibration is Calibration.GIVEN:
        yield from _given_noise_faults(report, mechanism, parameters)
        return
    epsilon, delta = parameters.epsilon, parameters.delta
    if epsilon is None or delta is None:
        yield "the parameters do not say for which epsilon and delta the noise was chosen"
        return
    if not (0 < epsilon <= LARGEST and 0 < delta < 1):
        yield f"the parameters say epsilon {shown(epsilon)} and delta {shown(delta)}, for which no noise is chosen"
        return
    yield from _stddev(mechanism, training, epsilon, delta)
    yield from _written(report, mechanism, parameters)
    yield from _stated_epsilon_faults(report, mechanism, training, epsilon)


def _given_noise_faults(report: PrivacyReport, mechanism: WeightNoise, parameters: NoiseParameters) -> Iterator[str]:
    """Noise whose standard deviation the user chose: without target and training facts, nothing is guaranteed."""
    if mechanism.training is not None or mechanism.calibration is not Calibration.GIVEN:
        yield "all noise but that of a given standard deviation comes with facts of the training, and that without"
    if parameters.epsilon is not None or parameters.delta is not None or report.guarantees:
        yield "its noise was given and not made for an epsilon, but it states an epsilon, a delta or a guarantee"
    yield from _written(report, mechanism, parameters)


def _written(report: PrivacyReport, mechanism: WeightNoise, parameters: NoiseParameters) -> Iterator[str]:
    if parameters.collected_from_data is None:
        yield "it does not say which names were collected from the private data"
    if mechanism.candidate_stddevs and mechanism.noise_stddev not in mechanism.candidate_stddevs:
        yield f"noise_stddev {mechanism.noise_stddev:g} is not among the candidate_stddevs"
    yield from _tensors(report, mechanism, parameters)


def _stated_epsilon_faults(
    report: PrivacyReport, mechanism: WeightNoise, training: ClippedTraining, epsilon: float
) -> Iterator[str]:
    """Compares the guarantees with the epsilon that the noise was calibrated to, and with the number of candidates."""
    for guarantee in report.guarantees:
        if guarantee.name == "published":
            yield from compare("epsilon of 'published'", guarantee.epsilon, epsilon, "the noise was made for")
            shift = dp_weights.shift(training)
            yield from compare("sensitivity of 'published'", guarantee.sensitivity, shift, "the paper's formula gives")
            if guarantee.adjacency is not Adjacency.UNSTATED or guarantee.notion is not Notion.APPROXIMATE_DP:
                yield "'published' states neighbours or a notion of privacy, and the paper states none"
            if guarantee.scope is not Scope.THIS_MODEL:
                yield "'published' speaks of all candidates, and the paper of one model"
        if guarantee.scope is Scope.ALL_CANDIDATES and len(mechanism.candidate_stddevs) < 2:
            yield f"{guarantee.name!r} speaks of all candidates, but there is one"


def _stddev(mechanism: WeightNoise, training: ClippedTraining, epsilon: float, delta: float) -> Iterator[str]:
    """Compares the standard deviation with the formula of its calibration."""
    stddev = mechanism.noise_stddev
    if mechanism.calibration is Calibration.DP_WEIGHTS:
        wanted = dp_weights.stddev(training, epsilon, delta, mechanism.formula or Formula.ALGORITHM_2)
        yield from compare("noise_stddev", stddev, wanted, "the published formula gives")
        return
    factor = gaussian.multiplier_at(epsilon, delta).upper
    # Noise on a grid may be larger: it also pays for the rounding of the written floats.
    more = ROUNDING if mechanism.grid is None else 1e-5 + 4 * gridded.largest_cost(mechanism, epsilon, delta) / epsilon
    regime = mechanism.regime or Regime.NONCONVEX
    try:
        wanted_by = [
            value * factor
            for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
            if (value := sensitivity(training, regime, adjacency, mechanism.dimension)) is not None
        ]
    except TooManyStepsError:
        return  # the verdict on the guarantee says that it is undecided
    if not any(wanted * (1 - ROUNDING) <= stddev <= wanted * (1 + more) for wanted in wanted_by):
        shown = " or ".join(f"{wanted:.12g}" for wanted in wanted_by) or "nothing"
        yield f"noise_stddev is {stddev:.12g}, but the Gaussian calibration for {regime} losses gives {shown}"


def _tensors(report: PrivacyReport, mechanism: WeightNoise, parameters: NoiseParameters) -> Iterator[str]:
    tensors = {t.name: t for artifact in report.outputs for t in artifact.tensors}
    untouched, tied = parameters.tensors_untouched, parameters.tensors_tied
    if not any(artifact.role == "model" for artifact in report.outputs):
        return  # reported by another check: no bound applies to any model then
    if not tensors or untouched is None or tied is None:
        yield "it does not say which tensors were written, and which of them have no noise or are tied"
        return
    for name in sorted(untouched):
        if untouched[name] not in _UNTOUCHED:
            yield f"tensor {name!r} is said to have no noise for a reason that privctl does not have: {untouched[name]}"
    noised = {name: t for name, t in tensors.items() if name not in untouched}
    yield from _patterns(parameters, tensors, untouched)
    yield from compare("tensors_noised", parameters.tensors_noised, len(noised), "the tensors listed are")
    copies = {name for group in tied for name in group[1:]}
    counts = [elements_of(t.shape) for name, t in noised.items() if name not in copies]
    counted = None if None in counts else sum(count for count in counts if count is not None)
    yield from compare("dimension", mechanism.dimension, counted, "the tensors that got noise hold")


def _patterns(parameters: NoiseParameters, names: Iterable[str], untouched: Mapping[str, str]) -> Iterator[str]:
    """Compares --include and --exclude with the tensors that they are said to have left out."""
    include, exclude = parameters.include, parameters.exclude
    if include is None or exclude is None:
        return
    for pattern in (*include, *exclude):
        if not any(fnmatchcase(name, pattern) for name in names):
            yield f"the pattern {shown(pattern)} matches none of its tensors, and the step refuses such a one"
            return
    for name in sorted(names):
        reason = untouched.get(name)
        if reason == _INTEGER:
            continue
        taken = not include or any(fnmatchcase(name, pattern) for pattern in include)
        if taken and any(fnmatchcase(name, pattern) for pattern in exclude):
            taken = False
        if taken is (reason == _LEFT_OUT):
            what = "was left out, and the patterns take it" if taken else "was not left out, and the patterns do so"
            yield f"tensor {name!r} {what}: include {shown(list(include))}, exclude {shown(list(exclude))}"
            return


def _retrain(report: PrivacyReport) -> Iterator[str]:
    parameters, mechanism, method = training_of(report), report.mechanism, method_of(report)
    if not isinstance(mechanism, () if method is None else method.mechanisms):
        yield f"its mechanism is not one of the method {parameters.method!r}"
    if parameters.task not in _TASKS:
        yield f"privctl has no task named {shown(parameters.task)}"
    written = {Path(artifact.path).name for artifact in report.outputs}
    if parameters.task in (_IMAGES, _SOUNDS) and (tokenizers := sorted(written & _TOKENIZERS)):
        kind = "images" if parameters.task == _IMAGES else "sounds"
        yield f"its task is one of {kind}, but it wrote {', '.join(tokenizers)}"
    yield from _start(report, parameters)
    yield from _adapter(report, parameters)
    yield from _plan_followed(report, parameters)
    yield from _settings(parameters, {} if method is None else method.choices)
    yield from bookkeeping.disagreements(report, parameters, method)
    yield from history.faults(report, parameters, method)
    if parameters.examples <= 0:
        yield f"the parameters say that there are {parameters.examples} examples, and no training has so few"
    elif not isinstance(mechanism, ClippedTraining):
        rate = parameters.batch_size / parameters.examples
        yield from compare("parameter sample_rate", parameters.sample_rate, rate, "batch_size / examples is")
    if method is not None:
        yield from () if method.users else users.unsupported_user_settings(parameters)
        yield from method.disagreements(mechanism, parameters)


def _settings(parameters: StatedTraining, choices: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yields a sentence for each setting with a value that no training has; ``choices`` are those of the method."""
    for name, known in {**_CHOICES, **choices}.items():
        chosen = getattr(parameters, name)
        if chosen is not None and chosen not in known:
            yield f"privctl has no {name} named {shown(chosen)}"
    for name in ("momentum", "beta1", "beta2"):
        share = getattr(parameters, name)
        if share is not None and not 0 <= share < 1:
            yield f"parameter {name} is {share:g}, and every training has one from 0 to below 1"
    for name, least in _LEAST.items():
        size = getattr(parameters, name)
        if size is not None and not least <= size <= LARGEST:
            yield f"parameter {name} is {shown(size)}, which no training has"
    if parameters.clip_norm is not None and not 0 < parameters.clip_norm <= LARGEST:
        yield f"parameter clip_norm is {parameters.clip_norm:g}, which no training has"
    if parameters.resize is not None and (
        parameters.task != _IMAGES or len(parameters.resize) != 2 or min(parameters.resize) < 1
    ):
        yield f"parameter resize is {shown(list(parameters.resize))}, which is no height and width of its images"


def _start(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """Initial weights must come from a file of weights if and only if they are not random."""
    began = parameters.initial_weights
    read = any(a.role.startswith(BEGUN_WITH) and a.role.endswith(".safetensors") for a in report.inputs)
    if began not in ("random", "checkpoint") or (began == "random") is read:
        files = "files of weights are among its inputs" if read else "no file of weights is among its inputs"
        yield f"its training is said to have begun with {shown(began)} weights, but {files}"


def _adapter(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """An adapter must be written if and only if one is stated, and the digest of its base must be recorded.

    What scales it follows from its rank if it was new, and otherwise from the settings that it began with.
    """
    written = any(a.role == "model" and PurePosixPath(a.path).name == ADAPTER_NAME for a in report.outputs)
    if written is not bool(parameters.adapter):
        yield f"its parameters say adapter {parameters.adapter}, and its output is {'one' if written else 'none'}"
    if written and not any(a.role.startswith(BASE_ROLE) and a.role.endswith(".safetensors") for a in report.inputs):
        yield "its output is an adapter, and no weights of a base are among its inputs"
    given = any(a.role == _GIVEN_ADAPTER for a in report.inputs)
    if written and report.step == TRAINING and given is (parameters.lora_rank is not None):
        yield (
            "its output is an adapter, and it states "
            + ("both" if given else "neither")
            + " the rank of a new one and the settings of one that it began with"
        )


def _plan_followed(report: PrivacyReport, parameters: StatedTraining) -> Iterator[str]:
    """A protection plan that was followed must be among the inputs, with the stated digest."""
    plans = [artifact for artifact in report.inputs if artifact.role == "plan"]
    if plans and parameters.secrets != (name := PurePosixPath(plans[0].path).name):
        yield f"it is said to have followed the plan {shown(parameters.secrets)}, and its input is {shown(name)}"
    read = [artifact.digest for artifact in plans]
    if read != ([] if parameters.plan is None else [parameters.plan.digest]):
        yield "the plan of protection that its parameters name is not the one among its inputs"


_OF_STEP: dict[str, Callable[[PrivacyReport], Iterator[str]]] = {
    "noise": _noise,
    "retrain": _retrain,
    "account": plan_disagreements,
    external_training.STEP: external_training.disagreements,
}
