"""The tokenizer that is released: it may hold nothing that the one which the training began with did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.report import Artifact
from privctl.reports.files import read_report
from privctl.storage.digest import file_digest
from tests.gate.made import PROVED, making
from verify.files.tokenizer import ComparedTokenizer, check_tokenizer

_WORDS = {
    "added_tokens": [{"id": 2, "content": "<pad>"}],
    "normalizer": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
}
_FILES: dict[str, Any] = {"tokenizer.json": _WORDS, "tokenizer_config.json": {"chat_template": "{{ messages }}"}}


def released(folder: Path, change: Callable[[Path, Path], object]) -> ComparedTokenizer:
    """What is found after ``change`` of the folders of the start and of the release, listed as they are then."""
    start, model = folder / "start", folder / "m"
    for place in (start, model):
        place.mkdir()
        for name, content in _FILES.items():
            (place / name).write_text(json.dumps(content))
    change(start, model)

    def listed(folder: Path, role: str) -> list[Artifact]:
        return [
            Artifact(role=role.format(path.name), path=f"{folder.name}/{path.name}", digest=file_digest(path), bytes=1)
            for path in sorted(folder.iterdir())
        ]

    report = making(
        folder / "m.report.json", PROVED, inputs=listed(start, "start-{}"), outputs=tuple(listed(model, "companion"))
    )
    return check_tokenizer(report, read_report(report))


def edit(name: str, **keys: Any) -> Callable[[Path, Path], object]:
    def change(_: Path, model: Path) -> None:
        (model / name).write_text(json.dumps({**json.loads((model / name).read_text()), **keys}))

    return change


def with_template(text: str) -> Callable[[Path, Path], object]:
    return lambda start, model: (model / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda start, model: None, ""),
        (edit("tokenizer_config.json", is_local=True, backend="tokenizers"), ""),
        (with_template("{{ messages }}"), ""),
        (edit("tokenizer.json", model={**_WORDS["model"], "merges": [["a", "b"]]}), ""),  # type: ignore[dict-item]
        (edit("tokenizer.json", model={**_WORDS["model"], "vocab": {"a": 0, "Ann Lee": 1}}), "its words"),  # type: ignore[dict-item]
        (edit("tokenizer.json", model={**_WORDS["model"], "merges": ["b a"]}), "its merges"),  # type: ignore[dict-item]
        (edit("tokenizer.json", added_tokens=[{"id": 3, "content": "<pad>"}]), "its added token '<pad>'"),
        (with_template("Ann Lee's number is 1234. {{ messages }}"), "its chat template"),
        (edit("tokenizer_config.json", chat_template="Ann Lee {{ messages }}"), "its chat template"),
    ],
)  # fmt: skip
def test_another_tokenizer_is_refuted(tmp_path: Path, change: Callable[[Path, Path], object], word: str) -> None:
    found = released(tmp_path, change)
    assert [verdict.reason.startswith(word) for verdict in found.verdicts] == ([True] if word else [])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (edit("tokenizer.json", normalizer={"type": "Lowercase"}), "its normalizer is written otherwise"),
        (edit("tokenizer.json", model={**_WORDS["model"], "unk_token": "Ann Lee"}), "its 'unk_token' is written"),  # type: ignore[dict-item]
        (edit("tokenizer.json", note="Ann Lee", truncation={}), "its 'note', 'truncation' are written otherwise"),
        (edit("tokenizer_config.json", pad_token="Ann Lee"), "tokenizer_config.json: its 'pad_token' is not as in"),
        (edit("tokenizer_config.json", is_local="Ann Lee"), "tokenizer_config.json: its 'is_local' is not as in"),
        (lambda start, model: (model / "README.md").write_text("Ann Lee"), "README.md: the training began with none"),
        (lambda start, model: (model / "special_tokens_map.json").write_text("{}"), "began with none that is at hand"),
        (edit("tokenizer.json", added_tokens=[*_WORDS["added_tokens"], {"id": 9, "content": "Ann Lee"}]), "'Ann Lee'"),  # type: ignore[misc]
        (lambda start, model: (start / "tokenizer.json").unlink(), "is not at hand, or not named"),
        (lambda start, model: (model / "tokenizer.json").write_text("[]"), "what cannot be read"),
    ],
)
def test_what_is_not_compared_is_said(tmp_path: Path, change: Callable[[Path, Path], object], word: str) -> None:
    found = released(tmp_path, change)
    assert found.verdicts == ()
    assert [word in omission.reason for omission in found.omissions] == [True]


def test_a_template_where_there_was_none_is_refuted(tmp_path: Path) -> None:
    def change(start: Path, model: Path) -> None:
        for folder in (start, model):
            (folder / "tokenizer_config.json").write_text("{}")
        (model / "chat_template.jinja").write_text("Ann Lee {{ messages }}")

    (found,) = released(tmp_path, change).verdicts
    assert found.reason.startswith("its chat template")


def _as_vocabulary(folder: Path, *, one_a_line: bool) -> None:
    """The words of ``folder``'s tokenizer.json as older tokenizers have them."""
    (folder / "tokenizer.json").unlink()
    if one_a_line:
        (folder / "vocab.txt").write_text("a\nb\n<pad>\n")
    else:
        (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<pad>": 2}))
        (folder / "merges.txt").write_text("#version: 0.2\na b\n")


@pytest.mark.parametrize("one_a_line", [True, False])
@pytest.mark.parametrize(
    ("model", "added", "word"),
    [
        ({}, [], ""),
        ({"vocab": {"a": 0, "b": 1, "Ann Lee": 2}}, [], "its words"),
        ({"merges": [["b", "a"]]}, [], "its merges"),
        ({}, [{"id": 7, "content": "<pad>"}], "its added token '<pad>'"),
    ],
)
def test_words_from_the_files_of_a_vocabulary_are_compared(
    tmp_path: Path, one_a_line: bool, model: dict[str, Any], added: list[dict[str, Any]], word: str
) -> None:
    whole = {"vocab": {"a": 0, "b": 1, "<pad>": 2}, "merges": [] if one_a_line else [["a", "b"]]}

    def change(start: Path, release: Path) -> None:
        _as_vocabulary(start, one_a_line=one_a_line)
        content = {**_WORDS, "model": {**whole, **model}, "added_tokens": added or _WORDS["added_tokens"]}
        (release / "tokenizer.json").write_text(json.dumps(content))

    found = released(tmp_path, change)
    assert [verdict.reason.startswith(word) for verdict in found.verdicts] == ([True] if word else [])
    assert [omission.reason.startswith("how it splits a text") for omission in found.omissions] == [True]


@pytest.mark.parametrize("one_a_line", [True, False])
def test_what_transformers_makes_of_a_vocabulary_has_its_words(tmp_path: Path, one_a_line: bool) -> None:
    from transformers import BertTokenizer, GPT2Tokenizer

    def change(start: Path, release: Path) -> None:
        for path in start.iterdir():
            path.unlink()
        if one_a_line:
            (start / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
        else:
            (start / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
            (start / "merges.txt").write_text("#version: 0.2\na b\n")
        kind = BertTokenizer if one_a_line else GPT2Tokenizer
        kind.from_pretrained(start).save_pretrained(release)

    found = released(tmp_path, change)
    assert found.verdicts == ()
    reasons = [omission.reason.split(":")[0] for omission in found.omissions]
    assert reasons == ["how it splits a text", "tokenizer_config.json"]
