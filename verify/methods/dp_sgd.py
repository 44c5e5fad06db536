"""DP-SGD: the ledger must hold every step begun, at the stated sampling rate and noise multiplier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.events import (
    BandedGaussian,
    Batches,
    BestOfRuns,
    BufferedGaussian,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.guarantee import Guarantee
from privctl.domain.mechanism import Mechanism
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from verify.compare import ROUNDING, compare
from verify.events.banded_gaussian import column_norm
from verify.events.best_of_runs import SHAPES, runs_exceed
from verify.events.buffered_gaussian import moved_by_one
from verify.methods.expected import CLIPPING, ExpectedMethod, StatedTraining
from verify.settings import public_records, users
from verify.settings.clip_norms import StatedNorms, norms_disagree
from verify.texts.accountants import TIGHT
from verify.texts.assumptions import TESTED
from verify.texts.warnings.forms import CHOSEN_BY_HELD_OUT, EARLIER, ONE_RUN, OWNER, WHOLE_SEARCH, form

#: The excess over 1 that rounding of the coefficients may give the norm of a column.
_ROUNDED = 2.0**-50


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyGradients(StatedTraining):
    """The parameters of a method that adds noise to clipped gradients of Poisson batches."""

    sample_rate: float
    noise_multiplier: float
    steps_begun: int
    batches: str = str(Batches.POISSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSearch:
    """A private search: ``settings`` lists ``name=value,value`` for each setting, ``most_runs`` is never exceeded.

    ``earlier`` is how many searches of the same data the log next to the output lists before this one, None for none.
    """

    settings: str
    expected_runs: float
    runs_law: str
    most_runs: int
    earlier: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedMatrix:
    """The matrix that correlates noise over all steps, with the fields of the event ``BufferedGaussian``."""

    first: float
    weights: tuple[float, ...]
    decays: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedTraining(NoisyGradients):
    """A run that may be the best of a private ``search``."""

    search: StatedSearch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSteps(SearchedTraining):
    """The parameters of DP-SGD.

    ``coefficients`` correlate the noise of as many consecutive steps, and ``matrix`` that of all steps.
    ``largest_batch`` is how many examples of a larger batch are kept. ``public_...`` are the settings for mixing in
    public records (``verify.settings.public_records``). The others belong to an adaptive clip norm, whose sequence is
    ``clip_norms`` (``verify.settings.clip_norms``).
    """

    coefficients: tuple[float, ...] | None = None
    matrix: StatedMatrix | None = None
    largest_batch: int | None = None
    public_weight: float | None = None
    public_batch_size: int | None = None
    public_examples: int | None = None
    public_overlap: str | None = None
    target_unclipped_quantile: float | None = None
    clip_norm_learning_rate: float | None = None
    unclipped_count_stddev: float | None = None
    sum_noise_multiplier: float | None = None
    clip_norms: tuple[float, ...] | None = None


def sampled_only(ledger: Ledger) -> list[SampledGaussian] | None:
    """The ledger's events if all are sampled Gaussians, otherwise None."""
    events = [event for event in ledger.events if isinstance(event, SampledGaussian)]
    return events if len(events) == len(ledger.events) else None


#: How batches are drawn, for the kinds of events that allow only one way.
_BATCHES_OF = {
    BandedGaussian: Batches.CYCLIC_POISSON,
    BufferedGaussian: Batches.FIXED_ORDER,
    GroupGaussian: Batches.POISSON,
    TruncatedGaussian: Batches.TRUNCATED_POISSON,
}


def steps_disagree(
    events: Sequence[SampledGaussian | BandedGaussian | BufferedGaussian | GroupGaussian | TruncatedGaussian],
    parameters: NoisyGradients,
) -> Iterator[str]:
    """Yields one sentence per difference between the events of the steps and the parameters."""
    total = sum(event.steps for event in events)
    yield from compare("number of steps in the ledger", total, parameters.steps_begun, "steps_begun says")
    rate = parameters.sample_rate
    if parameters.plan is not None:  # the ledger is for the record that is drawn most often
        rate = parameters.plan.largest_probability or 0.0
        if rate < parameters.sample_rate * (1 - ROUNDING):
            mean = f"{parameters.sample_rate:.6g}, the mean of its probabilities"
            yield f"the plan is said to draw no record with more than {rate:.6g}, which is less than {mean}"
    for event in events:
        yield from compare("rate in the ledger", event.sample_rate, rate, "the parameters say")
        noise = parameters.noise_multiplier
        yield from compare("noise multiplier in the ledger", event.noise_multiplier, noise, "the parameters say")
        kind = event.batches if isinstance(event, SampledGaussian) else _BATCHES_OF[type(event)]
        yield from compare("kind of batches in the ledger", kind, parameters.batches, "the parameters say")
    if parameters.updates is not None and parameters.updates > total:
        updates_text = counted(parameters.updates, "update was", "updates were")
        yield f"{updates_text} made, but the ledger holds {counted(total, 'step')}"


#: Parameters of which a report may state at most one, with what each means.
_KINDS = {
    "search": "it is the best of several runs",
    "coefficients": "noise is correlated over some steps",
    "matrix": "noise is correlated over all steps",
    "max_records_per_user": "each record of a user is clipped by itself",
    "largest_batch": "batches are cut to a largest size",
    "plan": "a plan of secrets says how often each record is drawn",
}
#: An adaptive clip norm may be combined with truncated batches, and with none of the others.
_CHANGES, _GOES_WITH = "target_unclipped_quantile", "largest_batch"


def combined_variants(parameters: PrivateSteps) -> Iterator[str]:
    """Yields a sentence if the parameters combine two variants that no bound covers combined_variants."""
    stated = [name for name in _KINDS if getattr(parameters, name) is not None]
    if len(stated) > 1:
        yield f"{_KINDS[stated[0]]}, and {_KINDS[stated[1]]}: no training does both, and no bound here covers both"
    if getattr(parameters, _CHANGES) is not None and (others := [name for name in stated if name != _GOES_WITH]):
        yield f"the clip norm changes, and {_KINDS[others[0]]}: no training does both, and no bound here covers both"


def _disagreements(mechanism: Mechanism | None, parameters: PrivateSteps) -> Iterator[str]:
    yield from norms_disagree(_norms(parameters))
    yield from combined_variants(parameters)
    yield from users.disagreements(parameters)
    if not isinstance(mechanism, Ledger):
        return
    if parameters.search is not None or any(isinstance(event, BestOfRuns) for event in mechanism.events):
        yield from search_disagrees(mechanism, parameters)
    elif parameters.coefficients is not None or any(isinstance(event, BandedGaussian) for event in mechanism.events):
        yield from _banded_disagreements(mechanism, parameters)
    elif parameters.matrix is not None or any(isinstance(event, BufferedGaussian) for event in mechanism.events):
        yield from _buffered_disagreements(mechanism, parameters)
    elif parameters.max_records_per_user is not None or any(isinstance(e, GroupGaussian) for e in mechanism.events):
        yield from _group_disagreements(mechanism, parameters)
    elif parameters.largest_batch is not None or any(isinstance(e, TruncatedGaussian) for e in mechanism.events):
        yield from _truncated_disagreements(mechanism, parameters)
    elif (events := sampled_only(mechanism)) is not None:
        yield from steps_disagree(events, parameters)
    else:
        yield "the ledger holds events of another kind than the steps that this method makes"


def _group_disagreements(ledger: Ledger, parameters: PrivateSteps) -> Iterator[str]:
    """Checks a run that clips each record of a user separately: the ledger must protect groups of that many records."""
    event = ledger.events[0]
    if len(ledger.events) != 1 or not isinstance(event, GroupGaussian):
        yield "the parameters clip each record of a user by itself, but the ledger does not protect groups of records"
        return
    most = parameters.max_records_per_user
    yield from compare("number of records of a group in the ledger", event.group_size, most, "the parameters say")
    if parameters.unit is None:
        yield "the ledger protects groups of records, but the parameters name no field that says whose a record is"
    yield from steps_disagree([event], parameters)


def _truncated_disagreements(ledger: Ledger, parameters: PrivateSteps) -> Iterator[str]:
    """Checks a run with truncated batches, where one record may displace another, which the ledger must account for."""
    event = ledger.events[0]
    if len(ledger.events) != 1 or not isinstance(event, TruncatedGaussian):
        yield "the parameters cut batches to a largest size, but the ledger holds steps of another kind"
        return
    largest, records = parameters.largest_batch, parameters.examples
    yield from compare("largest batch in the ledger", event.largest_batch, largest, "the parameters say")
    yield from compare("number of examples in the ledger", event.examples, records, "the parameters say")
    if parameters.secrets or parameters.max_records_per_user is not None:
        yield "batches are cut to a largest size, which no bound on groups or secrets covers here"
    yield from steps_disagree([event], parameters)


def _norms(parameters: PrivateSteps) -> StatedNorms:
    names = StatedNorms.__dataclass_fields__.keys() - {"reduced"}
    return StatedNorms(reduced=bool(parameters.bf16), **{name: getattr(parameters, name) for name in names})


def _premises(parameters: PrivateSteps, _: Guarantee) -> Iterator[str]:
    if _norms(parameters).changes:
        yield "unclipped count"
    yield from search_premises(parameters)
    yield from public_records.premises(parameters)


def _banded_disagreements(ledger: Ledger, parameters: PrivateSteps) -> Iterator[str]:
    """Checks banded correlated noise: its matrix, the ledger, and the probability with which a record takes part."""
    event, stated = ledger.events[0], parameters.coefficients
    if len(ledger.events) != 1 or not isinstance(event, BandedGaussian):
        yield "the parameters correlate the noise of steps, but the ledger holds more than one event, or another kind"
        return
    if stated is None:
        yield "the ledger correlates the noise of steps, but the parameters state no coefficients"
        return
    yield from compare("number of bands in the ledger", len(event.coefficients), len(stated), "the parameters say")
    if tuple(event.coefficients) != tuple(stated):
        yield "the coefficients in the ledger are not those of the parameters"
    for coefficients in {tuple(event.coefficients), tuple(stated)}:
        if (norm := column_norm(coefficients)[0]) > 1 + _ROUNDED:
            yield f"a column of the noise's matrix has norm {norm:.6g}, above 1: a record moves the rows by more"
    turn = len(stated) * parameters.sample_rate
    if turn > 1 + ROUNDING:
        yield f"{len(stated)} parts at rate {parameters.sample_rate:g} would be drawn with probability {turn:.6g}"
    yield from steps_disagree([event], parameters)


def _buffered_disagreements(ledger: Ledger, parameters: PrivateSteps) -> Iterator[str]:
    """Checks noise correlated over all steps: its matrix, and the sensitivity of its rows to one record."""
    event, stated = ledger.events[0], parameters.matrix
    if len(ledger.events) != 1 or not isinstance(event, BufferedGaussian):
        yield "the parameters correlate the noise of all steps, but the ledger holds more than one event, or another"
        return
    if stated is None:
        yield "the ledger correlates the noise of all steps, but the parameters state no matrix"
        return
    if parameters.coefficients is not None:
        yield "the parameters correlate noise in two ways"
    if (event.first, *event.weights, *event.decays) != (stated.first, *stated.weights, *stated.decays):
        yield "the matrix in the ledger is not that of the parameters"
        return
    length = round(1 / event.sample_rate)
    moved = moved_by_one(event.first, event.weights, event.decays, length, event.steps)[0]
    if moved > 1 + _ROUNDED:
        yield f"a record moves the rows of the noise's matrix by {moved:.6g} clip norms, above 1"
    yield from steps_disagree([event], parameters)


def search_premises(parameters: SearchedTraining) -> Iterator[str]:
    """Yields the assumptions that the guarantee of a private search must state."""
    if parameters.search is not None:
        yield "selection"
        if parameters.search.earlier:
            yield "earlier searches"


def search_disagrees(ledger: Ledger, parameters: SearchedTraining) -> Iterator[str]:
    """Checks the best of several runs: the law of their number, the event of a run, and the settings chosen."""
    event, stated = ledger.events[0], parameters.search
    if len(ledger.events) != 1 or not isinstance(event, BestOfRuns) or event.steps != 1:
        yield "the parameters name a search, but the ledger holds something else than the best of its runs"
        return
    if stated is None:
        yield "the ledger holds the best of several runs, but the parameters name no search"
        return
    if stated.runs_law not in SHAPES:
        yield f"the law of the number of runs, {stated.runs_law}, is none that a search draws by"
    else:
        shape = SHAPES[stated.runs_law]
        yield from compare("shape of the law in the ledger", event.shape, shape, f"{stated.runs_law} has")
        if runs_exceed(event.mean_runs, event.shape, stated.most_runs):
            yield f"more than {stated.most_runs} runs are said never to happen, but the law gives them"
    yield from compare("mean number of runs in the ledger", event.mean_runs, stated.expected_runs, "the parameters say")
    yield from compare("steps of a run in the ledger", event.run_steps, parameters.steps_begun, "steps_begun says")
    if parameters.updates is not None and parameters.updates > parameters.steps_begun:
        yield f"{counted(parameters.updates, 'update was', 'updates were')} made in {parameters.steps_begun} steps"
    rate, noise = parameters.sample_rate, parameters.noise_multiplier
    yield from compare("rate in the ledger", event.sample_rate, rate, "the parameters say")
    yield from compare("noise multiplier in the ledger", event.noise_multiplier, noise, "the parameters say")
    yield from compare("parameter batches", parameters.batches, str(Batches.POISSON), "a search draws")
    released, steps = parameters.released_numbers, stated.most_runs * parameters.steps_begun
    if released is not None and steps > 0 and (released < steps or released % steps):
        yield f"released_numbers is {released}, which is not the same number in each of {steps} steps of all runs"
    yield from _unsearched_settings(stated.settings, parameters)


def _unsearched_settings(settings: str, parameters: SearchedTraining) -> Iterator[str]:
    """Yields a sentence for each setting of the run that is not among the values searched."""
    if not settings.split():
        yield "it is the best of several runs, and names no setting that was searched"
    for part in settings.split():
        name, _, values = part.partition("=")
        searched = getattr(parameters, name.removeprefix("--").replace("-", "_"), None)
        if searched is None or not any(_is_same(value, searched) for value in values.split(",")):
            yield f"{name} is {searched}, which is none of the {values} that were searched"
        elif isinstance(searched, int | float) and not all(map(_is_number, values.split(","))):
            yield f"{name} is a number, and not all of the {values} that were searched are"


def _is_same(text: str, value: object) -> bool:
    if not isinstance(value, int | float):
        return text == value
    return _is_number(text) and float(text) == value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


#: Statements of the guarantee of a private search that replace or extend those of a single run.
OF_SEARCHES = {
    "contribution": (
        "one example changes what noise is added to by the clip norm at most, and only the best of a secret, "
        f"random number of runs is released{TESTED}",
    ),
    "selection": (
        "how many runs there were, and how long they took, stays with whoever made them; the operating system's "
        "coins drew that number and the candidate of each run before the first; of the runs the best on held-out "
        "examples, which are taken to be public, is released alone",
    ),
    "earlier searches": (
        r"what \d+ earlier search(es)? of these data for the same output showed decided nothing here, and nobody was "
        "told of it",
    ),
}


def _unbounded(parameters: PrivateSteps, adaptive: bool) -> str:
    if not parameters.public_weight or adaptive:
        return ""
    return f"gradients of public records were not clipped, and nothing bounds what {parameters.optimizer} makes of them"


def private_run_warns(_: PrivacyReport, parameters: NoisyGradients) -> Iterator[str]:
    """Yields the warnings of a noisy run, or of the best run of a private search."""
    search = parameters.search if isinstance(parameters, SearchedTraining) else None
    yield OWNER
    if search is None:
        yield ONE_RUN
        return
    yield from (WHOLE_SEARCH, CHOSEN_BY_HELD_OUT)
    if search.earlier:
        yield form(EARLIER, searches=counted(search.earlier, "earlier search", "earlier searches"))


#: Statements of a guarantee with public records mixed in; ``verify.settings.public_records`` compares the numbers.
OF_PUBLIC_RECORDS = {
    public_records.MIXED: (
        r"the \d+ public records were chosen without looking at the private ones, and nothing in them needs "
        r"protection: each step adds [\d.e+-]+ times the mean gradient of \d+ of them, neither clipped nor noised, and "
        "no guarantee covers them",
    ),
    public_records.APART: (
        "no public record stands among the private ones: whole records were compared, texts but for case, white space "
        "and forms of letters, images and sounds number by number, so an altered copy or a part of a record is not "
        "found; with one found the run would have been refused, so neighbours are compared that differ in a record "
        "which is none of the public ones",
    ),
}

EXPECTED = ExpectedMethod(
    parameters=PrivateSteps,
    mechanisms=(Ledger,),
    disagreements=_disagreements,
    premises=_premises,
    accountants={"dp-sgd": TIGHT},
    statements=OF_SEARCHES | OF_PUBLIC_RECORDS,
    choices={"clipping": CLIPPING},
    warned=private_run_warns,
    noised=True,
    clipped=True,
    users=True,
    unbounded=_unbounded,
)
