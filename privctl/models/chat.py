"""Conversations as the text that a model's tokenizer makes of them by its chat template."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from privctl.data.columns import Chat, Passage
from privctl.domain.errors import InputError
from privctl.models.language import quiet_transformers, read_tokenizer

#: Characters that a template may make of one conversation, and of each of its own.
_LONGEST, _GROWTH = 1 << 20, 100


def chat_of(path: Path) -> Chat:
    """The chat of the model at ``path``, whose tokenizer is read when the first conversation is met.

    The chat raises InputError where there is no tokenizer, and as that of ``chat_with`` does.
    """
    folder = path if path.is_dir() else path.parent

    @cache
    def own() -> Chat:
        with quiet_transformers():
            tokenizer = read_tokenizer(folder, path)
        return chat_with(lambda: tokenizer, path)

    return lambda messages, where: own()(messages, where)


def chat_with(tokenizer: Callable[[], Any], path: Path) -> Chat:
    """The chat of a loaded tokenizer, of the model at ``path``.

    Templates run in transformers' sandbox (Jinja's ``ImmutableSandboxedEnvironment``). The response begins where the
    last message does, if that is the assistant's. A token that the tokenizer puts before every text is left to it.
    The chat raises InputError for a tokenizer without a template, and for a conversation that it refuses.
    """

    def chat(messages: list[dict[str, str]], where: str) -> Passage:
        encoder = tokenizer()
        if not getattr(encoder, "chat_template", None):
            raise InputError(
                f"{where} is a conversation, and the tokenizer of {path} has no chat template; give a model with one "
                "(chat_template.jinja), or a field of plain text with --text-column"
            )
        text = _rendered(encoder, messages, where, path)
        start = 0
        if messages[-1]["role"] == "assistant" and len(messages) > 1:
            prompt = _rendered(encoder, messages[:-1], where, path, add_generation_prompt=True)
            start = len(prompt) if text.startswith(prompt) else 0
        first = encoder.bos_token
        if first and text.startswith(first) and encoder("a")["input_ids"][:1] == [encoder.bos_token_id]:
            text, start = text[len(first) :], max(0, start - len(first))
        return Passage(text, start)

    return chat


def _rendered(encoder: Any, messages: list[dict[str, str]], where: str, path: Path, **options: Any) -> str:
    try:
        with quiet_transformers():
            text = encoder.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # a template may raise anything, also on purpose
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where} is refused by the chat template of {path}: {said}; repair the conversation"
        ) from None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where} is nothing to the chat template of {path}; give a model with another template")
    if len(text) > max(_LONGEST, _GROWTH * sum(len(m["content"]) for m in messages)):
        raise InputError(f"{where} becomes {len(text)} characters by the chat template of {path}; repair the template")
    return text
