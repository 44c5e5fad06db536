"""transformers without its own messages: what there is to say, the command says."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as _logging

_chatter: Any = _logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the streams while the block runs.

    Its handlers are quieted, not its logger: a logger's new level makes each of a thousand others look its own up anew.
    """
    root, bars = _chatter.get_logger(), _chatter.is_progress_bar_enabled()
    propagates, levels = root.propagate, [(handler, handler.level) for handler in root.handlers]
    root.propagate = False  # with CI in the environment, transformers lets them through to others' handlers
    for handler, _ in levels:
        handler.setLevel(logging.CRITICAL)
    _chatter.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.propagate = propagates
        for handler, level in levels:
            handler.setLevel(level)
        if bars:
            _chatter.enable_progress_bar()
