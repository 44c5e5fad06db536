"""Conversations become texts by the tokenizer's chat template, in its sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from privctl.data.columns import Columns
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import InputError
from privctl.models.chat import chat_of

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '|' + m.role + '|' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '|assistant|' }}{% endif %}"
)
_TURNS = [{"role": "user", "content": "how are you"}, {"role": "assistant", "content": "fine"}]


def model(folder: Path, template: str | None, *, begins: bool = True) -> Path:
    """A folder with nothing but a tokenizer, which puts [BOS] before every text where it ``begins`` so."""
    inner = Tokenizer(WordLevel({"[UNK]": 0, "[BOS]": 1, "fine": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    if begins:
        inner.post_processor = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", bos_token="[BOS]")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def read(tmp_path: Path, folder: Path, turns: object = _TURNS) -> TextRecord:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": turns}))
    (record,) = read_texts(path, columns=Columns(chat=chat_of(folder)))
    return record


@pytest.mark.parametrize("begins", [True, False])
def test_the_template_makes_the_text_and_its_response(tmp_path: Path, begins: bool) -> None:
    record = read(tmp_path, model(tmp_path / "model", _TEMPLATE, begins=begins))
    first = "" if begins else "[BOS]"  # the tokenizer's own is not written twice
    assert record.text == f"{first}|user|how are you\n|assistant|fine\n"
    assert record.text[record.start :] == "fine\n"
    asked = read(tmp_path, tmp_path / "model", _TURNS[:1])
    assert (asked.text, asked.start) == (f"{first}|user|how are you\n", 0)


def test_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1 is a conversation, and the tokenizer of .*model has no chat template"):
        read(tmp_path, model(tmp_path / "model", None))


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ raise_exception('roles must alternate') }}", "is refused by the chat template .* roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is refused by the chat template"),
        ("{{ messages.append(1) }}", "is refused by the chat template"),
        ("{% for %}", "is refused by the chat template"),
        ("{{ messages[0]['nothing'] }}", "is nothing to the chat template"),
        ("{% for i in range(90000) %}{{ 'longer and longer' }}{% endfor %}", "becomes 1530000 characters"),
    ],
)
def test_templates_that_refuse_or_attack(tmp_path: Path, template: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        read(tmp_path, model(tmp_path / "model", template))
    assert "\n" not in str(caught.value)
