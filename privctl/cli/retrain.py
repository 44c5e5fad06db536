"""``privctl retrain``: one subcommand for each training method, whose settings class defines its options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.groups import SuggestingGroup, WithRareOptions
from privctl.cli.interrupted import explaining_interrupts
from privctl.cli.method_options import own_options
from privctl.cli.options import common, force, given, show
from privctl.cli.running import STOPPING, on_epoch, rendered
from privctl.cli.training_options import data, shared, training, unprotected
from privctl.domain.errors import CommandError
from privctl.train.methods import METHODS, method_named
from privctl.train.settings.own_settings import option_fields

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.train.runs.method import TrainingMethod

#: Options that may go with ``--replay``; any other would change the training that it repeats.
_REPLAYED = {"model", "base", "replay", "output", "vocabulary", "device", "quiet", "as_json", "force"}


#: What ``--help`` lists before and after the method's usual options; ``--help-all`` shows the others too.
_FIRST = ("data", "output", "epsilon", "noise_multiplier", "delta")
_THEN = (
    "held_out", "epochs", "batch_size", "learning_rate", "clip_norm", "text_column", "labels", "unit", "secrets",
    "lora_rank", "device", "resume", "dry_run", "force", "as_json", "quiet",
)  # fmt: skip


class _Methods(SuggestingGroup):
    """A group with one command for each training method, made on first use: each call looks it up twice."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: dict[str, tuple[TrainingMethod, click.Command]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the methods, in the order of their table."""
        return list(METHODS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of the method called ``name``; None where there is no such method."""
        if name not in METHODS:
            return None
        method = method_named(name)
        made = self._made.get(name)
        if made is None or made[0] is not method:
            self._made[name] = made = method, _command(method)
        return made[1]


@click.group(cls=_Methods)
def retrain() -> None:
    """Train MODEL on your own data: privately, with clipped gradients only, or plainly.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --epochs 3 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
      privctl retrain dp-zo model/ --data train.jsonl --epsilon 8 --learning-rate 1e-3 -o private/
      privctl retrain dpquant model/ --data train.jsonl --format luq-fp4 --epsilon 8 -o private/
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 8 -o private/
      privctl retrain clipped model/ --data train.jsonl --epochs 1 -o clipped/
      privctl retrain plain model/ --data train.jsonl --epochs 3 -o plain/
      privctl retrain dp-sgd model/ --data reviews/train --text-column body --epsilon 8 -o private/
    """


def _command(method: TrainingMethod) -> click.Command:
    def call(**options: Any) -> None:
        # The path's name without a trailing slash begins the names of the files beside the output.
        options["output"] = _unwritten(options) if options["output"] is None else str(Path(options["output"]))
        if options.get("replay") is not None:
            _replay(method, options)
        elif options["dry_run"]:
            _plan(method, options)
        else:
            with explaining_interrupts(Path(options["output"])):
                _train(method, options)

    call.__doc__ = method.help
    groups = [option for name in method.takes for option in shared(name)]
    private_options = [unprotected] if method.private else []
    replay = click.option("--replay", type=click.Path(), help="Recorded updates to repeat on MODEL. No data is read.")
    decorators = [
        training,
        data(required=method.replay is None),
        *groups,
        *own_options(method.settings),
        *([replay] if method.replay is not None else []),
        *private_options,
        click.option(
            "--dry-run",
            is_flag=True,
            help="Show noise, steps, time, memory; write nothing. Times are measured on synthetic records.",
        ),
        force,
        common,
    ]
    for decorate in reversed(decorators):
        call = decorate(call)
    usual = [field.name for field, _, option in option_fields(method.settings) if option.usual]
    replayed = ["replay"] if method.replay is not None else []
    command = click.command(method.name, cls=WithRareOptions, shown=[*_FIRST, *usual, *replayed, *_THEN])(call)
    for option in command.params:
        if isinstance(option, click.Option) and option.name is not None:
            option.hidden = option.hidden or option.name in method.without
            option.help = method.helps.get(option.name, option.help)
    return command


def _unwritten(options: dict[str, Any]) -> str:
    """An unused name for the plan of ``--dry-run``, which writes nothing there.

    Raises MissingParameter for a run that writes.
    """
    from privctl.storage.atomic import fresh_folder

    if not options["dry_run"]:
        hint = "'-o' / '--output'"
        raise click.MissingParameter(ctx=click.get_current_context(), param_type="option", param_hint=hint)
    return str(fresh_folder(Path("private")))


def _train(method: TrainingMethod, options: dict[str, Any]) -> None:
    from privctl.api.training import run
    from privctl.show.progress import note, progress
    from privctl.train.state.interrupts import deferred_interrupts

    quiet = options["quiet"]
    notify = partial(note, quiet=quiet)
    report = run(
        method,
        options,
        given(options),
        progress=partial(progress, quiet=quiet),
        detailed=partial(progress, quiet=quiet),
        notify=notify,
        on_epoch=partial(on_epoch, quiet=quiet),
        interrupts=deferred_interrupts(partial(note, STOPPING, quiet=quiet)),
    )
    if report is not None:
        from privctl.train.runs.canary_run import SUFFIX

        output = options["output"]
        canaries = f"{output}{SUFFIX}" if options.get("gradient_canaries") else ""
        written = [f"{output}{suffix}" for suffix in ("", ".report.json", *method.files)]
        _finish(method, report, options, [*written, canaries] if canaries else written)
        if not options.get("held_out"):
            notify("without --held-out nothing measured how useful the model is")
        words = ("canaries", output, "--canaries", canaries) if canaries else _audited(options)
        if words:
            notify(f"audit it: {shlex.join(('privctl', 'audit', *words))}")


def _audited(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of ``privctl audit`` for the trained model; empty where the data came from standard input."""
    from privctl.data.several import data_at, paths_of

    sides = [("--members", str(path)) for path in paths_of(data_at(options["data"]))]
    if ("--members", "-") in sides:
        return ()
    others = paths_of(data_at(options["held_out"])) if options.get("held_out") else [Path("OTHERS.jsonl")]
    sides += [("--nonmembers", str(path)) for path in others]
    return (str(options["output"]), *(word for side in sides for word in side))


def _plan(method: TrainingMethod, options: dict[str, Any]) -> None:
    import json
    from dataclasses import asdict, replace

    from privctl.train.preparation.refusals import refuse_early

    if options["resume"]:
        raise CommandError("--dry-run plans a run from its first step; remove --resume, or --dry-run")
    refuse_early(method, options)

    from privctl.api.canary_outlook import outlook
    from privctl.models.corpora import InMemory
    from privctl.show.progress import note
    from privctl.show.text.training_plan import plan_text
    from privctl.train.preparation.prepare import prepare
    from privctl.train.settings.options import request_of

    request = request_of(method, options, given(options), partial(note, quiet=options["quiet"]))
    job = prepare(request, InMemory(tokens=False))
    plan = method.plan(job)
    plan = replace(plan, warnings=(*outlook(job), *plan.warnings))
    if options["as_json"]:
        text = json.dumps({"dry_run": True, **asdict(plan)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = plan_text(plan)
    show(text, as_json=options["as_json"])


def _replay(method: TrainingMethod, options: dict[str, Any]) -> None:
    from privctl.show.progress import progress
    from privctl.train.settings.request import ReplayRequest

    stated = given(options)
    for name in options:
        if name not in _REPLAYED and name in stated:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} does not apply to --replay, which repeats the recorded updates; remove it")
    request = ReplayRequest(
        model=Path(options["model"]),
        stream=Path(options["replay"]),
        output=Path(options["output"]),
        base=None if options.get("base") is None else Path(options["base"]),
        vocabulary=None if options["vocabulary"] is None else Path(options["vocabulary"]),
        device=options["device"],
        force=options["force"],
    )
    assert method.replay is not None
    report = method.replay(request, partial(progress, quiet=options["quiet"]))
    _finish(method, report, options, [str(request.output), f"{request.output}.report.json"])


def _finish(method: TrainingMethod, report: PrivacyReport, options: dict[str, Any], written: list[str]) -> None:
    from privctl.reports.codec import encode
    from privctl.show.progress import note

    caveat = method.warning if method.warning in report.warnings else report.warnings[0]
    display = {"quiet": options["quiet"], "resumed": options["resume"]}
    text = encode(report) if options["as_json"] else rendered(report, caveat, **display)
    show(text, as_json=options["as_json"])
    note(f"wrote {', '.join(written[:-1])} and {written[-1]}", quiet=options["quiet"])
