"""The sizes of both experiments, and the order of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.harness.running import shuffled

#: Trainings without noise, and with ordinary Poisson batches. The other trainings are named by their cap.
PLAIN, UNIFORM = "plain", "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The first experiment: rare words of abstracts as secrets, a small masked language model from random weights.

    ``words`` words of each text are kept. A rare word is in ``least`` to ``most`` records. ``caps`` is the number of
    caps of the sweep to train with, including no cap. ``rates`` are learning rates without and with noise.
    """

    private: int = 9000
    test: int = 800
    words: int = 24
    vocabulary: int = 4000
    least: int = 10
    most: int = 50
    prior: float = 0.001
    posterior: float = 0.5
    steps: int = 150
    batch_size: int = 64
    max_length: int = 32
    hidden: int = 128
    layers: int = 2
    caps: int = 7
    rates: tuple[float, float] = (3e-3, 3e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The second experiment: numbers planted after the first words of abstracts, a small pretrained model.

    A coin decides for each of ``canaries`` whether it is included, in ``copies`` records. ``noises`` are noise
    multipliers, 0 for plain training. ``rates`` are learning rates without and with noise.
    """

    records: int = 400
    words: int = 8
    canaries: int = 80
    copies: int = 8
    digits: int = 5
    candidates: int = 100
    steps: int = 150
    batch_size: int = 48
    max_length: int = 48
    noises: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    rates: tuple[float, float] = (3e-3, 3e-3)


QUICK_WEIGHTS = Weights(private=1500, test=200, vocabulary=1500, least=5, most=20, steps=30, hidden=32, caps=2)
QUICK_EXTRACTION = Extraction(records=100, canaries=40, steps=40, noises=(0.0, 0.3))


def plain(settings: Weights | Extraction) -> dict[str, Any]:
    """The settings as plain values, in the form of the results."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


def grid(keys: Sequence[str], seeds: int) -> list[tuple[str, int]]:
    """All pairs of one of ``keys`` and a seed, shuffled within a seed."""
    return shuffled(seeds, lambda seed: [(key, seed) for key in keys])
