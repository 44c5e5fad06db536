"""The policy that a model must meet, assembled from flags, environment variables and a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from privctl.domain.errors import CommandError
from privctl.domain.gate import FileLine, PolicySetting, Rule
from privctl.domain.guarantee import Adjacency, Notion, PrivacyUnit, Scope, Status
from privctl.domain.verdict import Outcome
from privctl.gate.files import read_bounded
from privctl.gate.settings import KEYS, RECORD, shorten, suggestion
from privctl.gate.waivers import Waiver, read_waivers

PROJECT, OWN = "pyproject.toml", "privctl-policy.toml"
_TABLE = ("tool", "privctl", "gate")
_PREFIX = "PRIVCTL_GATE_"
_WAIVER = "waiver"
#: Most bytes of a policy file.
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The demands on a model; a limit that is None is not checked. ``KEYS`` lists the keys and their allowed values."""

    max_epsilon: float | None = None
    at_delta: float = 1e-5
    require: tuple[str, ...] = (Status.PROVED.value, Status.CONDITIONAL.value)
    accepted_assumptions: tuple[str, ...] | None = None
    notions: tuple[Notion, ...] = (Notion.APPROXIMATE_DP,)
    units: tuple[PrivacyUnit, ...] = (PrivacyUnit.EXAMPLE,)
    protects: str = RECORD
    adjacencies: tuple[Adjacency, ...] = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
    scope: Scope = Scope.THIS_MODEL
    max_posterior: float | None = None
    max_auc: float | None = None
    max_tpr: float | None = None
    at_fpr: float = 0.01
    max_exposure: float | None = None
    max_disclosed: float | None = None
    max_extracted: float | None = None
    max_epsilon_lower_bound: float | None = None
    min_confidence: float = 0.95
    min_accuracy: float | None = None
    max_loss: float | None = None
    min_power: Mapping[str, float] = field(default_factory=dict)
    required_steps: tuple[str, ...] = ()
    max_age_days: float | None = None
    forbid_outcomes: tuple[str, ...] = (Outcome.REFUTED.value,)
    require_model: bool = False
    require_signer: tuple[str, ...] = ()
    require_audit_log: tuple[str, ...] = ()
    audit_log_head: tuple[str, ...] = ()
    recompute: bool = True
    waivers: tuple[Waiver, ...] = ()
    settings: tuple[PolicySetting, ...] = ()
    places: Mapping[str, FileLine] = field(default_factory=dict)

    @property
    def field(self) -> str | None:
        """The field named by ``protects``; None if protecting each record by itself is enough."""
        return None if self.protects == RECORD else self.protects


def read_policy(
    path: Path | None, flags: Mapping[str, str], environment: Mapping[str, str], rules: Mapping[str, Rule]
) -> Policy:
    """Read the policy at ``path``, by default the policy file of the current folder.

    Variables in ``environment`` override the file, and ``flags``, texts by the key's name, override both. Raises
    CommandError for an unknown key, a value out of range, two policy files, or a policy that demands nothing.
    """
    source_file, table, text = _table(path)
    values: dict[str, Any] = {}
    settings: dict[str, PolicySetting] = {}
    places: dict[str, FileLine] = {}
    waivers: tuple[Waiver, ...] = ()
    for name, raw in table.items():
        where = f"{name} in {source_file}"
        if name == _WAIVER:
            waivers = _read_setting(where, lambda entries: read_waivers(entries, rules), raw)
            continue
        if name not in KEYS:
            raise CommandError(
                f"{source_file} has the unknown key {shorten(name)}; {suggestion(name, [*KEYS, _WAIVER])}"
            )
        values[name] = _read_setting(where, KEYS[name].read, raw)
        place = FileLine(path=str(source_file), line=_line_of(name, text))
        settings[name] = PolicySetting(key=name, value=_as_text(values[name]), source=f"{place.path}:{place.line}")
        places[name] = place
    for source, texts in (("environment", _variables(environment)), ("flag", flags)):
        for name, raw_text in texts.items():
            label = f"{_PREFIX}{name.upper()}" if source == "environment" else f"--{name.replace('_', '-')}"
            values[name] = _read_setting(label, KEYS[name].read, KEYS[name].text(raw_text))
            settings[name] = PolicySetting(key=name, value=_as_text(values[name]), source=label)
            places.pop(name, None)
    if not any(KEYS[name].demands(value) for name, value in values.items()):
        raise CommandError(
            f"{'no policy was found' if source_file is None else f'{source_file} demands nothing of a model'}; give a "
            f"limit such as --max-epsilon 8, or write a policy: privctl gate --init > {OWN}"
        )
    if Outcome.REFUTED.value not in values.get("forbid_outcomes", (Outcome.REFUTED.value,)):
        values["forbid_outcomes"] = (Outcome.REFUTED.value, *values["forbid_outcomes"])
    if values.get("audit_log_head") and not values.get("require_audit_log"):
        raise CommandError("audit_log_head is set, but require_audit_log names no log to look for it in; give both")
    return Policy(
        **values, waivers=waivers, settings=tuple(settings[name] for name in KEYS if name in settings), places=places
    )


def _read_setting(label: str, reader: Any, raw: Any) -> Any:
    try:
        return reader(raw)
    except ValueError as error:
        raise CommandError(f"{label} {error}") from None


def _table(path: Path | None) -> tuple[Path | None, Mapping[str, Any], str]:
    """The file, its table of settings, and its text; None and empty if there is no file."""
    if path is not None:
        text, data = _toml(path)
        if path.name != PROJECT and _TABLE[0] in data:
            raise CommandError(f"{path} has [{'.'.join(_TABLE)}], which only {PROJECT} needs; put its keys at the top")
        table = _section_at(path, data) if path.name == PROJECT else data
        if table is None:
            raise CommandError(f"{path} has no table [{'.'.join(_TABLE)}]; add one, or name another --policy")
        return path, table, text
    both: list[tuple[Path, Mapping[str, Any], str]] = []
    if os.path.lexists(OWN):
        text, data = _toml(Path(OWN))
        both.append((Path(OWN), data, text))
    if os.path.lexists(PROJECT):
        text, data = _toml(Path(PROJECT))
        table = _section_at(Path(PROJECT), data)
        if table is not None:
            both.append((Path(PROJECT), table, text))
    if len(both) > 1:
        raise CommandError(f"there are two policies, {OWN} and {PROJECT}; keep one, or name it with --policy")
    return both[0] if both else (None, {}, "")


def _section_at(path: Path, data: Any) -> Mapping[str, Any] | None:
    for name in _TABLE:
        if not isinstance(data, dict):
            raise CommandError(f"{path} has something other than a table at [{'.'.join(_TABLE)}]; write a table")
        if name not in data:
            return None
        data = data[name]
    if not isinstance(data, dict):
        raise CommandError(f"{path} has something other than a table at [{'.'.join(_TABLE)}]; write a table")
    return data


def _toml(path: Path) -> tuple[str, dict[str, Any]]:
    import tomllib

    text = read_bounded(path, _LARGEST, CommandError).decode("utf-8", errors="surrogateescape")
    try:
        text.encode()
        return text, tomllib.loads(text)
    except UnicodeEncodeError:
        raise CommandError(f"{path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path} is not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise CommandError(
            f"{path} is not a policy: it is nested too deeply or has a number with too many digits"
        ) from None


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in KEYS:
            raise CommandError(
                f"the variable {shorten(variable)} does not name a key of a policy; {suggestion(name, KEYS)}"
            )
        if name in texts:
            usual = f"{_PREFIX}{name.upper()}"
            raise CommandError(f"two variables set {name}: {usual} and the same name in other letters; keep one")
        texts[name] = text
    return texts


def _line_of(name: str, text: str) -> int:
    """The line that sets ``name``, from 1; tomllib keeps no line numbers."""
    pattern = re.compile(rf"""^\s*(?:\[(?:[\w.]*\.)?)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    return next((i for i, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {size:g}" for name, size in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, StrEnum)) else f"{value:g}"


assert KEYS.keys() == {f.name for f in fields(Policy)} - {"waivers", "settings", "places"}
