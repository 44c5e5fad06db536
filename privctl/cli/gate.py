"""``privctl gate``: check reports against a policy; the exit code is the result."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

import click

from privctl.cli.configured import own_environment
from privctl.cli.groups import WithRareOptions
from privctl.cli.options import MODEL, PATH, Command, common, given, verbose
from privctl.domain.errors import CommandError, ExitCode, FileSystemError
from privctl.domain.gate import GateJudgement, GateOutcome
from privctl.gate.settings import KEYS

_CODES = {
    GateOutcome.PASS: ExitCode.OK,
    GateOutcome.FAIL: ExitCode.REFUTED,
    GateOutcome.INCONCLUSIVE: ExitCode.BAD_INPUT,
}
#: Format -> the module that renders it.
FORMATS = {
    "text": "privctl.show.text.gate",
    "json": "privctl.show.formats.gate_json",
    "sarif": "privctl.show.formats.sarif",
    "junit": "privctl.show.formats.junit",
    "github": "privctl.show.formats.github",
    "markdown": "privctl.show.markdown.gate",
}
_SUMMARY = "GITHUB_STEP_SUMMARY"
#: Parameter -> its option, where the names differ.
_FLAGS = {"form": "--format", "as_json": "--json"}


def _settings(command: Command) -> Command:
    """Add an option for every key of a policy."""
    for key in reversed(KEYS.values()):
        flag = f"--{key.name.replace('_', '-')}"
        command = click.option(flag, key.name, metavar=key.metavar, help=key.about)(command)
    return command


#: What ``--help`` lists; ``--help-all`` shows the other options too.
_SHOWN = (
    "model", "policy", "form", "output", "init", "max_epsilon", "at_delta", "require", "max_auc", "max_tpr",
    "as_json", "quiet",
)  # fmt: skip


@click.command(cls=WithRareOptions, shown=_SHOWN)
@click.argument("reports", nargs=-1, type=PATH)
@click.option("--model", type=MODEL, help="The model to release; its files must be those that the reports describe.")
@click.option(
    "--policy",
    type=PATH,
    help="The policy; by default ./privctl-policy.toml, or [tool.privctl.gate] in ./pyproject.toml.",
)
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), help="Output format.  [default: text; json with --json]"
)
@click.option("-o", "--output", type=PATH, help="File to write to instead of standard output.")
@click.option("--init", is_flag=True, help="Print or write (-o) a starter policy that explains every key.")
@_settings
@common
def gate(
    reports: tuple[Path, ...],
    model: str | None,
    policy: Path | None,
    form: str | None,
    output: Path | None,
    init: bool,
    as_json: bool,
    quiet: bool,
    **settings: str | None,
) -> None:
    """Check REPORTS against a policy, and stop a build whose model does not meet it.

    Give the report that was written with the model, and those of its audits. Or give only the model: this sets --model,
    and the reports are those beside it that match its weights. Exit code 0: every requirement holds. 1: one does not.
    3: one cannot be decided, because an audit was too small, or a report or step is missing. 2: the policy or the call
    is malformed.

    \b
    Example:
      privctl gate --init -o privctl-policy.toml
      privctl gate m/ --max-epsilon 8
      privctl gate m.report.json m.audit.report.json --model m/
    \f
    The policy is read from privctl-policy.toml or pyproject.toml. A flag overrides an environment variable such as
    PRIVCTL_GATE_MAX_EPSILON, which overrides the file. Limits apply to the end of an audit's confidence interval, never
    to the estimate. The status of a guarantee is recomputed from its assumptions.

    \b
    More examples:
      privctl gate m.report.json --max-epsilon 8 --require proved
      privctl gate *.report.json --format sarif -o gate.sarif
    """
    from privctl.api.gating import judge_reports, reports_and_model
    from privctl.show.progress import note, progress
    from privctl.show.text.style import plain
    from privctl.storage.atomic import write_bytes

    if init:
        others = {"model": model, "policy": policy, "form": form, "as_json": as_json, **settings}
        _write_starter_policy(reports, given(others), output, quiet)
        return
    if as_json and form not in (None, "json"):
        raise CommandError(f"--json and --format {form} contradict each other; remove one")
    if not reports:
        raise CommandError("there are no reports to judge; give those of the model, such as model.report.json")
    shown, notify = partial(progress, quiet=quiet), partial(note, quiet=quiet)
    reports, at_hand = reports_and_model(reports, None if model is None else Path(model), shown, notify)
    form = form or ("json" if as_json else "text")
    _check_distinct(output, (*reports, *(() if policy is None else (policy,))))
    judgement = judge_reports(
        reports,
        model=at_hand,
        policy=policy,
        settings={name: text for name, text in settings.items() if text is not None},
        environment=os.environ,
    )
    detail = {"quiet": quiet, "verbose": verbose()} if form == "text" else {}
    text = importlib.import_module(FORMATS[form]).render(judgement, **detail)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_bytes(output, plain(text).encode(), public=not judgement.audited)
    if form == "github":
        _summarize(judgement)
    if output is not None:
        from privctl.show.text.gate import summary

        note(f"{summary(judgement)}; wrote {output}", quiet=quiet)
    raise click.exceptions.Exit(_CODES[judgement.outcome])


def _write_starter_policy(reports: tuple[Path, ...], others: Collection[str], output: Path | None, quiet: bool) -> None:
    """Print the starter policy, or write it to ``output``.

    Raises CommandError where a file exists there, because a policy is edited by hand, and for ``others``, the names of
    given options, such as a limit, of which nothing would be in the policy.
    """
    from privctl.gate.starter import STARTER
    from privctl.show.progress import note
    from privctl.storage.atomic import takes_a_stream, write_bytes

    if reports:
        raise CommandError("--init writes a policy and judges nothing; remove the reports, or --init")
    if others:
        flag = _FLAGS.get(min(others), f"--{min(others).replace('_', '-')}")
        raise CommandError(f"--init writes the same policy whatever else is given; remove {flag}, and edit the policy")
    if output is None:
        click.echo(STARTER, nl=False)
        return
    if os.path.lexists(output) and not takes_a_stream(output):
        raise CommandError(f"{output} exists, and --init replaces no policy; move it away or choose another --output")
    write_bytes(output, STARTER.encode(), replace=False, public=True)
    note(f"wrote {output}", quiet=quiet)


def _check_distinct(output: Path | None, inputs: tuple[Path, ...]) -> None:
    """Raise CommandError where ``output`` would overwrite a file that the gate reads."""
    if output is None:
        return
    from privctl.reports.files import require_not_weights_or_report
    from privctl.storage.atomic import require_absent

    for path in (*inputs, Path("privctl-policy.toml"), Path("pyproject.toml")):
        if os.path.realpath(path) == os.path.realpath(output):
            raise CommandError(f"{output} is an input of this command; choose another --output")
    require_absent(output, force=True)
    require_not_weights_or_report(output)


def _summarize(judgement: GateJudgement) -> None:
    """Append the result to the job summary of a GitHub workflow, a file that all steps append to."""
    from privctl.show.markdown.gate import render

    path = os.environ.get(_SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(render(judgement) + "\n")
    except OSError as error:
        raise FileSystemError(f"{path}, which {_SUMMARY} names, cannot be written: {error.strerror}") from None


# The policy reads the gate's variables, such as PRIVCTL_GATE_MAX_EPSILON, and refuses unknown ones.
own_environment(gate)
