"""The templates and their filters: every value is cleaned and escaped, and an unknown name is an error."""

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
from privctl.show.summary import amount, protects, weak_bound
from privctl.show.text.style import number, short, size

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = files("privctl.show.html") / "templates"


def render_template(name: str, values: Mapping[str, object]) -> str:
    """Render the template ``name`` with ``values``. Raises jinja2.UndefinedError for an unknown name in it."""
    return templates().get_template(name).render(values)


def source(name: str) -> str:
    """The text of the file ``name`` among the templates."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def sha256_of(name: str) -> str:
    """The SHA-256 digest of the template file ``name`` in base64, for the content security policy."""
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
    "weak_bound": weak_bound,
}


@cache
def templates() -> Environment:
    """The jinja2 environment of the templates, with autoescaping."""
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
    """Clean text for the page, before it is escaped; markup from drawings and macros is kept."""
    return value if hasattr(value, "__html__") else clean(str(value))
