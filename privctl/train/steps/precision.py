"""The precision of a training: full, or with some layers quantized to few bits, which change over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


#: Records how many releases have begun.
Mark = Callable[[int], None]


class Precision(Protocol):
    """How the network computes: ``begin`` is called before each step, and ``on`` entered around every pass in it."""

    @property
    def rounds(self) -> bool:
        """Whether rounding may be random, so that no two passes agree."""
        ...

    @property
    def side_releases_begun(self) -> int:
        """The number of side releases that have begun; the ledger counts them."""
        ...

    @property
    def numbers(self) -> int:
        """The number of values in one side release."""
        ...

    def begin(self, step: int, place: int, mark: Mark) -> None:
        """Prepare update ``step``, counted from 0, before anything in it is computed; ``place`` indexes its draws.

        Before each side release is computed, ``mark`` is called with the number begun so far, including it. Every
        process must call this.
        """
        ...

    def on(self, examples: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, the network computes with this step's precision; the rows of a batch are ``examples`` of the task."""
        ...

    def rehearsal(self, keys: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, before any step, the network computes in the lowest precision of any step; ``keys``: see ``Task``."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """What ``restore`` needs, besides ``side_releases_begun``."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], side_releases_begun: int) -> None:
        """Continue from a saved state's ``tensors``, which include those of others and may have none of this object."""
        ...


@dataclass(frozen=True, slots=True)
class FullPrecision:
    """The network's own precision, without quantized layers."""

    @property
    def rounds(self) -> bool:
        """See ``Precision``."""
        return False

    @property
    def side_releases_begun(self) -> int:
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

    def restore(self, tensors: Mapping[str, Tensor], side_releases_begun: int) -> None:
        """See ``Precision``."""
