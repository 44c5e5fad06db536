"""``privctl.report``: a page of a model's reports. The command calls ``page_path_and_format`` and ``write_page``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privctl.api.arguments import FilePath, path_or_none
from privctl.domain.errors import CommandError
from privctl.domain.progress import Notify, Progress, unseen

if TYPE_CHECKING:
    from privctl.show.page_data import PageData

#: Format -> suffix (or name) of the default output.
FORMATS = {"html": ".html", "markdown": ".md", "model-card": "README.md", "intoto": ".intoto.json"}
#: Suffix of a file name -> formats that it may have.
_ENDINGS = {
    ".html": ("html",), ".htm": ("html",), ".md": ("markdown", "model-card"), ".markdown": ("markdown", "model-card"),
    ".json": ("intoto",), ".pdf": (), ".docx": (), ".svg": (), ".png": (),
}  # fmt: skip
_LONGEST = 200


def check_title(title: str | None) -> None:
    """Raise CommandError for a title that is empty or too long."""
    if title is not None and not 0 < len(title) <= _LONGEST:
        raise CommandError(f"--title has {len(title)} characters; give 1 to {_LONGEST}")


def page_path_and_format(
    reports: Sequence[Path], output: Path | None, kind: str | None, *, force: bool
) -> tuple[Path, str]:
    """Where the page of ``reports`` is to be written, and its format.

    Raises CommandError for an existing file and for a name whose suffix belongs to another format.
    """
    from privctl.reports.files import require_not_weights_or_report
    from privctl.storage.atomic import require_absent

    kind = kind or _format_of(output)
    page_path = output or _default(reports[0], kind)
    if str(page_path) == "-":
        return page_path, kind
    if os.path.realpath(page_path) in map(os.path.realpath, reports):
        raise CommandError(f"{page_path} is one of the reports; choose another --output")
    if output is not None:
        _require_ending(output, kind)
    require_not_weights_or_report(page_path)
    if not (kind == "model-card" and page_path.is_file()):
        require_absent(page_path, force)
    return page_path, kind


def write_page(reports: Sequence[Path], page_path: Path | None, kind: str, title: str | None, *, force: bool) -> bytes:
    """Make the page of ``reports``, write it to ``page_path`` unless that is None, and return its bytes."""
    from privctl.show.gather.load import load
    from privctl.show.page_data import AUDIT_STEP
    from privctl.storage.atomic import write_bytes

    data = load(reports, title, drawn=kind == "html")
    text = _text(kind, data, reports, page_path)
    if page_path is not None:
        audited = any(source.report.step == AUDIT_STEP for source in data.sources)
        write_bytes(page_path, text, replace=force or kind == "model-card", public=not audited)
    return text


def _require_ending(output: Path, kind: str) -> None:
    """Raise CommandError where the suffix of ``output`` belongs to another format; unknown suffixes are accepted."""
    promised = _ENDINGS.get(output.suffix.lower())
    if promised is not None and kind not in promised:
        other = f"--format {promised[0]}, or " if promised else ""
        raise CommandError(
            f"--output {output} would hold {kind}; give {other}a name that ends in .{FORMATS[kind].rpartition('.')[2]}"
        )


def _format_of(output: Path | None) -> str:
    """The format that the suffix of ``output`` implies: Markdown for ``.md``, else HTML."""
    text = output is not None and "markdown" in _ENDINGS.get(output.suffix.lower(), ())
    return "markdown" if text else "html"


def _text(kind: str, data: PageData, reports: Sequence[Path], page_path: Path | None) -> bytes:
    if kind == "html":
        from privctl.show.html.page import page

        return page(data).encode()
    if kind == "markdown":
        from privctl.show.markdown.report import markdown

        return markdown(data).encode()
    if kind == "model-card":
        from privctl.show.markdown.model_card import insert_summary

        return insert_summary(
            page_path.read_bytes() if page_path is not None and page_path.is_file() else None, data, str(page_path)
        )
    from privctl.show.formats.intoto import statement
    from privctl.show.gather.files import with_files

    return statement(with_files(data, reports)).encode()


def _default(first: Path, kind: str) -> Path:
    if kind == "model-card":
        return _model_folder(first) / FORMATS[kind]
    name = first.name.removesuffix(".json").removesuffix(".report") or first.name
    return first.with_name(name + FORMATS[kind])


def _model_folder(first: Path) -> Path:
    """The folder of the weights that the first report names, if it is inside the report's folder; else the latter."""
    from privctl.reports.files import read_report
    from privctl.show.page_data import MODEL_ROLE

    report_folder = first.absolute().parent
    for artifact in read_report(first).outputs:
        folder = Path(os.path.normpath(report_folder / artifact.path)).parent
        if artifact.role == MODEL_ROLE and folder.is_relative_to(report_folder) and os.path.isdir(folder):
            return folder
    return report_folder


def report(
    reports: FilePath | Sequence[FilePath],
    *,
    output: FilePath | None = None,
    kind: str | None = None,
    title: str | None = None,
    force: bool = False,
    progress: Progress = unseen,
    notify: Notify = lambda _: None,
) -> Path:
    """Write one page about a model from its ``reports`` and those that they build on.

    ``reports`` are one or several files, or the model itself, which means the reports beside it. ``kind`` is ``html``,
    ``markdown``, ``model-card`` or ``intoto``; by default Markdown where ``output`` ends in ``.md``, else HTML. Without
    ``output`` the page is written beside the first report. ``title`` has at most 200 characters.

    Returns where the page was written. A page with results of an audit is readable by its owner only.

    Raises CommandError for existing files and for a name of another format, InputError for files that are no reports.
    """
    from privctl.data.places import require_inputs
    from privctl.reports.of_model import reports_at

    check_title(title)
    if kind is not None and kind not in FORMATS:
        raise CommandError(f"--format is {kind!r}; it must be one of {', '.join(FORMATS)}")
    given = tuple(Path(path) for path in ([reports] if isinstance(reports, str | os.PathLike) else reports))
    if not given:
        raise CommandError("there are no reports to make a page of; give those of the model")
    require_inputs(*given)
    paths = reports_at(given, progress, notify, examined=True)
    page_path, kind = page_path_and_format(paths, path_or_none(output), kind, force=force)
    if str(page_path) == "-":
        raise CommandError("--output - is for the command line; name a file")
    write_page(paths, page_path, kind, title, force=force)
    return page_path
