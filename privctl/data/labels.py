"""The labels of a classification task and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privctl.domain.errors import CommandError, InputError
from privctl.storage.reader import read_text

#: The most digits of a number that may be a label's, and characters of a label that errors quote.
_MOST_DIGITS, _LONGEST = 18, 60


@dataclass(frozen=True, slots=True)
class LabelSet:
    """The labels of a classifier, numbered from 0 in the order of ``names``.

    Raises CommandError for fewer than two labels, or one that occurs twice.
    """

    names: tuple[str, ...]
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            given = f"there is only the label {quoted_label(self.names[0])}" if self.names else "there is no label"
            raise CommandError(f"{given}; a classifier needs two")
        object.__setattr__(self, "_numbers", {name: i for i, name in enumerate(self.names)})
        if len(self._numbers) < len(self.names):
            raise CommandError("--labels names a label twice; name each once")

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str, where: str) -> int:
        """The number of the label ``name``; raises InputError, naming ``where``, if it is not a label."""
        try:
            return self._numbers[name]
        except KeyError:
            listed = ", ".join(map(quoted_label, self.names[:4])) + (", ..." if len(self.names) > 4 else "")
            advice = "name it in --labels"
            if alike := [label for label in self.names if label.casefold() == name.casefold()]:
                advice = f"did you mean {quoted_label(alike[0])}?"
            if _is_number(name) and int(name) < len(self.names):
                numbers = ",".join(map(str, range(min(4, len(self.names))))) + (",..." if len(self.names) > 4 else "")
                advice = f"if the numbers are those of the model's classes, give --labels {numbers}"
            raise InputError(
                f"{where} has the label {quoted_label(name)}, which is not one of {listed}; {advice}"
            ) from None


def labels_named(option: str) -> tuple[str, ...]:
    """The labels in ``option``: a comma-separated list, or the path of a file with one label per line.

    Raises InputError for a file that does not exist or is not UTF-8, CommandError for an empty name or file.
    """
    if "," in option:
        names = tuple(name.strip() for name in option.split(","))
    elif not Path(option).is_file():
        raise InputError(
            f"--labels {option} is neither a list such as a,b,c nor a file; name all classes, separated by commas, or "
            "give a file with one per line"
        )
    else:
        lines = read_text(Path(option)).removeprefix("\ufeff").splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
        if not names:
            raise CommandError(f"--labels {option} holds no name; write one on each line")
    if not all(names):
        raise CommandError(f"--labels {option} holds an empty name; put one name between two commas")
    return names


def numbers_below(count: int, names: Iterable[str]) -> tuple[str, ...] | None:
    """The numbers below ``count`` as text, if all ``names`` are among them and ``count`` > 1; else None."""
    numbers = tuple(map(str, range(count)))
    return numbers if count > 1 and set(names) <= set(numbers) else None


def labels_of(names: Iterable[str], source: str) -> LabelSet:
    """The labels that occur in ``names``: 0 to the largest if all are integers, else in alphabetical order.

    If the data is private, the list of labels is released with the model, and no guarantee covers it.
    ``source`` names the data in errors. Raises InputError for numbers with gaps, and for a single label.
    """
    labels = set(names)
    if len(labels) < 2:
        raise InputError(
            f"{source} holds only the label {', '.join(map(quoted_label, labels))}; a classifier needs two"
        )
    if all(name.isascii() and _is_number(name) and str(int(name)) == name for name in labels):
        # Compare counts: a label of 10^12 must not allocate a list of that length.
        greatest = max(map(int, labels))
        if greatest != len(labels) - 1:
            gap = next(i for i in range(greatest) if str(i) not in labels)
            raise InputError(
                f"{source} has labels up to {greatest} but not {gap}; number them from 0 without gaps, or name all "
                "of them with --labels"
            )
        return LabelSet(tuple(str(i) for i in range(len(labels))))
    return LabelSet(tuple(sorted(labels)))


def numbers_of(names: Sequence[str], places: Sequence[str], labels: LabelSet) -> list[int]:
    """The number of each of ``names``; ``places`` says where each was read, for errors."""
    return [labels.number(name, where) for name, where in zip(names, places, strict=True)]


def _is_number(name: str) -> bool:
    """Whether ``name`` may number a label; Python does not convert thousands of digits."""
    return name.isdecimal() and len(name) <= _MOST_DIGITS


def quoted_label(name: str) -> str:
    """``name`` for an error, unless it is so long that it is a text, which may be private, rather than a label."""
    return repr(name) if len(name) <= _LONGEST else f"of {len(name)} characters"
