"""Formats conversations as text with the chat template of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from privctl.data.columns import Chat, Passage
from privctl.domain.errors import InputError
from privctl.models.guard.templates import render
from privctl.models.language import read_tokenizer, tokenizer_folder
from privctl.models.quiet import quiet_transformers

#: Limits on the characters of a rendered conversation: the larger of a constant and a multiple of its contents' length.
_LONGEST, _GROWTH = 1 << 20, 100


def chat_of(path: Path, adapter: Path | None = None) -> Chat:
    """The chat formatter of the model at ``path``, whose tokenizer is read at the first conversation.

    If an ``adapter`` for the model has its own tokenizer, its template is used, in training and audits alike. The
    formatter raises InputError if there is no tokenizer, and as that of ``chat_with`` does.
    """
    own_folder = tokenizer_folder(adapter)
    named, folder = own_folder or path, own_folder or (path if path.is_dir() else path.parent)

    @cache
    def own() -> Chat:
        with quiet_transformers():
            tokenizer = read_tokenizer(folder, named)
        return chat_with(lambda: tokenizer, named)

    return lambda messages, where: own()(messages, where)


def chat_with(tokenizer: Callable[[], Any], path: Path) -> Chat:
    """The chat formatter of a loaded tokenizer; ``path`` names its model in errors.

    Templates run in Jinja's sandbox, in a process with limited time and memory (see ``render``). The response begins
    at the last message if that is the assistant's. A start token that the tokenizer itself adds to every text is
    removed. The formatter raises InputError for a tokenizer without a template, and for a conversation that the
    template refuses.
    """

    def chat(messages: list[dict[str, str]], where: str) -> Passage:
        encoder = tokenizer()
        _require_template(encoder, where, path)
        calls: list[dict[str, Any]] = [{"messages": messages, "add_generation_prompt": False}]
        if messages[-1]["role"] == "assistant" and len(messages) > 1:
            calls.append({"messages": messages[:-1], "add_generation_prompt": True})
        text, *prompts = _rendered(encoder, messages, calls, where, path)
        start = next((len(prompt) for prompt in prompts if text.startswith(prompt)), 0)
        without_start = _without_start_token(encoder, text)
        return Passage(without_start, max(0, start - (len(text) - len(without_start))))

    return chat


def asking_with(tokenizer: Any, path: Path) -> Chat:
    """As ``chat_with``, but for a response yet to be generated: the text ends with the generation prompt."""

    def ask(messages: list[dict[str, str]], where: str) -> Passage:
        _require_template(tokenizer, where, path)
        calls: list[dict[str, Any]] = [{"messages": messages, "add_generation_prompt": True}]
        return Passage(_without_start_token(tokenizer, _rendered(tokenizer, messages, calls, where, path)[0]))

    return ask


def _require_template(encoder: Any, where: str, path: Path) -> None:
    if not getattr(encoder, "chat_template", None):
        raise InputError(
            f"{where} is a conversation, and the tokenizer of {path} has no chat template; give a model with one "
            "(chat_template.jinja), or a field of plain text with --text-column"
        )


def _without_start_token(encoder: Any, text: str) -> str:
    """``text`` without its start token, if the tokenizer adds that to every text itself."""
    first = encoder.bos_token
    is_own_start = first and text.startswith(first) and encoder("a")["input_ids"][:1] == [encoder.bos_token_id]
    return text[len(first) :] if is_own_start else text


def _rendered(
    encoder: Any, messages: list[dict[str, str]], calls: list[dict[str, Any]], where: str, path: Path
) -> tuple[str, ...]:
    """The template's text for each of ``calls``, all of them about ``messages``."""
    longest = max(_LONGEST, _GROWTH * sum(len(message["content"]) for message in messages))
    tokens = {
        name: [str(part) for part in token] if isinstance(token, list) else str(token)
        for name, token in encoder.special_tokens_map.items()
    }
    try:
        texts = render(encoder.get_chat_template(), tokens, calls, longest=longest)
    except (InputError, ValueError) as error:  # ValueError: there are several templates and no default
        raise InputError(
            f"{where} is refused by the chat template of {path}: {error}; repair the conversation or the template"
        ) from None
    if not texts[0].strip():
        raise InputError(f"{where} is nothing to the chat template of {path}; give a model with another template")
    return texts
