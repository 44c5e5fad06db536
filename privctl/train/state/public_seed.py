"""The seed of a run's public random choices: given, or drawn once and saved with the run's state."""

from __future__ import annotations

import os

import torch

from privctl.domain.errors import InputError
from privctl.parallel import Workers
from privctl.storage.reader import read_text
from privctl.train.preparation.places import run_folder
from privctl.train.settings.request import RetrainRequest

#: Enough bytes that no two runs share a seed by accident.
SEED_BYTES = 16
#: Its file in the run's folder.
SEED_FILE = "public-seed"


def public_seed(request: RetrainRequest, workers: Workers, given: bytes | None) -> bytes:
    """The given seed, the saved seed of a resumed run, or a fresh one; the same in all processes.

    Raises InputError if the saved seed is damaged.
    """
    place, seed = run_folder(request.output) / SEED_FILE, given
    if seed is None and request.resume and place.is_file():
        try:
            seed = bytes.fromhex(read_text(place))
        except ValueError:
            raise InputError(
                f"{place} is damaged, so the run cannot repeat its public random choices; remove the folder and start "
                "again"
            ) from None
    if seed is None:
        seed = bytes(workers.broadcast(torch.tensor(list(os.urandom(SEED_BYTES)))).tolist())
    return seed
