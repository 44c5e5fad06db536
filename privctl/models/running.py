"""Errors for networks that cannot be run on the inputs that privctl gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from privctl.domain.errors import InputError, PrivctlError

#: Model type -> the input it needs besides text, which records of texts lack.
_BESIDE_TEXT = {
    "bros": "where each word stands on a page (bbox)",
    "lxmert": "the features of an image (visual_feats)",
}


def check_text_alone(path: Path, config: Any, noun: str) -> None:
    """Raise InputError, which suggests ``noun``, for a model at ``path`` whose ``config`` needs more than a text.

    transformers has defaults for those inputs, so without this check only running the network would show it.
    """
    kind = getattr(config, "model_type", "")
    if kind in _BESIDE_TEXT:
        raise InputError(
            f"{path} ({kind}) needs {_BESIDE_TEXT[kind]} beside the text, and records hold none; "
            f"give {noun} such as BERT"
        )


@contextmanager
def network_errors(path: Path, network: Any, given: str = "what it is given") -> Iterator[None]:
    """Turn any exception of ``network``, of the model at ``path``, within the block into an InputError of one sentence.

    Contradictory settings and missing inputs show only when a network is run. ``given`` describes its input. Running
    out of device memory and PrivctlError are passed on.
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
