"""Conversations become texts by the tokenizer's chat template, in its sandbox."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from audits.scores.subject import with_chat
from privctl.data.columns import Columns
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import InputError
from privctl.models.chat import chat_of
from privctl.models.guard import templates
from privctl.models.language import LanguageModel
from privctl.storage.reader import ADAPTER_NAME

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


@pytest.mark.parametrize(("own", "named"), [(False, "base"), (True, "adapter")])
def test_of_an_adapter_the_tokenizer_without_a_template_is_named(tmp_path: Path, own: bool, named: str) -> None:
    folders = {name: tmp_path / name for name in ("base", "adapter")}
    model(folders["base"], None)
    folders["adapter"].mkdir()
    (folders["adapter"] / ADAPTER_NAME).write_bytes(b"")
    if own:
        model(folders["adapter"], None)
    tokenizer = AutoTokenizer.from_pretrained(folders["base"])
    loaded = LanguageModel(path=folders["adapter"], folder=folders["base"], network=None, tokenizer=tokenizer,
                           device=torch.device("cpu"), base=folders["base"])  # fmt: skip
    chat = with_chat(None, loaded).chat
    assert chat is not None
    with pytest.raises(InputError, match=f"the tokenizer of {folders[named]} has no chat template"):
        chat(_TURNS, "line 1")


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ raise_exception('roles must alternate') }}", "is refused by the chat template .* roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is refused by the chat template"),
        ("{{ messages.append(1) }}", "is refused by the chat template"),
        ("{% for %}", "is refused by the chat template"),
        ("{{ messages[0]['nothing'] }}", "is nothing to the chat template"),
        (
            "{% for i in range(90000) %}{{ 'longer and longer' }}{% endfor %}",
            "is refused by the chat template .* has 1530000 characters",
        ),
    ],
)
def test_templates_that_refuse_or_attack(tmp_path: Path, template: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        read(tmp_path, model(tmp_path / "model", template))
    assert "\n" not in str(caught.value)


_RICH = """{%- set ns = namespace(seen=0, last='') -%}
{% for m in messages if m.content != 'skipped' %}
  {%- if m.role not in ['system', 'user', 'assistant'] %}{% continue %}{% endif %}
  {%- set ns.seen = ns.seen + 1 %}{% set ns.last = m['role'] | upper %}
<{{ ns.last }}:{{ loop.index0 }}>{{ m.content | trim | replace('you', 'they') }}
  {% generation %}[{{ m | tojson }}]{% endgeneration %}
{% endfor %}
{{ dict(a=1) | tojson(indent=2) }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ strftime_now('%Y') }}
{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('<&>') }}{% if add_generation_prompt %}>>{% endif %}"""


@pytest.mark.parametrize("template", [_TEMPLATE, _RICH])
def test_the_text_is_what_transformers_makes(tmp_path: Path, template: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model(tmp_path / "model", template))
    turns = [{"role": "system", "content": " be  kind\n"}, *_TURNS, {"role": "user", "content": "skipped"}, *_TURNS]
    calls = [{"messages": turns, "add_generation_prompt": False}, {"messages": turns, "add_generation_prompt": True}]
    expected = tuple(
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asked) for asked in (False, True)
    )
    found = templates.render(template, tokenizer.special_tokens_map, calls, longest=10_000)
    assert found == expected
    assert "how are" in found[0]


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "it takes more than"),
        pytest.param("{{ 10 ** (10 ** 9) }}", "it takes more than", marks=pytest.mark.slow),
        ("{{ 'a' * 10 ** 9 }}", "more than 96 MiB of memory"),
        ("{{ '%999999999d' % 1 }}", "more than 96 MiB of memory"),
        ("{{ 'a' | center(10 ** 9) }}", "more than 96 MiB of memory"),
        ("{{ ([messages] * 10 ** 8) | length }}", "more than 96 MiB of memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (
            "{% macro f(n) %}{{ f(n + n) }}{{ f(n) }}{% endmacro %}{{ f('abcd' * 999) }}",
            "recursion|MiB|it takes more than",
        ),
        ("{{ range(10 ** 9) | list | length }}", "range|Range"),
        ("{{ " + "(" * 20000 + ")" * 20000 + " }}", "is refused by the chat template"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "underscore"),
        ("{{ '\\ud800' }}", "unpaired surrogate"),
    ],
)
def test_templates_have_little_time_and_memory(
    template: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None hangs, and the memory of this process does not grow."""
    monkeypatch.setattr(templates, "SECONDS", 0)
    monkeypatch.setattr(templates, "MEMORY", 96 << 20)
    folder = model(tmp_path / "model", template)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=fault) as caught:
        read(tmp_path, folder)
    assert "is refused by the chat template" in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert read(tmp_path, model(tmp_path / "good", _TEMPLATE)).start, "the next conversation is rendered as ever"


def test_the_process_that_renders_is_given_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, Any] = {}
    started = subprocess.Popen

    def noted(*arguments: Any, **keywords: Any) -> Any:
        environment.update(keywords)
        return started(*arguments, **keywords)

    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(templates.subprocess, "Popen", noted)
    renderer = templates._Renderer()
    monkeypatch.setattr(templates, "_renderer", lambda process: renderer)
    assert templates.render("{{ x }}", {}, [{"x": "y"}], longest=10) == ("y",)
    assert environment["env"]["TZ"] == "UTC"
    assert "HF_TOKEN" not in environment["env"]
