"""Networks that cannot be run on what privctl gives them, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from privctl.domain.errors import InputError, PrivctlError

#: Model types that read a text and something else, which records of texts do not have.
_BESIDE_TEXT = {
    "bros": "where each word stands on a page (bbox)",
    "lxmert": "the features of an image (visual_feats)",
}


def check_text_alone(path: Path, config: Any, noun: str) -> None:
    """Raise InputError, asking for ``noun``, for a model at ``path`` whose ``config`` needs more than a text.

    transformers gives those inputs defaults, so that only running the network shows it.
    """
    kind = getattr(config, "model_type", "")
    if kind in _BESIDE_TEXT:
        raise InputError(
            f"{path} ({kind}) needs {_BESIDE_TEXT[kind]} beside the text, and records hold none; "
            f"give {noun} such as BERT"
        )


@contextmanager
def network_errors(path: Path, network: Any, given: str = "what it is given") -> Iterator[None]:
    """Turn whatever ``network``, of the model at ``path``, raises in the block into an InputError of one sentence.

    Settings that contradict each other, or inputs that it lacks, show only when it is run. ``given`` names what it is
    run on. Running out of a device's memory is passed on.
    """
    try:
        yield
    except (torch.OutOfMemoryError, PrivctlError):
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        kind = getattr(getattr(network, "config", None), "model_type", "network")
        raise InputError(
            f"{path} ({kind}) cannot be run on {given}: {type(error).__name__} {detail}; check that its config.json "
            "belongs to its weights"
        ) from None
