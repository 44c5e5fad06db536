"""Converts reports to JSON and back, driven by the domain's types and a closed table of tags.

Nothing is imported or constructed by a name found in the data: the members of tagged unions are listed in ``TAGS``, the
kinds of events in the domain's ``EVENTS``. pydantic is not used: the gate installs without it, and no value may be
coerced to the expected type.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from privctl.domain.errors import InputError
from privctl.domain.events import EVENTS, Event, Ledger
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import SCHEMA_VERSION, PrivacyReport
from privctl.storage.header import refuse_weights
from privctl.storage.json_text import parse_json, shown

TAGS: dict[str, type] = {
    "clipped-training": ClippedTraining,
    "weight-noise": WeightNoise,
    "ledger": Ledger,
}
Value = TypeVar("Value")
#: (JSON value, name of the file, place in it, depth of nesting) -> value; raises InputError.
Reader = Callable[[Any, str, str, int], Any]

_TAG_OF = {cls: tag for tag, cls in TAGS.items()}
_DEPTH_LIMIT = 64
#: The end of errors for a file that is something else.
_WANTED = "give NAME.report.json, or the model that it describes: its folder or its .safetensors file"


def encode(report: PrivacyReport) -> str:
    """The report as JSON text, with keys in declared order and a final newline.

    Raises ValueError for NaN or infinity: reports use None for values that are not finite.
    """
    return json.dumps(_to_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def encode_value(value: Any) -> Any:
    """A dataclass of plain values, lists and other dataclasses as JSON data, with keys in declared order."""
    return _to_json(value)


def decode_value(kind: type[Value], data: Any, source: str, where: str) -> Value:
    """The value of type ``kind`` that JSON ``data`` describes; ``source`` and ``where`` are for errors.

    Raises InputError for any other data, including missing or unknown keys.
    """
    value: Value = _from_json(kind, data, source, where)
    return value


def decode(text: str, source: str) -> PrivacyReport:
    """The report held in ``text``; ``source`` names the file in errors.

    Raises InputError for anything but a report of a known schema version.
    """
    try:
        data = parse_json(text, source)
    except InputError as fault:
        message = str(fault)
        if not text.lstrip().startswith("{"):
            raise InputError(f"{source} is not a privctl report, which is a JSON object; {_WANTED}") from None
        if _is_json(text.splitlines()[0]):
            raise InputError(f"{source} holds a JSON object on each line, and is not a report; {_WANTED}") from None
        raise InputError(message if ";" in message else f"{message}; give a report as privctl wrote it") from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise InputError(f"{source} is not a privctl report: it has no schema_version; {_WANTED}")
    if data["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            f"{source} has schema_version {data['schema_version']!r}; this privctl reads version {SCHEMA_VERSION}; "
            "use the privctl that wrote it"
        )
    report: PrivacyReport = _from_json(PrivacyReport, data, source, "report")
    return report


def decode_bytes(data: bytes, source: str) -> PrivacyReport:
    """As ``decode``, for the bytes of a file; InputError says so if they are those of a model in another format."""
    refuse_weights(data[:8], source)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{source} is not UTF-8 text, and so no privctl report; {_WANTED}") from None
    return decode(text, source)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def decode_events(text: str, source: str) -> tuple[Event, ...]:
    """The list of events held in ``text``; ``source`` names the file in errors. Raises InputError for anything else."""
    events: tuple[Event, ...] = _from_json(tuple[Event, ...], parse_json(text, source), source, "ledger")
    return events


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a report, generated from the domain's types."""
    definitions: dict[str, Any] = {}
    root = _schema_of(PrivacyReport, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"privctl report, schema version {SCHEMA_VERSION}",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


@cache
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    """Field name -> (resolved type, required)."""
    hints = get_type_hints(cls)
    missing = dataclasses.MISSING
    return {
        f.name: (hints[f.name], f.default is missing and f.default_factory is missing) for f in dataclasses.fields(cls)
    }


def _tag_of(cls: type) -> str | None:
    """The value of ``type`` in JSON objects of a class; None if the class needs no tag."""
    return cls.tag if issubclass(cls, Event) else _TAG_OF.get(cls)


def _members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; for ``Event``, all kinds of events that compose."""
    return tuple(event for event in EVENTS.values() if event.composes) if kind is Event else get_args(kind)


def _to_json(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):  # first, as most values are of these types
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        body = {name: _to_json(getattr(value, name)) for name in _fields(type(value))}
        tag = _tag_of(type(value))
        return {"type": tag, **body} if tag else body
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    return value


def _from_json(kind: Any, data: Any, source: str, where: str) -> Any:
    return _reader(kind)(data, source, where, 0)


def _event(data: Any, source: str, where: str, depth: int) -> Any:
    """An event of any kind that is in the table at the time of the call."""
    return _union_reader(_members(Event))(data, source, where, depth)


@cache
def _reader(kind: Any) -> Reader:
    """The reader of a type, cached so that types are not inspected for every value."""
    origin = get_origin(kind)
    if kind is Event:
        return _event
    if origin in (Union, types.UnionType):
        return _union_reader(_members(kind))
    if kind is Any:
        return _shallow
    if origin is tuple:
        items = get_args(kind)
        return _list_reader(items[0]) if items[-1] is Ellipsis else _fixed_list_reader(items)
    if origin is Mapping:
        return _object_reader(get_args(kind)[-1])
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    return _float if kind is float else _scalar_reader(kind)


def _list_reader(item: Any) -> Reader:
    read = _reader(item)

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if not isinstance(data, list):
            raise _mismatch(source, where, data, "a list")
        return tuple([read(x, source, f"{where}[{i}]", depth + 1) for i, x in enumerate(data)])

    return call


def _fixed_list_reader(items: tuple[Any, ...]) -> Reader:
    readers = [_reader(item) for item in items]

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if not isinstance(data, list) or len(data) != len(readers):
            raise _mismatch(source, where, data, f"a list of {len(readers)}")
        pairs = zip(readers, data, strict=True)
        return tuple([read(x, source, f"{where}[{i}]", depth + 1) for i, (read, x) in enumerate(pairs)])

    return call


def _object_reader(item: Any) -> Reader:
    read = _reader(item)

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if not isinstance(data, dict):
            raise _mismatch(source, where, data, "an object")
        return {k: read(x, source, f"{where}.{k}", depth + 1) for k, x in data.items()}

    return call


def _shallow(data: Any, source: str, where: str, depth: int) -> Any:
    """``data``, of any type, after checking the depth of its nesting."""
    if depth > _DEPTH_LIMIT:
        raise InputError(f"{source} is nested too deeply at {where}")
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _shallow(item, source, where, depth + 1)
    return data


def _enum_reader(kind: type[Enum]) -> Reader:
    def call(data: Any, source: str, where: str, depth: int) -> Any:
        try:
            return kind(data)
        except ValueError:
            raise _mismatch(source, where, data, "one of " + ", ".join(m.value for m in kind)) from None

    return call


def _float(data: Any, source: str, where: str, depth: int) -> Any:
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            number = float(data)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise _mismatch(source, where, data, "a finite number")


def _scalar_reader(kind: type) -> Reader:
    expected = {int: "a whole number", str: "a string", bool: "true or false"}[kind]

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if type(data) is not kind:
            raise _mismatch(source, where, data, expected)
        return data

    return call


@cache
def _union_reader(options: tuple[Any, ...]) -> Reader:
    rest = [option for option in options if option is not type(None)]
    single = len(rest) == 1
    tags = {_tag_of(option): option for option in reversed(rest)} if not single else {}

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if data is None and len(rest) < len(options):
            return None
        if single:
            return _reader(rest[0])(data, source, where, depth)
        tag = data.get("type") if isinstance(data, dict) else None
        if not isinstance(tag, str) or tag not in tags:
            raise _mismatch(source, f"{where}.type", tag, "one of " + ", ".join(str(_tag_of(o)) for o in rest))
        return _reader(tags[tag])(data, source, where, depth)

    return call


def _body(tag: str | None, data: Any, source: str, where: str) -> dict[str, Any]:
    """The fields of an object, without its ``type``, which must be ``tag`` if that is not None."""
    if not isinstance(data, dict):
        raise _mismatch(source, where, data, "an object")
    if tag is not None and data.get("type") != tag:
        raise _mismatch(source, f"{where}.type", data.get("type"), repr(tag))
    return {k: v for k, v in data.items() if not (tag and k == "type")}


def _dataclass_reader(cls: Any) -> Reader:
    fields, tag = _fields(cls), _tag_of(cls)
    needed = [name for name, (_, required) in fields.items() if required]

    def call(data: Any, source: str, where: str, depth: int) -> Any:
        if depth > _DEPTH_LIMIT:
            raise InputError(f"{source} is nested too deeply at {where}")
        body = _body(tag, data, source, where)
        for name in body:
            if name not in fields:
                raise InputError(f"{source}: {where} has the unknown key {shown(name)}")
        for name in needed:
            if name not in body:
                raise InputError(f"{source}: {where} lacks the key {name!r}")
        # Readers are looked up here, not in advance, because a class may contain itself.
        values = {k: _reader(fields[k][0])(v, source, f"{where}.{k}", depth + 1) for k, v in body.items()}
        try:
            return cls(**values)
        except ValueError as error:
            raise InputError(f"{source}: {where}: {error}") from None
        except OverflowError:
            raise InputError(f"{source}: {where} holds a whole number beyond all bounds") from None

    return call


def _mismatch(source: str, where: str, data: Any, expected: str) -> InputError:
    return InputError(f"{source}: {where} is {shown(data)}; expected {expected}")


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType) or kind is Event:
        return {"anyOf": [_schema_of(option, definitions) for option in _members(kind)]}
    if kind is Any:
        return {}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(get_args(kind)[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(get_args(kind)[1], definitions)}
    if dataclasses.is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _dataclass_schema(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": names[kind]}


def _dataclass_schema(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    tag = _tag_of(cls)
    properties: dict[str, Any] = {"type": {"const": tag}} if tag else {}
    properties |= {name: _schema_of(kind, definitions) for name, (kind, _) in _fields(cls).items()}
    required = (["type"] if tag else []) + [name for name, (_, needed) in _fields(cls).items() if needed]
    if cls is PrivacyReport:
        properties["schema_version"] = {"const": SCHEMA_VERSION}
        required.append("schema_version")
    return {
        "type": "object",
        "description": (cls.__doc__ or "").strip().splitlines()[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
