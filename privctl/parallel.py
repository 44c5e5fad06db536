"""Work in several processes: each computes a share of every batch, and all make the same update.

torchrun starts the processes, and its environment variables are their only configuration. Only the main process adds
noise, to the sum over all processes, and broadcasts the rounded result. Noise rounded before the sum would let the low
bits reveal other processes' gradients, and noise drawn in every process might be rounded differently on two machines.

In lockstep, each process holds a shard of the model instead, and adds noise to the sum of its own shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from privctl.domain.errors import CommandError, FileSystemError, InputError, PrivctlError, RunInterruptedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Item = TypeVar("Item")

#: How long a process waits for the others. torchrun stops all processes when one has died, so this limit is for work
#: that one process does alone, such as saving a large model.
_TIMEOUT = timedelta(hours=12)
#: Errors that a process sends to the others, which then raise them too.
_SHARED_ERRORS = (CommandError, InputError, FileSystemError, RunInterruptedError)
_DONE, _FAILED = b"=", b"!"
#: Parts of the messages of gloo and NCCL after another process has ended.
_CONNECTION_LOST = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL communicator was aborted",
)


class MemoryElsewhereError(MemoryError):
    """Another process ran out of memory in joint work."""


class _FailedElsewhere(BaseException):
    """Another process failed in joint work. A BaseException, so that handlers of a model's errors do not catch it."""


def joint_vote(answer: bool = False) -> bool:
    """Whether any process passes True; must be called before each collective operation inside ``Workers.jointly``.

    If a process has failed, this ends the work in all others, so that none starts a collective operation that the
    failed one would not join. It exchanges two bytes between CPUs and does not wait for a GPU. Allocate the memory for
    the following operation before this call.
    """
    failed, any_yes = _voted(failed=False, answer=answer)
    if failed:
        raise _FailedElsewhere
    return any_yes


def _voted(*, failed: bool, answer: bool = False) -> tuple[bool, bool]:
    votes = torch.tensor([failed, answer], dtype=torch.uint8)
    dist.all_reduce(votes, dist.ReduceOp.MAX)
    one, other = votes.tolist()
    return bool(one), bool(other)


@dataclass(frozen=True, slots=True)
class Workers:
    """The process with the given ``rank``, one of ``size`` processes.

    In ``lockstep`` all processes make every pass through the network together, because each holds a shard of it.
    """

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process adds the noise, writes files and prints messages."""
        return self.rank == 0

    def share(self, indices: NDArray) -> NDArray:  # type: ignore[type-arg]
        """The part of ``indices`` for this process; ``indices`` must be the same in all processes."""
        return indices[self.rank :: self.size]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def reduce_to_main(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor in the main process by its sum over all processes; in the others they are undefined."""
        if self.size > 1:
            for tensor in tensors:
                dist.reduce(tensor, 0)

    def broadcast(self, numbers: Tensor) -> Tensor:
        """Overwrite ``numbers`` in all processes with those of the main process, and return them."""
        if self.size > 1:
            dist.broadcast(numbers, 0)
        return numbers

    def gather(self, values: Tensor) -> Tensor:
        """Concatenate the ``values`` (n,) of all processes, in the order of ranks; n may differ. On the CPU."""
        if self.size == 1:
            return values
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(values)]))
        padded = values.new_zeros(int(max(counts)))
        if not len(padded):
            return values
        padded[: len(values)] = values
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)])

    def spread(
        self,
        items: Sequence[Item],
        compute: Callable[[Item], Tensor],
        width: int,
        dtype: torch.dtype = torch.float64,
    ) -> list[Tensor]:
        """The rows (n, ``width``) that ``compute`` returns for each item, in order and on the CPU, in every process.

        Each process computes a share. All must call this with the same items, and get the result of a single process.
        """

        def compute_share() -> list[Tensor]:
            rows = [compute(item) for item in items[self.rank :: self.size]]
            if self.lockstep and len(rows) * self.size < len(items):
                compute(items[0])  # a surplus pass, because other processes make one
            return rows

        own_rows = self.jointly(compute_share)
        if self.size == 1:
            return own_rows
        counts = self.gather(torch.tensor([len(rows) for rows in own_rows], dtype=torch.int64)).tolist()
        rows = self.gather(torch.cat([torch.empty(0, width, dtype=dtype), *own_rows]).flatten()).view(-1, width)
        order = [index for rank in range(self.size) for index in range(rank, len(items), self.size)]
        by_index = dict(zip(order, torch.split(rows, counts), strict=True))
        return [by_index[index] for index in range(len(items))]

    def spread_rows(
        self,
        items: Sequence[Item],
        compute: Callable[[Sequence[Item]], Tensor],
        width: int,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Like ``spread``, for a ``compute`` that takes n items and returns n rows (n, ``width``), as one tensor."""
        if self.size == 1:
            return compute(items)
        shares = [items[rank :: self.size] for rank in range(min(self.size, len(items)))]
        table = torch.empty(len(items), width, dtype=dtype)
        for rank, rows in enumerate(self.spread(shares, compute, width, dtype)):
            table[rank :: self.size] = rows
        return table

    def once_per_machine(self, make: Callable[[], bytes]) -> bytes:
        """Call ``make`` in the first process of each machine, and return its result in all processes of that machine.

        If it raises on any machine, every process raises that error.
        """
        if self.size == 1:
            return make()
        return self._made_by(self._leader, make)

    def once(self, make: Callable[[], bytes]) -> bytes:
        """Call ``make`` in the main process and return its result in all; if it raises, all raise that error."""
        return make() if self.size == 1 else self._made_by(0, make)

    def in_main(self, make: Callable[[], Item]) -> Item | None:
        """Call ``make`` in the main process and return its result there, and None in the others.

        The others wait. If ``make`` raises, all raise that error.
        """
        results: list[Item] = []

        def made() -> bytes:
            results.append(make())
            return b""

        self.once(made)
        return results[0] if results else None

    def in_turn(self, make: Callable[[], object]) -> None:
        """Call ``make`` in each process in turn; if it raises, every process raises that error."""

        def made() -> bytes:
            make()
            return b""

        for rank in range(self.size):
            self._made_by(rank, made)

    def jointly(self, work: Callable[[], Item]) -> Item:
        """Call ``work`` in every process and return this process's result.

        If it raises in any process, all stop and raise their own error or that one, or MemoryElsewhereError where
        another process ran out of memory. All processes must call this, and calls must not be nested. ``work`` must
        call ``joint_vote`` before every collective operation.
        """
        if self.size == 1:
            return work()
        answer, fault = b"", None
        try:
            result = work()
            if not _voted(failed=False)[0]:
                return result
        except _FailedElsewhere:
            pass
        except BaseException as error:  # the others must not wait for an operation that this one will not join
            _voted(failed=True)
            answer, fault = _error_bytes(error), error
        answers = self._gather_bytes(answer)
        if fault is not None:
            raise fault
        raise _error_of(next(answer for answer in answers if answer))

    def _made_by(self, maker: int, make: Callable[[], bytes]) -> bytes:
        answer, fault = b"", None
        if maker == self.rank:
            try:
                answer = _DONE + make()
            except BaseException as error:  # the others must not wait for a result that will not come
                answer, fault = _FAILED + _error_bytes(error), error
        answers = self._gather_bytes(answer)
        if fault is not None:
            raise fault
        for each in answers:
            if each.startswith(_FAILED):
                raise _error_of(each[len(_FAILED) :])
        return answers[maker][len(_DONE) :]

    @property
    def _leader(self) -> int:
        """The rank of the first process on this machine; torchrun numbers the ranks of a machine consecutively."""
        local = os.environ.get("LOCAL_RANK", "")
        return self.rank - int(local) if local.isdecimal() and int(local) <= self.rank else self.rank

    def gather_messages(self, message: bytes) -> list[bytes]:
        """The messages of all processes, in the order of ranks. All must call this; a message may be empty."""
        return [message] if self.size == 1 else self._gather_bytes(message)

    def _gather_bytes(self, message: bytes) -> list[bytes]:
        sizes = self.gather(torch.tensor([len(message)])).tolist()
        everything = bytes(self.gather(torch.tensor(list(message), dtype=torch.uint8)).tolist())
        ends = np.cumsum(sizes)
        return [everything[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def any_of(self, *answers: bool) -> tuple[bool, ...]:
        """For each of ``answers`` whether it is True in any process."""
        if self.size == 1:
            return answers
        votes = torch.tensor(answers, dtype=torch.uint8)
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(bool(vote) for vote in votes)

    def any_in_lockstep(self, answer: bool) -> bool:
        """Whether ``answer`` is True in any process, in lockstep; else this process's own ``answer``."""
        return self.any_of(answer)[0] if self.lockstep else answer

    def scatter_from_main(self, parts: Callable[[int], Tensor], own: Tensor) -> None:
        """Copy ``parts(rank)`` from the main process into ``own`` of each rank, via the CPU. The shapes must match."""
        if self.is_main:
            own.copy_(parts(0))
            for rank in range(1, self.size):
                if (part := parts(rank).to("cpu", copy=False).contiguous()).numel():
                    dist.send(part, rank)
        elif own.numel():
            received = torch.empty(own.shape, dtype=own.dtype)
            dist.recv(received, 0)
            own.copy_(received)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that torch or Python could not allocate memory, on any device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _error_bytes(error: BaseException) -> bytes:
    kind: type[BaseException] = PrivctlError
    sentence = "another process of this run failed; its message says why"
    if isinstance(error, PrivctlError):
        kind, sentence = (
            next((error_type for error_type in _SHARED_ERRORS if isinstance(error, error_type)), PrivctlError),
            str(error),
        )
    elif is_out_of_memory(error):
        kind, sentence = MemoryElsewhereError, "another process of this run ran out of memory"
    elif isinstance(error, OSError):
        kind = FileSystemError
        sentence = f"the operating system refused: {error.strerror or error}; files written earlier are intact"
    return json.dumps([kind.__name__, sentence]).encode()


def _error_of(message: bytes) -> Exception:
    name, sentence = json.loads(message)
    if name == MemoryElsewhereError.__name__:
        return MemoryElsewhereError(sentence)
    return next((error_type for error_type in _SHARED_ERRORS if error_type.__name__ == name), PrivctlError)(sentence)


#: A single process.
ALONE = Workers()


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process under torchrun, where ``device`` is "cuda" without an index; else ``device``."""
    local = os.environ.get("LOCAL_RANK", "")
    if device.type != "cuda" or device.index is not None or not local.isdecimal():
        return device
    torch.cuda.set_device(int(local))
    return torch.device("cuda", int(local))


def backends_for(device: torch.device) -> str:
    """The backends of torch.distributed for work on ``device``.

    Votes, keys and counts are on the CPU even if gradients are not.
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


@contextmanager
def start_workers(device: torch.device, *, together: bool = True) -> Iterator[Workers]:
    """A context with this process as one of those that torchrun started, or as the only one.

    With ``together`` all processes wait for each other at the end. Raises CommandError where torchrun's variables are
    invalid, and PrivctlError where another process ended.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        raise CommandError(f"WORLD_SIZE is {size!r}; start several processes with torchrun, which sets it")
    if int(size) == 1:
        yield Workers()
        return
    dist.init_process_group(backends_for(device), timeout=_TIMEOUT)
    try:
        workers = Workers(dist.get_rank(), dist.get_world_size())
        yield workers
        if together:
            workers.barrier()  # a process that leaves early closes connections that the others still use
    except RuntimeError as error:
        if not any(words in str(error) for words in _CONNECTION_LOST):
            raise
        raise PrivctlError(
            "another process of this run ended in the midst of it, so this one ends too; see what it wrote, and "
            "continue with --resume where the run had begun"
        ) from None
    finally:
        dist.destroy_process_group()
