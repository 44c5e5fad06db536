"""How these pages become a site: ``sphinx-build -nW docs site``, after ``pip install -e '.[docs]'``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "privctl"
author = "The privctl maintainers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
# Anchors are those that GitHub gives headings.
myst_heading_anchors = 4
html_theme = "furo"
html_title = "privctl"
html_copy_source = False

#: Pages in reading order; any other comes last.
PAGES = (
    "tutorial",
    "guide",
    "data",
    "cli",
    "python",
    "reports",
    "theory",
    "batches",
    "mechanisms",
    "papers",
    "claims",
    "audits",
    "attacks",
    "canaries",
    "extraction",
    "audit-measurements",
    "attack-measurements",
    "attack-comparison",
    "performance",
    "utility",
    "scale",
    "threat-model",
    "glossary",
)


def setup(app: Any) -> None:
    """Put the table of contents into the start page here, so that the page reads well as plain Markdown too."""
    app.connect("source-read", _with_contents)


def _with_contents(_: Any, name: str, source: list[str]) -> None:
    if name == root_doc:
        others = sorted({page.stem for page in Path(__file__).parent.glob("*.md")} - {*PAGES, root_doc})
        listed = "\n".join((*PAGES, *others))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
