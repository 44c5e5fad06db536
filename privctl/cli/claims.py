"""``privctl claims``: judge the claims of papers, or one claim given by options."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.groups import SuggestingGroup
from privctl.cli.numbers import AMOUNT, COUNT, flag
from privctl.cli.options import PATH, common, force, show, to_standard_output, verbose
from privctl.domain.errors import CommandError, ExitCode
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privctl.domain.report import Omission, PrivacyReport
    from privctl.domain.verdict import Verdict
    from privctl.show.text.claims import ClaimRow
    from verify.papers.claim import JudgedClaim, Judgement
    from verify.prove.prover import Prover

_EXIT = {
    Outcome.PROVED: ExitCode.OK,
    Outcome.CONSISTENT: ExitCode.OK,
    Outcome.REFUTED: ExitCode.REFUTED,
    Outcome.INCONCLUSIVE: ExitCode.BAD_INPUT,
}
#: The most characters of a number.
_LONGEST = 60


class _Exact(click.ParamType[Fraction]):
    """A decimal or a fraction, kept exactly: 1e-6 is 1/10^6, not the nearest double."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return ``value`` as a fraction. Raises CommandError for a negative number."""
        if isinstance(value, Fraction):
            return value
        _, _, exponent = str(value).lower().partition("e")
        try:
            if len(str(value)) > _LONGEST or (exponent and abs(int(exponent)) > 400):
                raise ValueError
            number = Fraction(str(value))
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value} is not a number such as 1e-6, 4.225 or 1/3", param, ctx)
        if number < 0:
            raise CommandError(f"{flag(param)} is {value}; it must be at least 0")
        return number


_NUMBER = _Exact()


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--export``, ``--timeout``, ``--output`` and the options that all commands have."""
    command = force(common(command))
    for option in (
        click.option("-o", "--output", type=PATH, help="Also write the JSON report here."),
        click.option(
            "--timeout", type=AMOUNT, default=10.0, show_default=True, help="Time limit for each proof, in seconds."
        ),
        click.option("--export", type=PATH, help="Folder to write the proofs to, as SMT-LIB."),
    ):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def claims() -> None:
    """Judge published privacy claims by proofs that anyone can check.

    \b
    Example:
      privctl claims papers
      privctl claims check gaussian --epsilon 1 --delta 1e-6 --noise-multiplier 4.225
    """


@claims.command("papers")
@click.option("--paper", "papers", multiple=True, metavar="NAME", help="Only the claims of this paper (repeatable).")
@_shared
def papers_command(papers: tuple[str, ...], **options: Any) -> None:
    """Judge the privacy claims of five papers, and statements that private training relies on, one by one.

    PROVED and REFUTED follow from exact numbers and a solver's proof; a refutation names what to check by hand.
    CONSISTENT means that an example agrees, which proves nothing. NAME is dp-weights, ferret, hush, dpquant or poster;
    or correlated (noise), batches, steps (adaptive clipping, zeroth order, public gradients, search), or releases
    (counts, answers, choices, zCDP). Exit code 0: every verdict is the expected one. 1: at least one is not. 3: at
    least one was not reached.

    \b
    Example:
      privctl claims papers
      privctl claims papers --paper dp-weights --export proofs/
      privctl claims papers --paper correlated --paper batches --paper steps
    """
    from verify.papers.book import chosen_papers, run, unchecked_statements, unexpected_rows
    from verify.prove.prover import Prover

    names = chosen_papers(papers)
    _check_output(options)
    with Prover(_timeout(options)) as prover:
        rows = list(run(names, prover))
    shown = [_as_row(row) for row in rows]
    parameters = {"paper": list(names), "timeout": options["timeout"]}
    _finish(shown, [row.verdict for row in rows], parameters, unchecked_statements(names), prover, options)
    if unexpected_rows(rows):
        click.get_current_context().exit(ExitCode.REFUTED)
    if any(row.undecided for row in rows):
        click.get_current_context().exit(ExitCode.BAD_INPUT)


@claims.group("check", cls=SuggestingGroup)
def check() -> None:
    """Judge one claim given by options. Exit code 0: proved, 1: refuted, 3: neither.

    \b
    Example:
      privctl claims check gaussian --epsilon 1 --delta 1e-6 --noise-multiplier 4.225
      privctl claims check ferret --groups 2 --steps 1000 --sample-rate 0.005 \\
          --fire-probability 0.0721 --nats 0.5
    """


_EPSILON = click.option("--epsilon", type=_NUMBER, required=True, help="The claimed epsilon.")
_DELTA = click.option("--delta", type=_NUMBER, required=True, help="The claimed delta, such as 1e-6.")
_STEPS = click.option(
    "--steps", type=COUNT, default=1, show_default=True, help="Number of times the mechanism is applied."
)
_RATE = click.option(
    "--sample-rate", type=_NUMBER, default="1", show_default=True, help="Sampling rate of Poisson batches."
)


@check.command("gaussian")
@_EPSILON
@_DELTA
@click.option("--noise-multiplier", type=_NUMBER, required=True, help="Noise standard deviation / sensitivity.")
@_STEPS
@_RATE
@_shared
def gaussian_command(**options: Any) -> None:
    """Is Gaussian noise (epsilon, delta)-DP? Exact without sampling; by bounds from both sides with it.

    \b
    Example:
      privctl claims check gaussian --epsilon 1 --delta 1e-6 --noise-multiplier 4.225
      privctl claims check gaussian --epsilon 1 --delta 1e-5 --noise-multiplier 1.36 \\
          --sample-rate 0.01 --steps 1000
    """
    from verify.papers.checks import check_gaussian

    _check(check_gaussian, ("epsilon", "delta", "noise_multiplier", "steps", "sample_rate"), options)


@check.command("laplace")
@_EPSILON
@click.option("--delta", type=_NUMBER, default="0", show_default=True, help="The claimed delta.")
@click.option("--scale", type=_NUMBER, required=True, help="Noise scale / sensitivity.")
@_STEPS
@_RATE
@_shared
def laplace_command(**options: Any) -> None:
    """Is Laplace noise (epsilon, delta)-DP?

    \b
    Example:
      privctl claims check laplace --epsilon 1 --scale 1
      privctl claims check laplace --epsilon 5 --delta 1e-5 --scale 2 --steps 10
    """
    from verify.papers.checks import check_laplace

    _check(check_laplace, ("epsilon", "delta", "scale", "steps", "sample_rate"), options)


@check.command("ferret")
@click.option("--groups", type=COUNT, required=True, help="Number of groups of tensors.")
@click.option("--steps", type=COUNT, required=True, help="Number of training steps.")
@click.option("--sample-rate", type=_NUMBER, required=True, help="Probability that a step uses an example.")
@click.option("--fire-probability", type=_NUMBER, required=True, help="Probability that a group publishes in a step.")
@click.option("--nats", type=_NUMBER, help="The claimed mutual information, in nats.")
@click.option(
    "--delta", type=_NUMBER, help="Instead of --nats, the claimed delta of (epsilon, delta)-DP at any epsilon."
)
@_shared
def ferret_command(**options: Any) -> None:
    """Do published sign bits reveal at most the claimed nats, or reach the claimed delta?

    \b
    Example:
      privctl claims check ferret --groups 2 --steps 1000 --sample-rate 0.005 \\
          --fire-probability 0.0721 --nats 0.5
    """
    from verify.papers.checks import check_ferret

    if (options["nats"] is None) == (options["delta"] is None):
        raise CommandError("the claim is either --nats or --delta; give exactly one of them")
    _check(check_ferret, ("groups", "steps", "sample_rate", "fire_probability", "nats", "delta"), options)


@check.command("secret")
@click.option(
    "--record",
    "records",
    multiple=True,
    required=True,
    help="A record's sampling probability, P or PxCOUNT (repeatable).",
)
@click.option("--noise-multiplier", type=_NUMBER, required=True, help="Noise standard deviation / clip norm.")
@click.option("--steps", type=COUNT, required=True, help="Number of training steps.")
@click.option("--prior", type=_NUMBER, required=True, help="Probability of guessing the secret without the model.")
@click.option("--posterior", type=_NUMBER, required=True, help="The claimed bound on the probability of a right guess.")
@_shared
def secret_command(**options: Any) -> None:
    """Is a secret in several records guessed with at most the claimed posterior probability?

    \b
    Example:
      privctl claims check secret --record 0.005x10 --noise-multiplier 1.378 --steps 500 \\
          --prior 0.01 --posterior 0.2
    """
    from verify.papers.checks import check_secret

    options["chances"] = [chance for text in options["records"] for chance in _records(text)]
    _check(check_secret, ("chances", "noise_multiplier", "steps", "prior", "posterior"), options)


def _check(judge: Callable[..., Judgement], names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Judge one claim, print and write the result, and exit with its exit code."""
    from privctl.domain.verdict import Verdict
    from privctl.show.text.claims import ClaimRow
    from verify.papers.book import CITED
    from verify.prove.prover import Prover

    _check_output(options)
    given = {name: options[name] for name in names if options[name] is not None}
    with Prover(_timeout(options)) as prover:
        judgement = judge(prover, **given)
    parameters = {k: float(v) if isinstance(v, Fraction) else v for k, v in given.items() if k != "chances"}
    parameters |= {"record": list(options["records"])} if "chances" in given else {}
    command = click.get_current_context().command.name or ""
    settings = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in parameters.items()]
    statement = f"{command}, {', '.join(settings)}"
    row = ClaimRow(
        paper="",
        key="",
        statement=statement,
        outcome=judgement.outcome,
        expected=None,
        reason=judgement.reason,
        holds=judgement.holds,
        witness=judgement.witness,
        theorems=len(prover.proofs),
        seconds=sum(proof.seconds for proof in prover.proofs),
    )
    verdict = Verdict(subject=statement, outcome=judgement.outcome, reason=judgement.in_full)
    reported = {"claim": command, **parameters, "timeout": options["timeout"]}
    _finish([row], [verdict], reported, (CITED,), prover, options)
    if _EXIT[judgement.outcome] is not ExitCode.OK:
        click.get_current_context().exit(_EXIT[judgement.outcome])


def _finish(
    rows: Sequence[ClaimRow],
    verdicts: Sequence[Verdict],
    parameters: Mapping[str, Any],
    unchecked: Sequence[Omission],
    prover: Prover,
    options: Mapping[str, Any],
) -> None:
    """Print the verdicts, write their report, and export the proofs."""
    from privctl.reports.codec import encode
    from privctl.show.progress import note
    from privctl.show.text.claims import book_text, claim_text
    from privctl.storage.commit import write_together
    from verify.prove.smtlib import export

    text = encode(_report(verdicts, parameters, unchecked))
    standard = to_standard_output(options["output"])
    if options["as_json"] or standard:
        show(text, as_json=True)
    elif rows[0].paper:
        show(book_text(rows, unchecked, verbose=verbose()))
    else:
        show(claim_text(rows[0]))
    report = {} if options["output"] is None or standard else {options["output"]: text.encode()}
    if options["export"] is None:
        write_together(report, replace=options["force"], public=True)
    else:
        files = export(prover.proofs, options["export"], report)
    if report:
        note(f"wrote {options['output']}", quiet=options["quiet"])
    if options["export"] is not None:
        note(f"wrote {counted(len(files), 'file')} to {options['export']}", quiet=options["quiet"])


def _report(verdicts: Sequence[Verdict], parameters: Mapping[str, Any], unchecked: Sequence[Omission]) -> PrivacyReport:
    from privctl.domain.report import PrivacyReport
    from privctl.reports.files import now, versions

    return PrivacyReport(
        step="claims",
        created=now(),
        versions=versions(("z3-solver", "python-flint")),
        parameters=dict(parameters),
        verdicts=tuple(verdicts),
        omissions=tuple(unchecked),
    )


def _as_row(row: JudgedClaim) -> ClaimRow:
    from privctl.show.text.claims import ClaimRow

    judgement = row.judgement
    return ClaimRow(
        paper=row.paper,
        key=row.claim.key,
        statement=row.claim.statement,
        outcome=judgement.outcome,
        expected=row.claim.expected,
        reason=judgement.reason,
        holds=judgement.holds,
        witness=judgement.witness,
        theorems=len(row.proofs),
        seconds=row.seconds,
    )


def _check_output(options: Mapping[str, Any]) -> None:
    """Raise CommandError or InputError for outputs that cannot be written, before anything is proved."""
    from privctl.reports.files import require_not_weights_or_report
    from privctl.storage.atomic import require_absent

    if options["output"] is not None:
        require_absent(options["output"], options["force"])
        require_not_weights_or_report(options["output"], but="claims")
    if options["export"] is not None and options["export"].is_file():
        raise CommandError(f"--export {options['export']} is a file; name a folder for the proofs")


def _timeout(options: Mapping[str, Any]) -> float:
    timeout = float(options["timeout"])
    if not 0 < timeout <= 3600:
        raise CommandError(f"--timeout is {timeout:g}; it must be above 0 and at most 3600 seconds")
    return timeout


def _records(text: str) -> list[Fraction]:
    """The probabilities that ``P`` or ``PxCOUNT`` denotes."""
    chance, _, count = text.partition("x")
    try:
        probability, times = _NUMBER.convert(chance, None, None), int(count) if count else 1
    except (ValueError, click.BadParameter):
        probability, times = Fraction(-1), 0
    if not (0 <= probability <= 1 and 1 <= times <= 1000):
        raise CommandError(
            f"--record {text} is neither a probability nor PROBABILITYxCOUNT, such as 0.001x50, of at most 1000"
        )
    return [probability] * times


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
