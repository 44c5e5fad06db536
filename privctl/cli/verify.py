"""``privctl verify``: check a report's files, its consistency and its guarantees."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import AMOUNT, SEED32
from privctl.cli.options import common, force, reports_at, show, to_standard_output, verbose
from privctl.domain.errors import CommandError, InputError

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from verify.data import DataAtHand
    from verify.run import Verification

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("report", type=_FILE)
@click.option("-o", "--output", type=_FILE, help="Report of the verdicts to write.")
@click.option("--simulate", is_flag=True, help="Also simulate the mechanism, and a toy training with it.")
@click.option(
    "--seed",
    type=SEED32,
    default=0,
    show_default=True,
    help="Seed of simulations; not private.",
)
@click.option(
    "--seconds",
    type=AMOUNT,
    default=20.0,
    show_default=True,
    help="Approximate time limit of simulations.",
)
@click.option(
    "--data", type=_FILE, help="The training data (a file, or a folder of images), to count and compare its digest."
)
@click.option("--plot", type=_FILE, help="Draw the privacy loss with epsilon and delta marked (.svg or .png).")
@force
@common
@click.pass_context
def verify(
    ctx: click.Context,
    report: Path,
    output: Path | None,
    simulate: bool,
    seed: int,
    seconds: float,
    data: Path | None,
    plot: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Verify REPORT: its chain and files, its internal consistency, and every guarantee in it.

    A model in place of REPORT stands for its own report: the one beside it that was written with these weights, or
    else the one that names its files, which are then refuted.

    Each guarantee is recomputed by code that shares nothing with the code behind the claim, and is PROVED, REFUTED with
    a counterexample, CONSISTENT or INCONCLUSIVE. If the model before noise is available, the noise is measured. The
    first weights of a training are drawn again from its seed (or read, if it began with a checkpoint that is
    available), and the released weights must be where its steps and its noise can have moved them. With --data the
    examples are counted. Results of an audit are recomputed from the ranks it kept, and its line is looked up in the
    log of audits; other measurements are not repeated. That an assumption was enforced is the word of the report's
    author; privctl sign shows whose.

    Exit code 1 means that a digest, a parameter or a guarantee to rely on is refuted, 3 that one remains undecided.
    Guarantees that the report itself marks as claimed do not affect the exit code.

    \b
    Example:
      privctl verify model.private.report.json
      privctl verify private/
      privctl verify private.report.json --data train.jsonl
      privctl verify private.report.json --simulate --plot loss.svg
    """
    from privctl.reports.codec import encode
    from privctl.reports.files import require_spare
    from privctl.show.progress import note
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together

    if to_standard_output(output):
        output, as_json = None, True
    given, report = report, _report_of(report)
    _check(report, output, plot)
    for path, option in ((output, "--output"), (plot, "--plot")):
        if path is not None:
            require_absent(path, force, option=option)
            require_spare(path, but="verify" if path == output else "")
    verification = _verified(report, data, quiet)
    if report != given:
        report, verification = _of_its_weights(given, verification, data, quiet)
    if simulate:
        verification = _simulated(verification, seed, seconds, quiet)
    text = encode(
        _as_report(verification, output or report.with_name("verify.report.json"), seed if simulate else None)
    )
    show(text if as_json else _rendered(verification), as_json=as_json)
    contents = ((plot, _drawn(verification, plot)), (output, text.encode()))
    written = {path: content for path, content in contents if path is not None}
    write_together(written, replace=force)
    for path in written:
        note(f"wrote {path}", quiet=quiet)
    ctx.exit(verification.exit_code)


def _report_of(given: Path) -> Path:
    """``given``, or where it is a model the report beside it: by its name, or else by the digests of its weights.

    A report by name is taken though its digests may not fit: the verification reads the weights, and says so.
    """
    from privctl.reports.of_model import is_model, report_by_name

    if not is_model(given):
        return given
    try:
        named = report_by_name(given)
    except InputError as error:
        raise InputError(f"{given} is neither a report nor a model: {error}") from None
    return named or reports_at((given,), quiet=True)[0]


def _verified(report: Path, data: Path | None, quiet: bool) -> Verification:
    from privctl.show.progress import progress
    from verify.run import bytes_of, read
    from verify.run import verify as run

    claimed = read(report)
    counted = None if data is None else _counted(data, claimed, report)
    with progress("files", bytes_of(report, claimed), quiet=quiet) as advance:
        return run(report, claimed, advance=advance, data=counted)


def _of_its_weights(
    model: Path, verification: Verification, data: Path | None, quiet: bool
) -> tuple[Path, Verification]:
    """The report and verification of ``model``: those at hand, or of another report where only that one's digests fit.

    Notes which report was taken, and that it fits by its name alone.
    """
    from privctl.domain.errors import ExitCode
    from privctl.reports.of_model import changed_since, weight_digests
    from privctl.show.progress import note

    report, fits = verification.path, True
    if verification.exit_code == ExitCode.REFUTED:
        written = {each.digest for each in verification.report.outputs if each.role == "model"}
        fits = weight_digests(model) == written
    if not fits:
        with suppress(InputError):
            report, fits = reports_at((model,), quiet=True)[0], True
            verification = _verified(report, data, quiet)
    note(f"verifying {os.path.relpath(report)}, the report of {model}", quiet=quiet)
    if not fits:
        note(changed_since(report, model), quiet=quiet)
    return report, verification


def _check(report: Path, output: Path | None, plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    for flag, path in (("--plot", plot), ("--output", output)):
        if path is not None and path.resolve() == report.resolve():
            raise CommandError(f"{flag} {path} is the report itself, which no command edits; name another file")
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{flag} {path} is in a folder that does not exist; create the folder first")
    if plot is not None and plot == output:
        raise CommandError(f"--plot and --output both name {plot}; name two different files")


def _counted(data: Path, report: PrivacyReport, path: Path) -> DataAtHand:
    from privctl.data.count import count_examples
    from privctl.storage.digest import file_digest
    from verify.data import DataAtHand, stated, unit_of
    from verify.run import read

    if stated(report) is None:
        raise CommandError(f"--data {data} cannot be compared: the report states no number of examples; remove --data")
    parents = [path.parent / parent.path for parent in report.parents]
    known = [report, *(read(parent) for parent in parents if parent.is_file())]
    examples = count_examples(data, next(filter(None, map(unit_of, known)), None))
    return DataAtHand(name=data.name, examples=examples, digest=None if data.is_dir() else file_digest(data))


def _simulated(verification: Verification, seed: int, seconds: float, quiet: bool) -> Verification:
    from privctl.domain.report import Omission
    from privctl.show.progress import note
    from verify.simulate.run import simulate

    note(f"simulating for about {seconds:g} s", quiet=quiet)
    simulation = simulate(verification.report, seed=seed, seconds=seconds)
    if simulation is None:
        missing = Omission(what="simulation", reason="no guarantee of this report has a privacy loss to simulate")
        return replace(verification, omissions=(*verification.omissions, missing))
    return replace(verification, simulated=simulation.judged, evidence=(*verification.evidence, *simulation.evidence))


def _drawn(verification: Verification, plot: Path | None) -> bytes:
    if plot is None:
        return b""
    from privctl.show.plots.losses import LossPicture, draw
    from verify.simulate.law import law_of

    law = law_of(verification.report)
    if law is None:
        raise CommandError("no guarantee of this report has a privacy loss to draw; remove --plot")
    names = ("name", "losses", "density", "epsilons", "deltas", "epsilon", "delta")
    picture = LossPicture(**{name: getattr(law, name) for name in names})
    return draw(picture, "svg" if plot.suffix.lower() == ".svg" else "png")


def _rendered(verified: Verification) -> str:
    from privctl.show.text.verify import VerifiedRow, verify_text

    return verify_text(
        verified.integrity,
        [VerifiedRow(guarantee=judged.guarantee, verdict=judged.verdict) for judged in verified.guarantees],
        [judged.verdict for judged in verified.simulated],
        [e for e in verified.evidence if e.quantity.startswith("violation")][:1],
        verified.omissions,
        verbose=verbose(),
    )


def _as_report(verification: Verification, place: Path, seed: int | None) -> PrivacyReport:
    from privctl.domain.report import ParentReport, PrivacyReport
    from privctl.reports.files import now, relative, versions
    from privctl.storage.digest import file_digest

    parent = ParentReport(path=relative(verification.path, place), digest=file_digest(verification.path))
    return PrivacyReport(
        step="verify",
        created=now(),
        versions=versions(("numpy", "scipy", "python-flint", "blake3")),
        parameters={"simulated": seed is not None, **({} if seed is None else {"seed": seed})},
        evidence=verification.evidence,
        verdicts=verification.verdicts,
        omissions=verification.omissions,
        parents=(parent,),
    )
