"""Records for token classification (a label per word) and for extractive question answering (a span of a context)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from privctl.data.columns import (
    ANNOTATED,
    ANSWER,
    ANSWER_START,
    ANSWERS,
    CONTEXT,
    QUESTION,
    WORD_LABELS,
    WORDS,
    Columns,
    HeadKind,
    Passage,
    kind_of,
    listed,
    name_of,
    require_columns,
    require_unit,
    string_of,
)
from privctl.domain.errors import InputError
from privctl.domain.shown import counted

_TASKS = {HeadKind.TOKENS: "token-classification", HeadKind.SPAN: "question-answering"}
_ADVICE = {
    HeadKind.TOKENS: 'expected an object such as {"tokens": ["In", "Rome"], "ner_tags": ["O", "B-LOC"]}, or name other '
    "fields with --text-column and --label-column",
    HeadKind.SPAN: 'expected an object such as {"question": "...", "context": "...", "answers": {"text": ["..."], '
    '"answer_start": [0]}}',
}


def require_annotated(names: Collection[str], where: str, columns: Columns) -> None:
    """Raise InputError if a table with the columns ``names`` lacks those that the task of ``columns`` needs."""
    if columns.problem is HeadKind.SPAN:
        for name in (QUESTION, CONTEXT):
            if name not in names:
                raise _missing_field(names, where, name, columns.problem)
        if ANSWERS not in names:
            for name in (ANSWER, ANSWER_START):
                if name not in names:
                    raise _missing_field(names, where, ANSWERS, columns.problem)
        return
    _field(names, where, columns.text, WORDS)
    _field(names, where, columns.label, WORD_LABELS)


def annotated(data: Mapping[str, Any], where: str, columns: Columns) -> tuple[Passage, str]:
    """The text of a record, and its target as JSON.

    For token classification the text is the words joined by spaces, and the target the list of their labels. For
    question answering the text is the question, a line end and the context, which begins at the passage's ``start``;
    the target is the list of answers, each [first character in the context, text], empty if there is none. Raises
    InputError, naming ``where``, for anything else.
    """
    require_annotated(data, where, columns)
    return _question(data, where) if columns.problem is HeadKind.SPAN else _words(data, where, columns)


def answers_of(stated: str | None) -> list[tuple[int, str]]:
    """The answers, each (first character in the context, text), from the target that ``annotated`` returned."""
    return [(int(start), str(text)) for start, text in json.loads(stated or "[]")]


def _words(data: Mapping[str, Any], where: str, columns: Columns) -> tuple[Passage, str]:
    key = _field(data, where, columns.text, WORDS)
    label_key = _field(data, where, columns.label, WORD_LABELS)
    words, labels = (_list(data[name], where, name) for name in (key, label_key))
    if not words:
        raise InputError(f"{where} has no words in {key!r}; remove the record")
    if len(words) != len(labels):
        raise InputError(
            f"{where} has {counted(len(words), 'word')} in {key!r} and {counted(len(labels), 'label')} in "
            f"{label_key!r}; give each word one"
        )
    for number, word in enumerate(words, start=1):
        checked = string_of({key: word}, key, f"{where} word {number}", _ADVICE[HeadKind.TOKENS])
        if any(space in checked for space in " \t\r\n"):
            raise InputError(f"{where} word {number} has a space in it ({checked[:40]!r}); give every word by itself")
    names = [name_of({label_key: label}, label_key, f"{where} word {i}") for i, label in enumerate(labels, start=1)]
    return Passage(" ".join(words)), json.dumps(names, ensure_ascii=False)


def _question(data: Mapping[str, Any], where: str) -> tuple[Passage, str]:
    question, context = (string_of(data, name, where, _ADVICE[HeadKind.SPAN]) for name in (QUESTION, CONTEXT))
    if ANSWERS in data:
        stated = data[ANSWERS]
        if isinstance(stated, list):  # as in SQuAD's own file: a list of objects
            stated = {
                "text": [answer.get("text") if isinstance(answer, Mapping) else None for answer in stated],
                ANSWER_START: [answer.get(ANSWER_START) if isinstance(answer, Mapping) else None for answer in stated],
            }
        if not isinstance(stated, Mapping):
            raise InputError(f"{where} has {kind_of(stated)} as {ANSWERS!r}; {_ADVICE[HeadKind.SPAN]}")
        texts, starts = (_list(stated.get(name), where, f"{ANSWERS}: {name}") for name in ("text", ANSWER_START))
    else:
        texts, starts = [data[ANSWER]], [data[ANSWER_START]]
    if len(texts) != len(starts):
        raise InputError(
            f"{where} has {counted(len(texts), 'answer')} and {counted(len(starts), 'place')} where they start; give "
            "each answer one"
        )
    answers = [_answer(text, start, context, where) for text, start in zip(texts, starts, strict=True)]
    return Passage(f"{question}\n{context}", len(question) + 1), json.dumps(answers, ensure_ascii=False)


def _answer(text: Any, start: Any, context: str, where: str) -> tuple[int, str]:
    checked = string_of({"text": text}, "text", f"{where} answer", _ADVICE[HeadKind.SPAN])
    if isinstance(start, str) and start.strip().isdecimal():
        start = int(start)  # a table's cell
    if isinstance(start, bool) or not isinstance(start, int):
        raise InputError(f"{where} has {kind_of(start)} as {ANSWER_START!r}; expected where the answer starts")
    answer = context[start : start + len(checked)] if start >= 0 else ""
    if answer != checked:
        offset = context.find(checked)
        advice = f"it starts at {offset}" if offset >= 0 else "it is not in the context"
        raise InputError(
            f"{where} has the answer {checked[:40]!r}, which does not start at character {start} of its context; "
            f"{advice}"
        )
    return start, checked


def _list(value: Any, where: str, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} has {kind_of(value)} as {name!r}; expected a list")
    return value


def _field(names: Collection[str], where: str, named: str | None, usual: Sequence[str]) -> str:
    field = next((name for name in ((named,) if named is not None else usual) if name in names), None)
    if field is None:
        raise _missing_field(names, where, named or usual[0], HeadKind.TOKENS)
    return field


def _missing_field(names: Collection[str], where: str, name: str, problem: HeadKind) -> InputError:
    return InputError(
        f"{where} lacks {name!r}, which the task {_TASKS[problem]} needs (it has {listed(names)}); {_ADVICE[problem]}"
    )


def require_named(
    names: Collection[str], where: str, columns: Columns, *, labelled: bool = False, unit: str | None = None
) -> None:
    """Raise InputError if ``names`` lacks a column that ``columns``, ``labelled`` or ``unit`` requires."""
    if columns.problem not in ANNOTATED:
        require_columns(names, where, columns, labelled=labelled, unit=unit)
        return
    require_annotated(names, where, columns)
    require_unit(names, where, unit)
