"""The settings of ``privctl retrain dp-zo``. Imports nothing heavy, as the command builds its options from them."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.ranges import Range
from privctl.train.settings.choices import RunsLaw
from privctl.train.settings.method_settings import MethodSettings, option
from privctl.train.settings.searching import expected_runs_option, runs_law_option, search_option

#: The suffix of the file of released numbers, which is next to the model's directory.
SUFFIX = ".numbers.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class DpZoSettings(MethodSettings):
    """The number of ``directions`` of each step, and by how much weights move along them (``perturbation``).

    ``public_seed`` None draws a fresh seed; a given one must not have been chosen by looking at the data. ``search``,
    ``expected_runs`` and ``runs_law`` are the settings of a private search, as for DP-SGD.
    """

    directions: int = option(
        1,
        "Random directions per step; each takes two passes over the batch, and all share the clip norm.",
        within=Range(low=1, high=10_000),
        usual=True,
    )
    perturbation: float = option(
        1e-3,
        "By how much each weight moves, up and down, to compare an example's losses.",
        within=Range(low=1e-9, high=1.0),
    )
    public_seed: bytes | None = option(None, "Hexadecimal seed of the directions.  [default: a fresh one]")
    search: str | None = search_option()
    expected_runs: float | None = expected_runs_option()
    runs_law: RunsLaw | None = runs_law_option()
