"""The candidates of a private search, as given by ``--search``. Imports nothing heavy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import CommandError
from privctl.train.settings.choices import Schedule

if TYPE_CHECKING:
    from privctl.train.settings.request import RetrainRequest

#: Settings that may be searched, with their types. All candidates must have the same privacy cost, so those that set
#: the noise, the sampling rate or the steps are excluded.
SEARCHABLE: Mapping[str, type] = {
    "learning_rate": float, "clip_norm": float, "weight_decay": float, "beta1": float, "beta2": float,
    "warmup_steps": int, "schedule": Schedule,
}  # fmt: skip
_EXAMPLE = "learning-rate=1e-4,3e-4,1e-3 clip-norm=0.5,1"
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSettings:
    """The Cartesian product of the values of ``settings``."""

    settings: Mapping[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.combinations)

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """The settings of each candidate, by name."""
        return [dict(zip(self.settings, values, strict=True)) for values in itertools.product(*self.settings.values())]


def candidates_of(text: str) -> SearchedSettings:
    """The candidates in ``text``, the value of ``--search``. Raises CommandError if it is malformed."""
    found: dict[str, tuple[Any, ...]] = {}
    for part in text.split():
        name, _, values = part.partition("=")
        known = name.removeprefix("--").replace("-", "_")
        if known not in SEARCHABLE:
            allowed = ", ".join(setting.replace("_", "-") for setting in SEARCHABLE)
            raise CommandError(
                f"--search names {name!r}; all candidates must cost the same, so give some of {allowed}, as in "
                f"{_EXAMPLE!r}"
            )
        if known in found:
            raise CommandError(f"--search names {name} twice; put all its values behind one")
        try:
            found[known] = tuple(SEARCHABLE[known](value) for value in values.split(","))
        except ValueError:
            raise CommandError(f"--search {part} holds no list of values, as in {_EXAMPLE!r}") from None
        if len(set(found[known])) < len(found[known]):
            raise CommandError(f"--search {part} names a value twice; a value more likely than others is not supported")
    candidates = SearchedSettings(settings=found)
    if not found or len(candidates) < 2:
        raise CommandError(f"--search {text!r} names fewer than two candidates; name some, as in {_EXAMPLE!r}")
    if len(candidates) > _MOST:
        raise CommandError(f"--search names {len(candidates)} combinations; at most {_MOST} can be searched")
    return candidates


def searched_by(request: RetrainRequest) -> str:
    """The value of ``--search`` in ``request``. Raises CommandError for a method that has no such setting."""
    text = getattr(request.settings, "search", None)
    if not isinstance(text, str):
        raise CommandError(f"{request.method_name} searches nothing")
    return text


def require_searchable(request: RetrainRequest, candidates: SearchedSettings) -> None:
    """Raise CommandError for a candidate with invalid settings, and for options that do not go with a search."""
    from privctl.data.places import STDIN
    from privctl.data.several import paths_of
    from privctl.domain.checks import flagged
    from privctl.domain.mechanism import Optimizer
    from privctl.train.settings.recipe import TrainingSettings

    for given, what in (
        (request.data.held_out is None, "chooses by public held-out examples; give them as --held-out"),
        (request.secrets is not None, "draws every record at one rate; remove --secrets"),
        (request.fsdp, "trains in one process; remove --fsdp"),
        (request.show_unprotected, "shows nothing of the runs that lose; remove --show-unprotected"),
        (bool(request.logs), "shows nothing of the runs that lose; remove --log"),
        (STDIN in paths_of(request.data.train), "reads the data once for every run; put them into a file"),
    ):
        if given:
            raise CommandError(f"--search {what}")
    if request.optimizer in (Optimizer.SGD, Optimizer.MOMENTUM):
        for name in ("beta1", "beta2"):
            if name in candidates.settings:
                raise CommandError(
                    f"--search names {name}, which --optimizer {request.optimizer} does not use; remove it, or train "
                    "with adam or adamw"
                )
    for combination in candidates.combinations:
        try:
            TrainingSettings(
                method=request.method_name, steps=1, batch_size=1, sample_rate=1, noise_multiplier=1,
                **{"learning_rate": request.rate_for(request.batch_size), **combination},
            )  # fmt: skip
        except ValueError as error:
            raise CommandError(flagged(str(error), SEARCHABLE)) from None
