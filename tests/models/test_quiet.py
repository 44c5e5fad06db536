"""transformers says nothing while it is kept quiet, and afterwards what it did before."""

from __future__ import annotations

import logging

import pytest
from transformers.utils import logging as chatter

from privctl.models.quiet import quiet_transformers


@pytest.mark.parametrize("propagates", [False, True])
def test_nothing_is_said_in_the_block(propagates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    root, listening = chatter.get_logger(), Listening()
    monkeypatch.setattr(root, "propagate", propagates)  # transformers does where CI is in the environment
    holder = logging.getLogger() if propagates else root
    monkeypatch.setattr(holder, "handlers", [*holder.handlers, listening])
    deep = chatter.get_logger("transformers.some.module")
    deep.warning("before")
    remembered = dict(deep._cache)  # type: ignore[attr-defined]
    with quiet_transformers():
        deep.warning("in the block")
        with quiet_transformers():
            deep.error("further in")
        deep.error("still in it")
    assert messages == ["before"]
    assert deep._cache == {**remembered, logging.ERROR: True}, "no logger has to look its level up anew"  # type: ignore[attr-defined]
    deep.warning("after")
    assert messages == ["before", "after"]
    assert root.propagate is propagates
    assert listening.level == logging.NOTSET
