"""``privctl report``: a page, a model card or a chart from the reports of a model."""

from __future__ import annotations

import os
from pathlib import Path

import click

from privctl.cli.options import PATH, debug, reports_at, show
from privctl.cli.options import force as force_option
from privctl.domain.errors import CommandError

FORMATS = ("html", "markdown", "model-card", "intoto")


@click.command()
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...", type=PATH)
@click.option("-o", "--output", type=PATH, help="File to write, or - for standard output.  "
              "[default: a file beside the first report]")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), help="html: one page with plots. markdown: "
              "text. model-card: a section of a README.md. intoto: an in-toto statement about the model's files.  "
              "[default: markdown for an --output that ends in .md, else html]")  # fmt: skip
@click.option("--plot", type=PATH, help="Draw a chart of several models, utility against epsilon "
              "and attacks, to FILE.svg or .png; print its numbers. A page needs --output or --format.")  # fmt: skip
@click.option("--title", help="Title of the page.  [default: the names of the models]")
@force_option
@click.option("-q", "--quiet", is_flag=True, help="No notes; only results and errors.")
@click.option("--debug", is_flag=True, is_eager=True, expose_value=False, callback=debug, help="Show tracebacks.")
def report(
    reports: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    plot: Path | None,
    title: str | None,
    force: bool,
    quiet: bool,
) -> None:
    """Make one page from the REPORTs of a model and the reports they build on.

    You can give a model in place of a REPORT. It stands for the reports beside it that match its weights: its own, if
    it has one, and those of its audits and verifications.

    The page is a single HTML file that needs no network. It shows what is proved, conditional, claimed or refuted,
    which attacks were run and how well they worked, the chain of steps, the numbers behind it, and what was not
    checked. Curves are drawn from the scores stored beside an audit's report.

    The model card is written between markers in a new or existing README.md, with its numbers in the metadata at the
    top. A second run replaces only these parts. The in-toto statement is not signed.

    \b
    Example:
      privctl report private/ -o page.html
      privctl report private.report.json private.audit.report.json -o page.html
      privctl report private.report.json --format model-card -o private/README.md
      privctl report private/ -o page.md
      privctl report private.report.json --format markdown -o -
      privctl report plain/ noised/ private/ --plot chart.svg
    """
    from privctl.api.reporting import check_title, page_path_and_format, write_page
    from privctl.data.places import require_inputs
    from privctl.show.progress import note

    check_title(title)
    require_inputs(*reports)
    reports = reports_at(reports, quiet, examined=True)
    if plot is not None:
        _draw(reports, plot, output, force, quiet)
        if output is None and kind is None:
            return
    place, kind = page_path_and_format(reports, output, kind, force=force)
    standard = str(place) == "-"
    text = write_page(reports, None if standard else place, kind, title, force=force)
    if standard:
        show(text.decode(), as_json=kind == "intoto")
        return
    note(f"wrote {place}", quiet=quiet)


def _draw(reports: tuple[Path, ...], plot: Path, output: Path | None, force: bool, quiet: bool) -> None:
    """Write the chart of several models, and print its numbers."""
    from privctl.reports.files import require_not_weights_or_report
    from privctl.show.comparison import HEADINGS, compare
    from privctl.show.gather.load import load
    from privctl.show.plots.compare import draw
    from privctl.show.progress import note
    from privctl.show.text.style import paragraph, table
    from privctl.storage.atomic import require_absent, write_bytes

    suffix = plot.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    if output is not None and os.path.realpath(plot) == os.path.realpath(output):
        raise CommandError(f"--plot and --output both name {plot}; name two different files")
    require_not_weights_or_report(plot)
    require_absent(plot, force, option="--plot")
    comparison = compare(load(reports, drawn=False))
    if comparison is None:
        raise CommandError("--plot compares models, and these are the reports of fewer than two; give those of more")
    write_bytes(plot, draw(comparison, "png" if suffix == ".png" else "svg"), replace=force)
    show(table(HEADINGS, [*comparison.rows()]) + "".join(paragraph(line, indent=2) for line in comparison.notes))
    note(f"wrote {plot}", quiet=quiet)
