"""How the network of a training computes: as it is, or with layers in few bits that change from time to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


#: Writes down how many releases were begun.
Mark = Callable[[int], None]


class Precision(Protocol):
    """Asked before each step, and entered around whatever passes through the network in it."""

    @property
    def rounds(self) -> bool:
        """Whether what is computed may be rounded by chance, so that no two passes agree."""
        ...

    @property
    def measured(self) -> int:
        """Releases beside the steps' that were begun; they belong in the ledger."""
        ...

    @property
    def numbers(self) -> int:
        """How many numbers one such release shows."""
        ...

    def begin(self, step: int, place: int, mark: Mark) -> None:
        """Before anything of update ``step``, from 0, is computed; ``place`` is that of the step's draws.

        ``mark`` is told how many releases will have been begun before one is computed. Every process must call it.
        """
        ...

    def on(self, examples: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, the network computes as the step wants it; the rows that pass are ``examples`` of the task."""
        ...

    def rehearsal(self, keys: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, before any step, the network computes as far from itself as any step will; ``keys`` as of tasks."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """What ``restore`` needs, beside ``measured``."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], measured: int) -> None:
        """Go on from the ``tensors`` of a saved state, among others'; of them there may be none."""
        ...


@dataclass(frozen=True, slots=True)
class FullPrecision:
    """The network as it is."""

    @property
    def rounds(self) -> bool:
        """See ``Precision``."""
        return False

    @property
    def measured(self) -> int:
        """See ``Precision``."""
        return 0

    @property
    def numbers(self) -> int:
        """See ``Precision``."""
        return 0

    def begin(self, step: int, place: int, mark: Mark) -> None:
        """See ``Precision``."""

    def on(self, examples: Sequence[int]) -> AbstractContextManager[None]:
        """See ``Precision``."""
        return nullcontext()

    def rehearsal(self, keys: Sequence[int]) -> AbstractContextManager[None]:
        """See ``Precision``."""
        return nullcontext()

    def tensors(self) -> Mapping[str, Tensor]:
        """See ``Precision``."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], measured: int) -> None:
        """See ``Precision``."""
