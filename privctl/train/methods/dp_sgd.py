"""DP-SGD (Abadi et al. 2016): random batches, each example's gradient clipped, noise on their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.domain.errors import CommandError
from privctl.domain.events import Batches
from privctl.domain.ranges import AMOUNT, BANDS, BUFFERS, FRACTION, IN_GROUP, Range
from privctl.domain.shared_records import SharedRecords
from privctl.train.runs.method import TrainingMethod
from privctl.train.settings.adaptive_clipping import LEARNING_RATE, AdaptiveClipping, default_count_stddev
from privctl.train.settings.choices import ClippingStyle, RunsLaw
from privctl.train.settings.method_settings import MethodSettings, option
from privctl.train.settings.searching import (
    check_search,
    expected_runs_option,
    number_of_runs,
    runs_law_option,
    search_option,
)

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.domain.report import PrivacyReport
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest
    from privctl.train.settings.session import Session

TUNING = (
    "the guarantee is for this one run, given that it came to its end: settings chosen by looking at other runs on the "
    "same data cost more"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdSettings(MethodSettings):
    """``batches``: how they are drawn. ``bands``: over how many steps noise is correlated; None for 1.

    ``buffers``: by how many noise is correlated over all steps, in passes of one order; None for none.
    ``max_records_per_user``: the most records of one user that are used, each clipped by itself; None clips all as one.
    ``shared_records``: which are used of records that name several users; None where each names one.
    ``target_unclipped_quantile``: the clip norm changes until this share of gradients is not clipped; None keeps it.
    ``clip_norm_learning_rate`` and ``unclipped_count_stddev`` say how fast, and with which noise.
    ``gradient_canaries``: so many gradients of the clip norm are mixed in by coins, to audit the training itself.
    ``search``: settings to choose among by results, in a random number of runs of the mean ``expected_runs``.
    """

    batches: Batches = option(
        Batches.POISSON,
        "How batches are drawn: each record with its own coin in every step, or in one random step of each pass.",
        choices=(str(Batches.POISSON), str(Batches.BALLS_AND_BINS)),
    )
    bands: int | None = option(
        None,
        "Correlate the noise of so many steps, so that it cancels in part where they add up; parts of the data take "
        "turns, one a step. `privctl account --mechanism banded` finds the best number.  [default: 1]",
        within=BANDS,
    )
    buffers: int | None = option(
        None,
        "Correlate the noise of all steps by so many buffers (BLT), for long runs; every record is used once an epoch, "
        "always in the same place, and nothing is amplified. `privctl account --mechanism blt` shows what it is worth.",
        within=BUFFERS,
    )
    max_records_per_user: int | None = option(
        None,
        "With --unit: clip every record by itself, use the first so many of each user, and protect them together; "
        "without it, all of a user's records are clipped as one.",
        within=IN_GROUP,
    )
    shared_records: SharedRecords | None = option(
        None,
        "Records may name several users, in a list: use all and refuse data where a user is in more than "
        "--max-records-per-user, or choose such that nobody is, for neighbours in which records name the same users: "
        "greedy, most of them (slower), or the first of each user.",
    )
    target_unclipped_quantile: float | None = option(
        None,
        "Adaptive clipping: change --clip-norm from step to step until this share of the gradients is not clipped.",
        within=FRACTION,
    )
    clip_norm_learning_rate: float | None = option(
        None,
        "How fast the clip norm follows --target-unclipped-quantile: the factor on its logarithm.  [default: "
        f"{LEARNING_RATE:g}]",
        within=AMOUNT,
    )
    unclipped_count_stddev: float | None = option(
        None,
        "Standard deviation of the noise on the number of unclipped gradients of a batch, which is released too.  "
        "[default: batch size / 20, at least twice the noise multiplier]",
        within=AMOUNT,
    )
    gradient_canaries: int | None = option(
        None,
        "Audit run: mix in so many canary gradients, each by a coin, for a lower bound on epsilon; not for release.",
        within=Range(low=2, high=100_000),
    )
    search: str | None = search_option()
    expected_runs: float | None = expected_runs_option()
    runs_law: RunsLaw | None = runs_law_option()


def _bands(request: RetrainRequest) -> int:
    return request.settings_as(DpSgdSettings).bands or 1


def _buffers(request: RetrainRequest) -> int | None:
    return request.settings_as(DpSgdSettings).buffers


def _group(request: RetrainRequest) -> int | None:
    return request.settings_as(DpSgdSettings).max_records_per_user


def _shared(request: RetrainRequest) -> SharedRecords | None:
    return request.settings_as(DpSgdSettings).shared_records


def _check_group(request: RetrainRequest) -> None:
    """Raises CommandError for what users whose records are clipped one by one do not go with."""
    settings = request.settings_as(DpSgdSettings)
    if request.data.unit is None:
        raise CommandError("--max-records-per-user needs --unit, the field that names a record's user")
    for given, what in (
        (request.secrets is not None, "--secrets"),
        (settings.gradient_canaries is not None, "--gradient-canaries"),
        (settings.batches is not Batches.POISSON, f"--batches {settings.batches}"),
        (_bands(request) > 1, "--bands"),
        (_buffers(request) is not None, "--buffers"),
        (settings.target_unclipped_quantile is not None, "--target-unclipped-quantile"),
        (_search(request) is not None, "--search"),
    ):
        if given:
            raise CommandError(f"--max-records-per-user is accounted for in plain Poisson steps; remove it, or {what}")


def _batches(request: RetrainRequest) -> Batches:
    if _buffers(request) is not None:
        return Batches.FIXED_ORDER
    return Batches.CYCLIC_POISSON if _bands(request) > 1 else request.settings_as(DpSgdSettings).batches


def _search(request: RetrainRequest) -> NumberOfRuns | None:
    return number_of_runs(request.settings_as(DpSgdSettings))


def _check_search(request: RetrainRequest) -> None:
    settings = request.settings_as(DpSgdSettings)
    unsearched = (
        ("--bands", _bands(request) > 1),
        ("--buffers", _buffers(request) is not None),
        ("--batches", settings.batches is not Batches.POISSON),
        ("--gradient-canaries", settings.gradient_canaries is not None),
        ("--target-unclipped-quantile", settings.target_unclipped_quantile is not None),
    )
    check_search(request, settings, unsearched)


def _adaptive(request: RetrainRequest, noise: float, batch_size: float) -> AdaptiveClipping | None:
    settings = request.settings_as(DpSgdSettings)
    if settings.target_unclipped_quantile is None:
        return None
    return AdaptiveClipping(
        quantile=settings.target_unclipped_quantile,
        learning_rate=settings.clip_norm_learning_rate or LEARNING_RATE,
        count_stddev=settings.unclipped_count_stddev or default_count_stddev(noise, batch_size),
    )


def _check(request: RetrainRequest) -> None:
    if _group(request) is not None:
        _check_group(request)
    elif _shared(request) is not None:
        raise CommandError(
            "--shared-records needs --max-records-per-user: a record of several users cannot be clipped as part of one"
        )
    _check_search(request)
    _check_adaptive(request)
    if _bands(request) > 1 or _buffers(request) is not None:
        _check_correlated(request)
    elif _batches(request) is not Batches.POISSON:
        for flag, given in (
            ("--secrets", request.secrets is not None),
            ("--gradient-canaries", request.settings_as(DpSgdSettings).gradient_canaries is not None),
        ):
            if given:
                raise CommandError(f"{flag} needs Poisson batches; remove it, or --batches {_batches(request)}")
    if request.fsdp and request.settings_as(DpSgdSettings).gradient_canaries is not None:
        raise CommandError("--gradient-canaries are added to whole gradients, and --fsdp shards them; remove one")
    if request.secrets is not None and request.settings_as(DpSgdSettings).gradient_canaries is not None:
        raise CommandError(
            "--gradient-canaries are drawn at one rate, and --secrets sets one for each record; remove one"
        )


def _check_adaptive(request: RetrainRequest) -> None:
    """Raises CommandError for what has not been worked out for a clip norm that changes."""
    settings, flag = request.settings_as(DpSgdSettings), "--target-unclipped-quantile"
    if settings.target_unclipped_quantile is None:
        for name in ("clip_norm_learning_rate", "unclipped_count_stddev"):
            if getattr(settings, name) is not None:
                raise CommandError(f"--{name.replace('_', '-')} is a setting of adaptive clipping; give {flag} too")
        return
    for given, what in (
        (request.clipping is not ClippingStyle.FLAT, f"--clipping {request.clipping} does not clip whole gradients"),
        (_bands(request) > 1, "--bands correlates the noise of steps, which needs one clip norm for all"),
        (_buffers(request) is not None, "--buffers correlates the noise of steps, which needs one clip norm for all"),
        (request.secrets is not None, "--secrets plans the noise of one release a step"),
    ):
        if given:
            raise CommandError(f"{flag} changes the clip norm by how many gradients it clips, and {what}; remove one")


def _check_correlated(request: RetrainRequest) -> None:
    """Raises CommandError for what has not been worked out for correlated noise."""
    settings = request.settings_as(DpSgdSettings)
    buffered = settings.buffers is not None
    flag = "--buffers" if buffered else "--bands"
    batches = "uses no record in a fixed place" if buffered else "takes no parts in turn"
    for given, what in (
        (buffered and _bands(request) > 1, "--bands does so in another way"),
        (request.secrets is not None, "--secrets draws each record at a rate of its own"),
        (settings.gradient_canaries is not None, "--gradient-canaries are judged step by step"),
        (settings.batches is not Batches.POISSON, f"--batches {settings.batches} {batches}"),
        (request.fsdp, "--fsdp keeps no noise of earlier steps"),
    ):
        if given:
            raise CommandError(f"{flag} correlates the noise of steps, and {what}; remove one")


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.runs.canary_run import CanaryRun
    from privctl.train.runs.gradient_training import NO_HOOKS, MethodHooks, train_by_gradients

    count = job.request.settings_as(DpSgdSettings).gradient_canaries
    if count is None:
        return train_by_gradients(job, session, NO_HOOKS)
    canaries = CanaryRun(count)
    hooks = MethodHooks(canaries=canaries.start, amend=canaries.amend, beside=canaries.staged)
    return train_by_gradients(job, session, hooks)


METHOD = TrainingMethod(
    name="dp-sgd",
    help="""Train MODEL with an (epsilon, delta) guarantee: clipped gradients, random batches, noise.

    The noisy gradients go to any --optimizer: sgd makes it DP-SGD proper, adam DP-Adam, and adamw, the default, DP-Adam
    with decoupled weight decay.

    MODEL is a Hugging Face directory or a .safetensors file in one; a directory with a config.json and no weights is
    trained from scratch. Ctrl-C saves the state after the current step, and --resume continues from there; the state is
    kept in OUTPUT.run until the run is complete.

    Before the output gets its final name, it is loaded by transformers alone and compared with the trained network.
    Name the classes of a classifier with --labels: names collected from the private data void the guarantee. Batch
    normalisation mixes examples and is refused; with --norm frozen it keeps its running statistics, which must be
    public, like the starting weights. --convert batch-norm moves them into the layer's scales and shifts first, and
    leaves the statistics of a new layer, 0 and 1. The architecture stays, so that transformers loads the model with the
    accuracy that the report states: no config.json can name group normalisation in its place.

    MODEL may be a LoRA adapter's directory as peft writes it; its base is frozen, and the output is an adapter. With
    --lora-rank new adapters are trained and merged into the weights, or written alone with --save-adapter.

    With --bands, noise is correlated from step to step (matrix factorization), which leaves less of it in the weights
    where batches are large or epochs few. The state of an unfinished run then holds the noise of so many steps, twice
    the size of the gradients each.

    With --buffers, noise is correlated over all steps by a few buffers (BLT), for runs of so many steps that bands
    would take too much memory. Every record is used once an epoch, in an order that does not change, and no
    amplification by sampling is counted. The state of an unfinished run holds each buffer, twice the size of the
    gradients.

    With --search, settings are chosen by results and the guarantee is that of the choice. The number of runs and the
    settings of each are drawn first; the runs are made in OUTPUT.search, the best by held-out loss is released, and the
    others are deleted. The held-out examples choose, so they are taken to be public, and no guarantee covers them. Keep
    the number of runs, and how long the search took, to yourself. `privctl account --mechanism search` shows the price.

    With --target-unclipped-quantile, the clip norm follows the gradients (adaptive clipping), and --clip-norm is only
    where it begins. Each step then also releases how many gradients of its batch are not clipped, with noise; epsilon
    covers both, and the noise on the sum rises by some percent at most in return. The report holds the clip norms.

    With --shared-records, the field of --unit may hold a list of users (a JSON array, also in the cell of a table, or a
    list in parquet and Arrow). Each user is then protected together with all records that name them. With all, every
    record is used, and a user may be added or removed with their records. With the other rules no more than
    --max-records-per-user of a user's records are used, and what is protected is what they hold, while which users each
    record names is taken to be public: without a user, other records might have been chosen. --dry-run shows what each
    rule keeps.

    With --secrets, every record is drawn with the probability given by the plan, and the report states what an attacker
    may still learn about each secret, beside the guarantee for one record. The plan sets the steps, the expected batch
    size and the least noise; --noise-multiplier or --epsilon may ask for more noise.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --held-out test.jsonl --epsilon 8 \\
          --epochs 3 --batch-size 512 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --task text-classification \\
          --labels 0,1 --epsilon 8 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --batch-size 512 --bands 2 \\
          -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --epochs 10 \\
          --batch-size 512 --buffers 3 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --held-out public.jsonl --epsilon 8 \\
          --search 'learning-rate=1e-4,3e-4,1e-3 clip-norm=0.5,1' --expected-runs 5 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 \\
          --target-unclipped-quantile 0.5 -o private/
      privctl retrain dp-sgd model/ --data mails.jsonl --epsilon 8 --unit people \\
          --max-records-per-user 4 --shared-records greedy -o private/
      privctl retrain dp-sgd base/ --data train.jsonl --epsilon 8 --lora-rank 8 --save-adapter \\
          -o adapter/
      torchrun --nproc-per-node 2 -m privctl retrain dp-sgd model/ --data train.jsonl \\
          --epsilon 8 -o private/
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 --batch-size 64 \\
          -o plan.safetensors
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
    """,
    takes=("clipping", "passes", "schedule", "budget", "secrets", "convert", "adapters"),
    shards=True,
    noised=True,
    private=True,
    guaranteed=True,
    warning=TUNING,
    settings=DpSgdSettings,
    sampled=lambda _: True,
    batches=_batches,
    bands=_bands,
    buffers=_buffers,
    group=_group,
    shared=_shared,
    search=_search,
    adaptive=_adaptive,
    check=_check,
    run=_run,
)
