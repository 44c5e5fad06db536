"""The labels of a classification, and the number that stands for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from privctl.domain.errors import InputFault, UsageFault


@dataclass(frozen=True, slots=True)
class LabelSet:
    """The labels in the order of their numbers.

    ``from_private_data`` says that they were collected from the private records: then the list itself is released
    without a guarantee. Raises UsageFault for fewer than two labels, or one that occurs twice.
    """

    names: tuple[str, ...]
    from_private_data: bool = False
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise UsageFault(f"there is only the label {', '.join(map(repr, self.names))}; a classifier needs two")
        object.__setattr__(self, "_numbers", {name: i for i, name in enumerate(self.names)})
        if len(self._numbers) < len(self.names):
            raise UsageFault("--labels names a label twice; name each once")

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str, where: str) -> int:
        """The number of ``name``; raises InputFault, naming ``where``, for one that is not among the labels."""
        try:
            return self._numbers[name]
        except KeyError:
            known = ", ".join(map(repr, self.names[:4])) + (", ..." if len(self.names) > 4 else "")
            raise InputFault(
                f"{where} has the label {name!r}, which is not one of {known}; name it in --labels"
            ) from None


def labels_of(names: Iterable[str], source: str) -> LabelSet:
    """The labels that occur: 0 to the greatest where all are whole numbers, else sorted.

    ``source`` names the data in errors. Raises InputFault for numbers with gaps, and for a single label.
    """
    found = set(names)
    if len(found) < 2:
        raise InputFault(f"{source} holds only the label {', '.join(map(repr, found))}; a classifier needs two")
    if all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in found):
        # Compared by how many there are: a greatest label of 10^12 must not make a list of as many.
        greatest = max(map(int, found))
        if greatest != len(found) - 1:
            gap = next(i for i in range(greatest) if str(i) not in found)
            raise InputFault(
                f"{source} has labels up to {greatest} but none is {gap}; number them from 0 without gaps, or name all "
                "of them with --labels"
            )
        return LabelSet(tuple(str(i) for i in range(len(found))), from_private_data=True)
    return LabelSet(tuple(sorted(found)), from_private_data=True)


def numbers_of(names: Sequence[str], places: Sequence[str], labels: LabelSet) -> list[int]:
    """The numbers of ``names``; ``places`` say where each was read, for errors."""
    return [labels.number(name, where) for name, where in zip(names, places, strict=True)]
