"""Silences transformers' own messages; commands report what users need to know."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as _logging

_hf_logging: Any = _logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings within the block.

    The levels of its handlers are changed, not that of its logger, which would invalidate the cached levels of a
    thousand other loggers.
    """
    root, bars = _hf_logging.get_logger(), _hf_logging.is_progress_bar_enabled()
    propagates, levels = root.propagate, [(handler, handler.level) for handler in root.handlers]
    root.propagate = False  # if CI is set in the environment, transformers propagates them to other handlers
    for handler, _ in levels:
        handler.setLevel(logging.CRITICAL)
    _hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.propagate = propagates
        for handler, level in levels:
            handler.setLevel(level)
        if bars:
            _hf_logging.enable_progress_bar()
