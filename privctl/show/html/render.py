"""The templates, and what they may call: every value is cleaned and escaped, and a name that is unknown is an error."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from privctl.domain.strength import severity
from privctl.show.html.values import Pill, colour, state_word
from privctl.show.html.words import assumption_counts, risk, shared_assumptions
from privctl.show.plain import clean
from privctl.show.summary import amount, protects, weak
from privctl.show.text.style import number, short, size

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = files("privctl.show.html") / "templates"


def render_template(name: str, values: Mapping[str, object]) -> str:
    """The template of this name with these values."""
    return templates().get_template(name).render(values)


def source(name: str) -> str:
    """The text of a file among the templates."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def sha256_of(name: str) -> str:
    """The digest of a file among the templates, as the content security policy names what it lets pass."""
    return base64.b64encode(hashlib.sha256(source(name).encode()).digest()).decode()


_FILTERS = {
    "amount": amount,
    "assumption_counts": assumption_counts,
    "colour": colour,
    "number": number,
    "protects": protects,
    "risk": risk,
    "severity": severity,
    "sha256_of": sha256_of,
    "short": short,
    "size": size,
    "shared_assumptions": shared_assumptions,
    "state_word": state_word,
    "weak": weak,
}


@cache
def templates() -> Environment:
    """The templates' environment."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=_final,
        keep_trailing_newline=True,
        loader=FunctionLoader(source),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(_FILTERS)
    environment.tests["pill"] = lambda value: isinstance(value, Pill)
    return environment


def _final(value: Any) -> Any:
    """Text as a page shows it; escaping comes after this. What is markup already comes from a drawing or a macro."""
    return value if hasattr(value, "__html__") else clean(str(value))
