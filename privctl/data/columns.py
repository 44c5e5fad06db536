"""Which fields of a record are its text and its label."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from privctl.data.names import field_of
from privctl.domain.errors import InputError

#: Formats the messages of a conversation; the passage starts at the last message. The second argument names the place.
Chat = Callable[[list[dict[str, str]], str], "Passage"]

#: Fields that hold a prompt -> fields that may hold its response, in order of preference.
PROMPTS = {"prompt": ("response", "completion"), "instruction": ("output", "response"), "source": ("target",)}
_EXPECTED = 'expected an object such as {"text": "..."} or {"prompt": "...", "response": "..."}'
#: Names of fields that a missing one is compared with, and their longest, so that no file makes that slow.
_COMPARED, _LONGEST_COMPARED = 200, 100
_SHOWN = 8
_UNPAIRED = (
    "holds no pair of texts, and a sequence-to-sequence model needs 'source' and 'target', or 'prompt' and 'response'; "
    "name other fields with --text-column and --label-column"
)


class HeadKind(StrEnum):
    """What a model's head predicts; the first three values are those of ``problem_type`` in config.json.

    ``ONE`` of several labels; any number of ``SEVERAL`` labels; a ``NUMBER``; a label for each of the ``TOKENS``; or
    the ``SPAN`` of a context that answers a question.
    """

    ONE = "single_label_classification"
    SEVERAL = "multi_label_classification"
    NUMBER = "regression"
    TOKENS = "token_labels"
    SPAN = "span"


#: The kinds of records that ``privctl.data.annotated`` reads.
ANNOTATED = (HeadKind.TOKENS, HeadKind.SPAN)
#: Tasks whose records have fields other than a text and a label.
_HEADS = {"token-classification": HeadKind.TOKENS, "question-answering": HeadKind.SPAN}
#: Fields that may hold a record's words, and the labels of the words, in order of preference.
WORDS = ("tokens", "words")
WORD_LABELS = ("ner_tags", "labels", "tags")
#: Fields of a question, its context and its answers; or of a single answer and where it starts.
QUESTION, CONTEXT, ANSWERS, ANSWER, ANSWER_START = "question", "context", "answers", "answer", "answer_start"


@dataclass(frozen=True, slots=True)
class Passage:
    """A record's text. Its response begins at character ``start``, which is 0 for plain text."""

    text: str
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which fields hold the ``text`` and the ``label`` of each record; None means the default names.

    ``chat`` formats a conversation as text; without it, the messages' contents are joined by line ends, which is enough
    to count or search. With ``pair`` a record is a source and its target, and ``text`` and ``label`` name their fields.
    With ``empty`` a text may be empty, for callers that skip such records and report it. ``problem`` says what a label
    may be.
    """

    text: str | None = None
    label: str | None = None
    chat: Chat | None = field(default=None, compare=False, repr=False)
    empty: bool = False
    pair: bool = False
    problem: HeadKind = HeadKind.ONE

    @property
    def named(self) -> dict[str, str]:
        """The fields that the user named, by option name."""
        fields = {"text_column": self.text, "label_column": self.label}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def label_name(self) -> str:
        """The field of the label."""
        return self.label or "label"

    @property
    def named_pair(self) -> tuple[str, str] | None:
        """The fields of source and target if the user named at least one of them, else None."""
        if not self.pair or (self.text is None and self.label is None):
            return None
        return self.text or "source", self.label or "target"

    def wanted(self, unit: str | None = None) -> set[str]:
        """Every field of a record that may be read."""
        units = () if unit is None else (field_of(unit),)
        if self.named_pair is not None:
            return {*self.named_pair, *units}
        if self.problem is HeadKind.SPAN:
            return {QUESTION, CONTEXT, ANSWERS, ANSWER, ANSWER_START, *units}
        if self.problem is HeadKind.TOKENS:
            words, labels = WORDS if self.text is None else (self.text,), WORD_LABELS
            return {*words, *(labels if self.label is None else (self.label,)), *units}
        if self.text is not None:
            texts = {self.text}
        else:
            texts = {"text", "input", "messages", *PROMPTS, *(name for names in PROMPTS.values() for name in names)}
        return {*texts, self.label_name, *units}


#: The default names of fields.
USUAL = Columns()


def columns_of_task(task: str | None, text: str | None = None, label: str | None = None) -> Columns:
    """The columns that a training for ``task`` reads, of which the fields ``text`` and ``label`` may be named."""
    return Columns(text=text, label=label, pair=task == "seq2seq-lm", problem=_HEADS.get(task or "", HeadKind.ONE))


def columns_of(options: Mapping[str, Any]) -> Columns:
    """The columns that ``--text-column`` and ``--label-column`` name, from a command's ``options``."""
    return Columns(text=options.get("text_column"), label=options.get("label_column"))


def require_separated(name: str, where: str) -> None:
    """Raise InputError if ``name``, the only column, looks like several names with a wrong separator."""
    for mark, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if mark in name:
            advice = "commas, or name it .tsv" if mark == "\t" else "commas"
            raise InputError(f"{where} separates its columns by {called}: {name!r}; write it with {advice}")


def require_columns(
    names: Collection[str], where: str, columns: Columns, *, labelled: bool = False, unit: str | None = None
) -> None:
    """Raise InputError if a table with these columns has no texts, or lacks required labels or units."""
    have = listed(names)
    if len(names) == 1 and columns.text not in names:
        require_separated(next(iter(names)), where)
    for name in columns.named_pair or ():
        if name not in names:
            raise InputError(
                f"{where} has no column {name!r}; its columns are {have}; name the source's with --text-column and the "
                "target's with --label-column"
            )
    if columns.text is not None and columns.text not in names:
        raise InputError(f"{where} has no column {columns.text!r}, as --text-column says; its columns are {have}")
    prompted = _has_prompt_fields(names)
    if columns.pair and columns.named_pair is None and not prompted and "messages" not in names:
        raise InputError(f"{where} {_UNPAIRED}; its columns are {have}")
    unnamed = columns.text is None and columns.named_pair is None
    if unnamed and not prompted and "text" not in names and "messages" not in names:
        raise InputError(
            f"{where} names no column 'text', nor 'prompt' and 'response': its columns are {have}; name the one that "
            "holds the text with --text-column"
        )
    if labelled and columns.label_name not in names:
        raise InputError(
            f"{where} has no column {columns.label_name!r} for the labels; its columns are {have}; name one with "
            "--label-column"
        )
    require_unit(names, where, unit)


def require_unit(names: Collection[str], where: str, unit: str | None) -> None:
    """Raise InputError if a table with these columns lacks the field that ``unit`` names."""
    if unit is not None and (field := field_of(unit)) not in names:
        raise InputError(
            f"{where} lacks {field!r}, which was named to group its records; its columns are {listed(names)}"
            f"{_meant(field, names)}"
        )


def text_of(data: Mapping[str, Any], where: str, columns: Columns | None = None) -> Passage:
    """The text of a record with the fields ``data``; raises InputError, naming ``where``, if they are not a record.

    The text of a pair is source, line end and target.
    """
    if columns is not None and columns.pair:
        return _pair(data, where, columns)
    return _passage(data, where, columns)


def split_pair(text: str, start: int) -> tuple[str, str]:
    """(source, target) of a pair whose target begins at character ``start`` of ``text``."""
    return text[:start].removesuffix("\n"), text[start:]


def _pair(data: Mapping[str, Any], where: str, columns: Columns) -> Passage:
    if columns.named_pair is not None:
        advice = "name the source's field with --text-column and the target's with --label-column"
        source, target = (string_of(data, name, where, advice) for name in columns.named_pair)
        return Passage(f"{source}\n{target}", len(source) + 1)
    if "messages" not in data and not _has_prompt_fields(data):
        raise InputError(f"{where} {_UNPAIRED}; it has {listed(data)}")
    return _passage({name: value for name, value in data.items() if name != "text"}, where, columns)


def _has_prompt_fields(names: Collection[str]) -> bool:
    """Whether the fields ``names`` include a prompt and its response."""
    return any(first in names and any(name in names for name in then) for first, then in PROMPTS.items())


def _passage(data: Mapping[str, Any], where: str, columns: Columns | None) -> Passage:
    empty = columns is not None and columns.empty
    if columns is not None and columns.text is not None:
        return Passage(string_of(data, columns.text, where, "name another field with --text-column", empty=empty))
    if "text" in data:
        if "prompt" in data or "response" in data:
            raise InputError(
                f"{where} has both 'text' and 'prompt' or 'response'; keep one form, or give --text-column text"
            )
        return Passage(string_of(data, "text", where, empty=empty))
    if "messages" in data:
        return _conversation(data["messages"], where, None if columns is None else columns.chat)
    if "instruction" in data and "prompt" not in data:
        return _instructed(data, where)
    if "source" in data and "target" in data and "prompt" not in data:
        source = string_of(data, "source", where) + "\n"
        return Passage(source + string_of(data, "target", where), len(source))
    prompt = string_of(data, "prompt", where) + "\n"
    key = "completion" if "completion" in data and "response" not in data else "response"
    return Passage(prompt + string_of(data, key, where), len(prompt))


class SameForm:
    """Checks that the files of one data set hold their records' texts in the same field."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._first: tuple[str, str] | None = None

    def checked(self, rows: Iterator[tuple[int, dict[str, Any]]], place: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """``rows`` of the file ``place``; raises InputError if its first row differs in form from the first file's."""
        for place_of_row, (number, fields) in enumerate(rows):
            if place_of_row == 0:
                form = form_of(fields, self._columns)
                self._first = self._first or (place, form)
                require_form(place, form, *self._first)
            yield number, fields


def form_of(names: Collection[str], columns: Columns) -> str:
    """The form of a record with the fields ``names``: the field with which its text begins."""
    if columns.problem is HeadKind.SPAN:
        return QUESTION
    if columns.problem is HeadKind.TOKENS and columns.text is None:
        return next((name for name in WORDS if name in names), WORDS[0])
    if columns.text is not None:
        return columns.text
    if columns.pair:
        names = [name for name in names if name != "text"]
    return next((name for name in ("text", "messages", "prompt", "instruction", "source") if name in names), "text")


def require_form(place: str, form: str, first_place: str, first_form: str) -> None:
    """Raise InputError if the ``form`` of the file ``place`` differs from that of the first file."""
    if form != first_form:
        raise InputError(
            f"{place} has its texts in {form!r}, and {first_place} in {first_form!r}; give data of one form together, "
            "or write all with the same fields"
        )


def label_of(row: Mapping[str, Any], where: str, columns: Columns) -> str:
    """A record's label as a string: its name; a sorted JSON list of its distinct names; or its number.

    Raises InputError, naming ``where``, for anything else.
    """
    key, problem = columns.label_name, columns.problem
    if key not in row and columns.label is None:
        raise InputError(
            f"{where} lacks {key!r}; name the field of the label with --label-column, or give every record one; this "
            f"one holds {listed(row.keys())}"
        )
    if problem is HeadKind.ONE:
        if isinstance(row.get(key), list):
            raise InputError(
                f"{where} has a list as {key!r}, and the model predicts one label of a record; give one, or set "
                f'"problem_type": "{HeadKind.SEVERAL}" in its config.json'
            )
        return name_of(row, key, where)
    if problem is HeadKind.SEVERAL:
        value = row.get(key)
        names = [{key: name} for name in value] if isinstance(value, list) else [row]
        return json.dumps(sorted({name_of(name, key, where) for name in names}), ensure_ascii=False)
    if key not in row:
        raise InputError(f"{where} lacks {key!r}; give every record a number")
    value = row[key]
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} has no finite number as {key!r}, which the model predicts; give every record one")
    return repr(number)


def name_of(row: Mapping[str, Any], key: str, where: str) -> str:
    """The value, as a string, of a field that labels or groups records. A float is refused as a probable mistake.

    Raises InputError, naming ``where``, for anything but a printable string or an integer.
    """
    if key not in row:
        raise InputError(
            f"{where} lacks {key!r}; give every record one, a string or an integer; this one holds {listed(row.keys())}"
            f"{_meant(key, row)}"
        )
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        kind = "a number with a fraction" if isinstance(value, float) else kind_of(value)
        raise InputError(f"{where} has {kind} as {key!r}; expected a string or an integer")
    name = str(value).strip()
    if not name:
        raise InputError(f"{where} has an empty {key!r}; fill it or remove the record")
    if not name.isprintable():
        raise InputError(f"{where} has unprintable characters in {key!r}; use letters, digits and punctuation")
    return name


def _instructed(data: Mapping[str, Any], where: str) -> Passage:
    """The instruction, its input if there is one, and the output, each on its own line."""
    prompt = string_of(data, "instruction", where) + "\n"
    if data.get("input") not in (None, ""):
        prompt += string_of(data, "input", where) + "\n"
    key = "response" if "response" in data and "output" not in data else "output"
    return Passage(prompt + string_of(data, key, where), len(prompt))


def _conversation(messages: Any, where: str, chat: Chat | None) -> Passage:
    if not isinstance(messages, list) or not messages:
        kind = "an empty list" if messages == [] else kind_of(messages)
        raise InputError(f"{where} has {kind} as 'messages'; expected a list of messages, at least one")
    turns: list[dict[str, str]] = []
    for number, message in enumerate(messages, start=1):
        place = f"{where} message {number}"
        if not isinstance(message, Mapping):
            raise InputError(f"{place} is {kind_of(message)}; expected an object with 'role' and 'content'")
        expected = 'expected an object such as {"role": "user", "content": "..."}'
        turns.append({key: string_of(message, key, place, expected) for key in ("role", "content")})
    if chat is not None:
        return chat(turns, where)
    text = "\n".join(turn["content"] for turn in turns)
    return Passage(text, len(text) - len(turns[-1]["content"]))


def string_of(
    data: Mapping[str, Any], key: str, where: str, expected: str | None = None, *, empty: bool = False
) -> str:
    """The string in the field ``key``; raises InputError for other values, and for a blank one unless ``empty``."""
    if key not in data:
        expected = expected or f"{_EXPECTED}, or name the field of the text with --text-column"
        lacking = "text" if key == "prompt" and "response" not in data else key
        raise InputError(f"{where} lacks {lacking!r} (it has {listed(data)}); {expected}{_meant(lacking, data)}")
    value = data[key]
    if not isinstance(value, str):
        chat = "; without --text-column it is read as a conversation" if key == "messages" else ""
        raise InputError(f"{where} has {kind_of(value)} as {key!r}; expected a string{chat}")
    if not empty and not value.strip():
        raise InputError(f"{where} has an empty {key!r}; fill it or remove the line")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has an unpaired surrogate in {key!r}, which is not a character; repair it") from None
    return value


def _meant(lacking: str, names: Collection[str]) -> str:
    """A question after the field that ``lacking`` may be a slip for, or nothing."""
    some = [name for name in list(names)[:_COMPARED] if len(name) <= _LONGEST_COMPARED]
    near = get_close_matches(lacking, some, n=1) if len(lacking) <= _LONGEST_COMPARED else []
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Collection[str]) -> str:
    """The first few names of fields, for an error message."""
    quoted = [repr(name[:100]) for name in list(names)[:_SHOWN]]
    return ", ".join([*quoted, *(["..."] if len(names) > _SHOWN else [])]) or "no keys"


def kind_of(value: Any) -> str:
    """The JSON type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else "no text")
