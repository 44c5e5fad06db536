"""``privctl.retrain``: train a model by one of privctl's methods. The command calls ``run``."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from privctl.api.arguments import DataPaths, FilePath, accepting, as_tuple, check_numbers, data_or_none, path_at
from privctl.domain.errors import CommandError
from privctl.domain.progress import DetailedProgress, Notify, Progress, unseen
from privctl.domain.report import PrivacyReport

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.train.settings.request import Method, RetrainRequest
    from privctl.train.settings.session import EpochCallback, Interrupts, Session

_BATCH_SIZE = 64
_FILES = ("model", "output", "vocabulary", "secrets")


def run(
    method: Method,
    options: Mapping[str, Any],
    given: Container[str],
    *,
    progress: Progress,
    notify: Notify,
    on_epoch: EpochCallback,
    detailed: DetailedProgress | None = None,
    interrupts: Interrupts | None = None,
) -> PrivacyReport | None:
    """Train as the options of ``privctl retrain METHOD`` say, in all processes that torchrun started.

    Returns the report in the main process and None in the others. Raises the errors of ``retrain``.
    """
    from privctl.train.preparation.refusals import refuse_early

    refuse_early(method, options)

    from privctl.models.language import choose_device
    from privctl.parallel import start_workers
    from privctl.train.settings.options import request_of
    from privctl.train.settings.session import NO_INTERRUPT_HANDLING, Session

    request = request_of(method, options, given, notify)
    with start_workers(choose_device(request.device)) as workers:
        main = workers.is_main
        session = Session(
            workers=workers,
            progress=progress if main else unseen,
            detailed=detailed if main else None,
            on_epoch=on_epoch if main else lambda _: None,
            interrupts=NO_INTERRUPT_HANDLING if interrupts is None else interrupts,
            notify=notify if main else lambda _: None,
        )
        runs = method.search(request)
        return _one_run(request, session) if runs is None else _searched(request, runs, session)


def _one_run(request: RetrainRequest, session: Session) -> PrivacyReport | None:
    from privctl.api.canary_outlook import outlook
    from privctl.models.token_cache import TokenCache
    from privctl.train.preparation.prepare import prepare
    from privctl.train.run import run_training

    place = request.output.with_name(f"{request.output.name}.tokens")
    with TokenCache(place, session.workers) as cache:
        job = prepare(request, cache, session.workers)
        if session.workers.is_main:
            for sentence in outlook(job):
                session.notify(sentence)
        return run_training(job, session)


def _searched(request: RetrainRequest, runs: NumberOfRuns, session: Session) -> PrivacyReport:
    """Run a search over settings and return the report of the best run. Only the progress of the runs is shown."""
    from contextlib import nullcontext
    from dataclasses import replace

    from privctl.train.search.runs import run_search

    if session.workers.size > 1:
        raise CommandError("--search trains in one process; call it without torchrun")
    request.method.check(request)
    with session.interrupts as stop:
        quiet = replace(session, detailed=None, on_epoch=lambda _: None, interrupts=nullcontext(stop))
        warned: set[str] = set()

        def once(sentence: str) -> None:
            if sentence not in warned:
                warned.add(sentence)
                session.notify(sentence)

        def train(retrain_request: RetrainRequest) -> PrivacyReport:
            report = _one_run(retrain_request, replace(quiet, notify=once))
            assert report is not None
            return report

        return run_search(request, runs, train, session.notify)


@accepting(heldout="held_out")
def retrain(
    method: str,
    model: FilePath,
    *,
    data: DataPaths,
    output: FilePath,
    held_out: DataPaths | None = None,
    task: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int = _BATCH_SIZE,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    momentum: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    clip_norm: float | None = None,
    from_scratch: bool = False,
    vocabulary: FilePath | None = None,
    norm: str | None = None,
    train: str | Sequence[str] = (),
    lora_rank: int | None = None,
    labels: str | Sequence[str] | None = None,
    unit: str | None = None,
    long: str | None = None,
    max_length: int | None = None,
    response_only: bool = False,
    resize: tuple[int, int] | None = None,
    dropout: bool = False,
    micro_examples: int = 64,
    micro_tokens: int | None = None,
    device: str | None = None,
    bf16: bool | None = None,
    checkpointing: bool = False,
    fsdp: bool = False,
    seed: int = 0,
    resume: bool = False,
    log: str | Sequence[str] = (),
    force: bool = False,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
    on_epoch: EpochCallback = lambda _: None,
    **of_method: Any,
) -> PrivacyReport:
    """Train ``model`` on ``data`` by ``method``: dp-sgd, dp-zo, dpquant, ferret, clipped or plain.

    The arguments are the options of ``privctl retrain METHOD``. ``batch_size`` is in examples (the expected number for
    Poisson batches), ``clip_norm`` is an L2 norm (1 by default), and ``noise_multiplier`` is the noise standard
    deviation / clip norm. ``of_method`` are options that only some methods have, such as ``schedule``, ``secrets`` or
    ``release``. ``labels`` are the class names in order. The model is written to the directory ``output`` and its
    report beside it.

    ``on_epoch`` is called with each epoch's held-out measures. An interrupt ends the training at once; the last saved
    state is in ``OUTPUT.run``, and ``resume`` continues from it.

    Returns the report. That of a private method has the guarantee, and the state of each assumption that it rests on.

    Raises CommandError for options that are out of range, unknown to the method, or do not go together; InputError for
    a model or data that cannot be trained.
    """
    options: dict[str, Any] = {**locals()}
    for name in ("method", "progress", "notify", "on_epoch", "of_method"):
        del options[name]
    for name in ("epsilon", "noise_multiplier", "delta", "clip_norm"):
        if (value := options.pop(name)) is not None:
            of_method[name] = value
    chosen, own_options = _method_and_settings(method, of_method)
    options |= own_options
    options |= {name: str(path_at(options[name], name)) for name in _FILES if options.get(name) is not None}
    options |= {
        "data": data_or_none(data),
        "held_out": data_or_none(held_out),
        "public": data_or_none(options.get("public")),
        "train": as_tuple(train),
        "log": as_tuple(log),
        "labels": labels if labels is None or isinstance(labels, str) else ",".join(labels),
    }
    check_numbers("retrain", options)
    given = {"batch_size"} if batch_size != _BATCH_SIZE else set()
    report = run(chosen, options, given, progress=progress, notify=notify, on_epoch=on_epoch)
    if report is None:
        raise CommandError("only the main process of torchrun has a report; call this in one process")
    return report


def _method_and_settings(name: str, stated: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """The method ``name``, and the values of its own options: as ``stated``, or the defaults.

    Raises CommandError for a method or an option that does not exist, and for a required option that is missing.
    """
    from dataclasses import MISSING

    from privctl.train.methods import METHODS, method_named
    from privctl.train.settings.own_settings import option_fields

    if name not in METHODS:
        raise CommandError(f"privctl has no training method {name!r}; choose from {', '.join(METHODS)}")
    method = method_named(name)
    own_options = {field.name: field.default for field, _, _ in option_fields(method.settings)}
    known = _option_names(method)
    if unknown := sorted(stated.keys() - known):
        message = f"--{unknown[0].replace('_', '-')} is no option of {name}"
        if takers := [method for method in METHODS if unknown[0] in _option_names(method_named(method))]:
            raise CommandError(f"{message}; {', '.join(takers)} {'has' if len(takers) == 1 else 'have'} it")
        near = get_close_matches(unknown[0], [*sorted(known), *retrain.__annotations__])
        raise CommandError(
            f"{message}, whose own are {', '.join(sorted(known))}" + (f"; did you mean {near[0]}?" if near else "")
        )
    values = own_options | dict(stated)
    if missing := [option for option, value in values.items() if value is MISSING]:
        raise CommandError(f"{name} needs --{missing[0].replace('_', '-')}")
    return method, values


def _option_names(method: Method) -> set[str]:
    """The names of the options of ``method`` that not all methods have."""
    from privctl.train.settings.method_settings import GROUPS
    from privctl.train.settings.own_settings import option_fields

    own_options = {field.name for field, _, _ in option_fields(method.settings)}
    shared = {option for group in method.takes for option in GROUPS[group]}
    return {*shared, *own_options, *(("show_unprotected",) if method.private else ())}
