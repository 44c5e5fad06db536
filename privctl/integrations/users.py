"""Users as the examples of a private training: steps draw users, and clip the records of each together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from privctl.data.names import alike, spelled_alike
from privctl.domain.errors import CommandError, InputError
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.randomness import NoiseSource

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_EACH = "each record is one example; who is in several records is protected in each, not in all together"
#: The most characters of the name of a unit.
_LONGEST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The examples that steps draw: single records, or with a ``unit`` all records of a user.

    ``records`` is the number of records. ``rows`` [users] are arrays of the positions of each user's records, or None
    where each record is an example. A step uses ``per_draw`` records of each drawn user, chosen by ``source``.
    ``similar`` is the number of users whose names differ from another's only in spelling.
    """

    records: int
    unit: str | None = None
    rows: tuple[NDArray[np.int64], ...] | None = None
    per_draw: int = 1
    similar: int = 0
    source: NoiseSource | None = None

    @property
    def count(self) -> int:
        """The number of examples: records, or users."""
        return self.records if self.rows is None else len(self.rows)

    def records_of(self, drawn: Sequence[int], step: int) -> list[int]:
        """The positions of the records to use in ``step``: ``per_draw`` of each example in ``drawn``, consecutively.

        The records of a user are drawn again in each step, independently of other users and without replacement. Of a
        user with fewer than ``per_draw``, each is used about equally often.
        """
        if self.rows is None:
            return list(drawn)
        assert self.source is not None
        chosen: list[int] = []
        for user in drawn:
            user_rows = self.rows[user]
            # Each user has its own part of the keystream, so that draws of different users are independent.
            order = np.random.default_rng(self.source.words(step, user, 4)).permutation(user_rows)
            chosen += np.resize(order, self.per_draw).tolist()
        return chosen

    def together(self, losses_of: Callable[[], Tensor], rows: int) -> Callable[[], Tensor]:
        """A function like ``losses_of``, for ``rows`` rows, that returns one loss per example: the mean of its rows."""
        if self.per_draw == 1:
            return losses_of

        def means() -> Tensor:
            losses = losses_of()
            require_rows(len(losses) if getattr(losses, "ndim", 0) else 0, rows)
            return losses.reshape(-1, self.per_draw).mean(dim=1)

        return means

    def premises(self) -> Iterator[Assumption]:
        """The asserted assumptions: what one example is, and that similar names are those of different users."""
        yield Assumption(name="unit of privacy", statement=self._statement(), state=AssumptionState.ASSERTED)
        if self.similar:
            yield Assumption(
                name="names of users",
                statement=f"{self.similar} names in {self.unit!r} that differ from another's only in case, spaces or "
                "Unicode form are those of different users",
                state=AssumptionState.ASSERTED,
            )

    def parameters(self) -> dict[str, Any]:
        """The parameters of a report about users; empty without a ``unit``."""
        if self.unit is None:
            return {}
        several = {"records_per_draw": self.per_draw} if self.per_draw > 1 else {}
        return {"unit": self.unit, "records": self.records, "similar_names": self.similar, **several}

    def warnings(self) -> Iterator[str]:
        """A warning where names of users differ only in spelling."""
        if self.similar and self.unit is not None:
            yield alike(self.similar, self.unit)

    def _statement(self) -> str:
        if self.unit is None:
            return _EACH
        mean = ""
        if self.per_draw > 1:
            mean = f", and of up to {self.per_draw} that a step draws the mean gradient is clipped"
        return f"all records with one value of {self.unit!r} are one example{mean}"


def require_rows(found: int, drawn: int) -> None:
    """Raise CommandError where the number of losses ``found`` is not the number of rows ``drawn``."""
    if found != drawn:
        raise CommandError(
            f"{drawn} rows were drawn and {found} losses came back; train on each batch as it is drawn, neither cut "
            "nor extended; one that is too large to compute at once goes in the pieces of the private training's "
            "pieces(ROWS)"
        )


def require_each_once(dataset: Any) -> None:
    """Raise CommandError where a Subset or ConcatDataset has a record several times, as for rare classes.

    Each of its copies is drawn and clipped by itself.
    """
    if isinstance(dataset, Subset | ConcatDataset):
        positions = _positions(dataset, {})
        if repeated := len(positions) - len(np.unique(positions)):
            raise CommandError(
                f"{repeated} of the data set's {len(positions)} records are copies of others, each of which would "
                "count as an example; give each record once, or pass users, with one name for all copies of a record"
            )


def _positions(dataset: Any, numbers: dict[int, int]) -> NDArray[np.int64]:
    """A number for each record, the same for copies; ``numbers`` has those of the data sets seen, by their ids."""
    if isinstance(dataset, Subset):
        return _positions(dataset.dataset, numbers)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_positions(each, numbers) for each in dataset.datasets])
    return (numbers.setdefault(id(dataset), len(numbers)) << 40) + np.arange(len(dataset), dtype=np.int64)


def users_of(users: Sequence[Any] | None, records: int, unit: str, per_draw: int) -> Users:
    """The examples of a data set of ``records`` records: users, where record i belongs to ``users[i]``, or records.

    Raises CommandError for settings that do not go together, InputError for names that are neither texts nor whole
    numbers.
    """
    if type(per_draw) is not int or per_draw < 1:
        raise CommandError(f"records_per_draw is {per_draw!r}; it must be a whole number, at least 1")
    if users is None:
        if per_draw > 1:
            raise CommandError("records_per_draw is how many records of a user a step uses; give users too")
        return Users(records=records)
    if not isinstance(unit, str) or not 0 < len(unit) <= _LONGEST or not unit.isprintable():
        raise CommandError(f"unit is {unit!r}; it must be a short name of what users are, such as 'patient'")
    if isinstance(users, str) or len(users) != records:
        given = "one string" if isinstance(users, str) else f"{len(users)} names"
        raise CommandError(f"users is {given}, and there are {records} records; give one user name for each record")
    rows: dict[str, list[int]] = {}
    for row, user in enumerate(users):
        rows.setdefault(_name(user, row), []).append(row)
    return Users(
        records=records,
        unit=unit,
        rows=tuple(np.asarray(user_rows, dtype=np.int64) for user_rows in rows.values()),
        per_draw=per_draw,
        similar=spelled_alike(rows),
        source=NoiseSource(),
    )


def _name(user: Any, row: int) -> str:
    """A user's name as text, so that 7 and "7" are the same user, as in files of records."""
    value = user.item() if hasattr(user, "item") and getattr(user, "ndim", 1) == 0 else user
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"users[{row}] is {user!r}; each record needs the name of one user, a text or a whole number")
    return str(value).strip()
