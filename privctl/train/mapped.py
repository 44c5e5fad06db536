"""Tensors whose memory is a file, for what one process must hold whole and need not hold in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from privctl.storage.atomic import writing


def mapped(tensor: Tensor, folder: Path) -> Tensor:
    """A copy of ``tensor`` in a file of its own in ``folder``, readable by its owner only, that has no name any more.

    The system writes and reads its pages as it sees fit, and frees them with the tensor, or with the process, however
    that ends. Raises FileSystemError where the file does not fit.
    """
    if not tensor.numel():
        return tensor.detach().cpu().clone()
    with writing(folder):
        descriptor, name = tempfile.mkstemp(prefix=".privctl-", dir=folder)
        try:
            os.posix_fallocate(descriptor, 0, tensor.nbytes)  # a full disk shows now, and not as a signal later
            made = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        finally:
            os.close(descriptor)
            os.unlink(name)
    return made.view(tensor.shape).copy_(tensor)
