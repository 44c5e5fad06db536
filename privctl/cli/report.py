"""``privctl report``: one page, or another format, from the reports of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.options import debug, reports_at, show
from privctl.cli.options import force as force_option
from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from privctl.show.page_data import PageData

#: Format -> suffix (or name) of the default output.
FORMATS = {"html": ".html", "markdown": ".md", "model-card": "README.md", "intoto": ".intoto.json"}
#: What a name's ending promises.
_ENDINGS = {
    ".html": ("html",), ".htm": ("html",), ".md": ("markdown", "model-card"), ".markdown": ("markdown", "model-card"),
    ".json": ("intoto",), ".pdf": (), ".docx": (), ".svg": (), ".png": (),
}  # fmt: skip
_LONGEST = 200


@click.command()
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write, or - for standard output; by "
              "default a file beside the first report.")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), help="html: one page with plots. markdown: "
              "text. model-card: a section in a README.md. intoto: a statement over the model's files.  [default: "
              "markdown for an --output that ends in .md, else html]")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), help="Draw utility against epsilon and attack of several "
              "models to FILE.svg or .png and print the numbers; a page only with --output or --format.")  # fmt: skip
@click.option("--title", help="Title of the page; by default it names the models.")
@force_option
@click.option("-q", "--quiet", is_flag=True, help="No notes; only results and errors.")
@click.option("--debug", is_flag=True, expose_value=False, callback=debug, help="Show tracebacks.")
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

    A model in place of a REPORT stands for the reports beside it that fit its weights: its own, and those of its audits
    and verifications.

    The page is a single HTML file that needs no network. It shows what is proved, conditional, claimed or refuted,
    which attacks were run and how well they worked, the chain of steps, the numbers behind it, and what was not
    checked. Curves are drawn from the scores stored beside an audit's report.

    The model card is written between two markers in a new or an existing README.md. A second run replaces it and keeps
    everything else byte for byte. The in-toto statement is not signed.

    \b
    Example:
      privctl report private/ -o page.html
      privctl report private.report.json private.audit.report.json -o page.html
      privctl report private.report.json --format model-card -o private/README.md
      privctl report private/ -o page.md
      privctl report private.report.json --format markdown -o -
      privctl report plain/ noised/ private/ --plot chart.svg
    """
    from privctl.data.places import require_inputs
    from privctl.reports.files import require_spare
    from privctl.show.gather.load import load
    from privctl.show.page_data import AUDIT_STEP
    from privctl.show.progress import note
    from privctl.storage.atomic import require_absent, write_bytes

    if title is not None and not 0 < len(title) <= _LONGEST:
        raise CommandError(f"--title has {len(title)} characters; give 1 to {_LONGEST}")
    require_inputs(*reports)
    reports = reports_at(reports, quiet)
    if plot is not None:
        _draw(reports, plot, output, force, quiet)
        if output is None and kind is None:
            return
    kind = kind or _meant(output)
    place = output or _default(reports[0], kind)
    standard = str(place) == "-"
    if not standard and place.resolve() in {path.resolve() for path in reports}:
        raise CommandError(f"{place} is one of the reports; choose another --output")
    if output is not None and not standard:
        _require_ending(output, kind)
    if not standard:
        require_spare(place)
    if not standard and not (kind == "model-card" and place.is_file()):
        require_absent(place, force)
    data = load(reports, title, drawn=kind == "html")
    text = _written(kind, data, reports, None if standard else place)
    if standard:
        show(text.decode(), as_json=kind == "intoto")
        return
    audited = any(source.report.step == AUDIT_STEP for source in data.sources)
    write_bytes(place, text, replace=force or kind == "model-card", public=not audited)
    note(f"wrote {place}", quiet=quiet)


def _require_ending(output: Path, kind: str) -> None:
    """Refuse a name that promises another format; one without an ending that is known promises none."""
    promised = _ENDINGS.get(output.suffix.lower())
    if promised is not None and kind not in promised:
        other = f"--format {promised[0]}, or " if promised else ""
        raise CommandError(
            f"--output {output} would hold {kind}; give {other}a name that ends in .{FORMATS[kind].rpartition('.')[2]}"
        )


def _meant(output: Path | None) -> str:
    """The format of a file that only its name describes."""
    text = output is not None and "markdown" in _ENDINGS.get(output.suffix.lower(), ())
    return "markdown" if text else "html"


def _draw(reports: tuple[Path, ...], plot: Path, output: Path | None, force: bool, quiet: bool) -> None:
    """Write the chart of several models, and print what it shows."""
    from privctl.reports.files import require_spare
    from privctl.show.comparison import HEADINGS, compare
    from privctl.show.gather.load import load
    from privctl.show.plots.compare import draw
    from privctl.show.progress import note
    from privctl.show.text.style import paragraph, table
    from privctl.storage.atomic import require_absent, write_bytes

    suffix = plot.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    if output is not None and plot.resolve() == output.resolve():
        raise CommandError(f"--plot and --output both name {plot}; name two different files")
    require_spare(plot)
    require_absent(plot, force, option="--plot")
    comparison = compare(load(reports, drawn=False))
    if comparison is None:
        raise CommandError("--plot compares models, and these are the reports of fewer than two; give those of more")
    write_bytes(plot, draw(comparison, "png" if suffix == ".png" else "svg"), replace=force)
    show(table(HEADINGS, [*comparison.rows()]) + "".join(paragraph(line, indent=2) for line in comparison.notes))
    note(f"wrote {plot}", quiet=quiet)


def _written(kind: str, data: PageData, reports: tuple[Path, ...], place: Path | None) -> bytes:
    if kind == "html":
        from privctl.show.html.page import page

        return page(data).encode()
    if kind == "markdown":
        from privctl.show.markdown.report import markdown

        return markdown(data).encode()
    if kind == "model-card":
        from privctl.show.markdown.model_card import insert_summary

        return insert_summary(place.read_bytes() if place is not None and place.is_file() else None, data, str(place))
    from privctl.show.formats.intoto import statement
    from privctl.show.gather.files import with_files

    return statement(with_files(data, reports)).encode()


def _default(first: Path, kind: str) -> Path:
    if kind == "model-card":
        return _model_folder(first) / FORMATS[kind]
    name = first.name.removesuffix(".json").removesuffix(".report") or first.name
    return first.with_name(name + FORMATS[kind])


def _model_folder(first: Path) -> Path:
    """The folder of the weights that the first report wrote, if inside the report's folder; else the latter."""
    from privctl.reports.files import read_report
    from privctl.show.page_data import MODEL_ROLE

    own = first.absolute().parent
    for artifact in read_report(first).outputs:
        folder = Path(os.path.normpath(own / artifact.path)).parent
        if artifact.role == MODEL_ROLE and folder.is_relative_to(own) and os.path.isdir(folder):
            return folder
    return own
