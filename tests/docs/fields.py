"""The report's schema as tables, from the published JSON schema and what ``docs/report-fields.toml`` says of it."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from privctl.domain.report import SCHEMA_VERSION
from tests.docs.pages import DOCS, ROOT

_TITLE = "PrivacyReport"


def schema() -> dict[str, Any]:
    """The types of the published schema, by name."""
    path = ROOT / "privctl" / "schemas" / f"report-{SCHEMA_VERSION}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["$defs"]
    return found


def meanings_by_type() -> dict[str, dict[str, tuple[str, str]]]:
    """Type -> field -> its meaning and the checks that read it."""
    with (DOCS / "report-fields.toml").open("rb") as file:
        read = tomllib.load(file)
    return {kind: {name: (text[0], text[1]) for name, text in each.items()} for kind, each in read.items()}


def parts() -> dict[str, str]:
    """The made part of ``docs/reports.md``."""
    types = schema()
    return {
        "schema": "\n".join(
            _section(name, types[name], each) for name, each in meanings_by_type().items() if name in types
        )
    }


def _section(name: str, kind: dict[str, Any], meanings: dict[str, tuple[str, str]]) -> str:
    lines = [f"### {name}\n"]
    if name != _TITLE:
        lines.append(f"{kind['description'].replace('``', '`')}\n")
    lines += ["| field | holds | meaning | read by |", "|---|---|---|---|"]
    needed = set(kind["required"])
    for field, holds in kind["properties"].items():
        meaning, checks = meanings.get(field, ("", ""))
        optional = "" if field in needed else ", optional"
        lines.append(f"| `{field}` | {_holds(holds)}{optional} | {meaning} | {checks} |")
    return "\n".join(lines) + "\n"


def _holds(kind: dict[str, Any]) -> str:
    """What a field may hold, in words; other types as links to their sections."""
    if "$ref" in kind:
        return _link(kind["$ref"])
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    if "anyOf" in kind:
        return " or ".join(_holds(each) for each in kind["anyOf"])
    if kind.get("type") == "array":
        return f"list of {_holds(kind['items'])}"
    if kind.get("type") == "object":
        values = kind.get("additionalProperties") or {}
        return f"object of {_holds(values)}" if values else "object"
    return str(kind.get("type", "anything"))


def _link(reference: str) -> str:
    name = reference.rsplit("/", 1)[-1]
    return f"[{name}](#{name.lower()})"
