"""``privctl verify``: check a report's files, its consistency and its guarantees."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import AMOUNT, SEED32
from privctl.cli.options import PATH, TEXT_COLUMN, common, data_option, force, show, to_standard_output, verbose
from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from privctl.data.several import DataPath
    from verify.run import Verification


@click.command()
@click.argument("report", type=PATH)
@click.option("-o", "--output", type=PATH, help="File to write the report of the verdicts to.")
@click.option("--simulate", is_flag=True, help="Also simulate the mechanism, and a small training with it.")
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
    help="Approximate time limit of simulations, in seconds.",
)
@data_option("--data", "Training data, as given to retrain, to count its examples and compare digests (repeatable).")
@data_option("--public", "Public records of the training, to count them and compare digests (repeatable).")
@TEXT_COLUMN
@click.option("--plot", type=PATH, help="Draw the privacy loss with epsilon and delta marked (.svg or .png).")
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
    data: DataPath | None,
    public: DataPath | None,
    text_column: str | None,
    plot: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Verify REPORT: its chain and files, its internal consistency, and every guarantee in it.

    You can give a model in place of REPORT. Its report is the one beside it that was written with these weights, or
    else the one that names its files; the weights are then refuted.

    Each guarantee is recomputed by code that is independent of the code behind the claim. It is then PROVED, REFUTED
    with a counterexample, CONSISTENT or INCONCLUSIVE. If the model without the noise is available, the noise is
    measured. The initial weights of a training are drawn again from its seed (or read, if it began with a checkpoint
    that is available), and the released weights must be within reach of its steps and its noise. With --data, the
    examples are counted; with --public too, public records are compared with them. Results of an audit are recomputed
    from the ranks in its files, and its entry in the log of audits is checked; other measurements are not repeated.
    Only the author of a report vouches that an assumption was enforced; privctl sign shows who that is.

    Exit code 1 means that a digest, a parameter or a guarantee is refuted, and 3 that one remains undecided. Guarantees
    that the report itself marks as claimed do not affect the exit code.

    \b
    Example:
      privctl verify model.private.report.json
      privctl verify private/
      privctl verify private.report.json --data train.jsonl
      privctl verify private.report.json --simulate --plot loss.svg
    """
    from privctl.api.verifying import report_path_of, verify_given
    from privctl.data.places import require_inputs
    from privctl.reports.codec import encode
    from privctl.reports.files import require_not_weights_or_report
    from privctl.show.progress import note, progress
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together
    from verify.as_report import as_report

    if to_standard_output(output):
        output, as_json = None, True
    shown, notify = partial(progress, quiet=quiet), partial(note, quiet=quiet)
    given, report = report, report_path_of(report, shown)
    require_inputs(report, data, public)
    _check(report, output, plot)
    for path, option in ((output, "--output"), (plot, "--plot")):
        if path is not None:
            require_absent(path, force, option=option)
            require_not_weights_or_report(path, but="verify" if path == output else "")
    verification = verify_given(
        given,
        report,
        data=data,
        text_column=text_column,
        public=public,
        simulate=simulate,
        seed=seed,
        seconds=seconds,
        progress=shown,
        notify=notify,
    )
    place = output or verification.path.with_name("verify.report.json")
    text = encode(as_report(verification, place, seed if simulate else None))
    show(text if as_json else _rendered(verification), as_json=as_json)
    contents = ((plot, _drawing(verification, plot)), (output, text.encode()))
    written = {path: content for path, content in contents if path is not None}
    write_together(written, replace=force)
    for path in written:
        note(f"wrote {path}", quiet=quiet)
    ctx.exit(verification.exit_code)


def _check(report: Path, output: Path | None, plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    for flag, path in (("--plot", plot), ("--output", output)):
        if path is not None and os.path.realpath(path) == os.path.realpath(report):
            raise CommandError(f"{flag} {path} is the report itself, which no command edits; name another file")
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{flag} {path} is in a folder that does not exist; create the folder first")
    if plot is not None and plot == output:
        raise CommandError(f"--plot and --output both name {plot}; name two different files")


def _drawing(verification: Verification, plot: Path | None) -> bytes:
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
