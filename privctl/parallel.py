"""Several processes that train one model: each takes a share of every batch, and all make the same update.

Started by torchrun, whose environment variables are all that is read. The first process alone adds noise, to the sum
over all, and hands out what it rounded: were noise rounded before the sum, the others' gradients would show in the low
bits; were it drawn in every process, two machines could round one sum in two ways.

In lockstep each holds a shard of the model instead, and the sum of a shard lies in one process alone, which noises it.
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

#: How long a process waits for the others. torchrun ends all as soon as one has died, so this is for work that one of
#: them does alone, such as saving a large model.
_PATIENCE = timedelta(hours=12)
#: Errors that one process hands to the others, which end as it does.
_SHARED_ERRORS = (CommandError, InputError, FileSystemError, RunInterruptedError)
_DONE, _FAILED = b"=", b"!"
#: What gloo and NCCL say where another process has gone.
_LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted")


class MemoryElsewhereError(MemoryError):
    """Another process ran out of memory in work that all do jointly."""


class _FailedElsewhere(BaseException):
    """Another process failed in work that all do jointly. No handler of a model's errors may take it for one."""


def take_part(answer: bool = False) -> bool:
    """Whether any process answers yes; to be called before each exchange in work that processes do ``jointly``.

    So none begins an exchange that another, which failed, would not join: then that work ends here. It is one exchange
    of two bytes between processors, which waits for no GPU. Space for what follows is to be allocated before.
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
    """One process among its ``size`` fellows; alone where ``size`` is 1.

    In ``lockstep`` they make every pass through the network together, because each holds only a shard of it.
    """

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process adds noise, saves and speaks."""
        return self.rank == 0

    def share(self, indices: NDArray) -> NDArray:  # type: ignore[type-arg]
        """The part of a batch, known to all, that falls to this process."""
        return indices[self.rank :: self.size]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def reduce_to_main(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in the first of them; the others' are left undefined."""
        if self.size > 1:
            for tensor in tensors:
                dist.reduce(tensor, 0)

    def broadcast(self, numbers: Tensor) -> Tensor:
        """The first process's ``numbers``, everywhere."""
        if self.size > 1:
            dist.broadcast(numbers, 0)
        return numbers

    def gather(self, values: Tensor) -> Tensor:
        """All processes' ``values`` (n,), which may differ in number, one after another; on the CPU."""
        if self.size == 1:
            return values
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(values)]))
        padded = values.new_zeros(int(max(counts)))
        if not len(padded):
            return values
        padded[: len(values)] = values
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([each[: int(count)] for each, count in zip(found, counts, strict=True)])

    def spread(
        self,
        items: Sequence[Item],
        compute: Callable[[Item], Tensor],
        width: int,
        dtype: torch.dtype = torch.float64,
    ) -> list[Tensor]:
        """The rows (n, ``width``) that ``compute`` gives for each item, on the CPU and in order, in every process.

        Each process computes its share. All must ask for the same, and get what one process alone would.
        """

        def compute_share() -> list[Tensor]:
            rows = [compute(item) for item in items[self.rank :: self.size]]
            if self.lockstep and len(rows) * self.size < len(items):
                compute(items[0])  # a pass more, as others make one
            return rows

        own = self.jointly(compute_share)
        if self.size == 1:
            return own
        counts = self.gather(torch.tensor([len(rows) for rows in own], dtype=torch.int64)).tolist()
        rows = self.gather(torch.cat([torch.empty(0, width, dtype=dtype), *own]).flatten()).view(-1, width)
        order = [index for rank in range(self.size) for index in range(rank, len(items), self.size)]
        found = dict(zip(order, torch.split(rows, counts), strict=True))
        return [found[index] for index in range(len(items))]

    def spread_rows(
        self,
        items: Sequence[Item],
        compute: Callable[[Sequence[Item]], Tensor],
        width: int,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """As ``spread``, for a ``compute`` that takes many items at once and gives one row (1, ``width``) for each."""
        if self.size == 1:
            return compute(items)
        shares = [items[rank :: self.size] for rank in range(min(self.size, len(items)))]
        found = torch.empty(len(items), width, dtype=dtype)
        for rank, rows in enumerate(self.spread(shares, compute, width, dtype)):
            found[rank :: self.size] = rows
        return found

    def once_a_machine(self, make: Callable[[], bytes]) -> bytes:
        """What ``make`` gives in the first process of this one's machine; the others only wait for it.

        Where it raises, on any machine, every process raises that error.
        """
        if self.size == 1:
            return make()
        return self._made_by(self._leader, make)

    def once(self, make: Callable[[], bytes]) -> bytes:
        """As ``once_a_machine``, where one process makes it for all: the main one."""
        return make() if self.size == 1 else self._made_by(0, make)

    def in_main(self, make: Callable[[], Item]) -> Item | None:
        """What ``make`` gives in the main process; None in the others, which wait for it, and raise what it raises."""
        found: list[Item] = []

        def made() -> bytes:
            found.append(make())
            return b""

        self.once(made)
        return found[0] if found else None

    def in_turn(self, make: Callable[[], object]) -> None:
        """Call ``make`` in one process after the other; where it raises, every process raises that error."""

        def made() -> bytes:
            make()
            return b""

        for rank in range(self.size):
            self._made_by(rank, made)

    def jointly(self, work: Callable[[], Item]) -> Item:
        """What ``work`` gives in this process. Where it raises in any, all end it, and raise that error or their own.

        All must call this, not inside of itself. Before every exchange in ``work`` comes a ``take_part``. For want of
        memory in another process this raises MemoryElsewhereError.
        """
        if self.size == 1:
            return work()
        answer, fault = b"", None
        try:
            found = work()
            if not _voted(failed=False)[0]:
                return found
        except _FailedElsewhere:
            pass
        except BaseException as error:  # the others must not wait for an exchange that will not come
            _voted(failed=True)
            answer, fault = _error_bytes(error), error
        said = self._gather_bytes(answer)
        if fault is not None:
            raise fault
        raise _error_of(next(each for each in said if each))

    def _made_by(self, maker: int, make: Callable[[], bytes]) -> bytes:
        answer, fault = b"", None
        if maker == self.rank:
            try:
                answer = _DONE + make()
            except BaseException as error:  # the others must not wait for what will not come
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
        """The rank of the first process on this machine: torchrun counts them on, from machine to machine."""
        local = os.environ.get("LOCAL_RANK", "")
        return self.rank - int(local) if local.isdecimal() and int(local) <= self.rank else self.rank

    def each(self, said: bytes) -> list[bytes]:
        """What each process says; all must say something, if only nothing."""
        return [said] if self.size == 1 else self._gather_bytes(said)

    def _gather_bytes(self, said: bytes) -> list[bytes]:
        sizes = self.gather(torch.tensor([len(said)])).tolist()
        everything = bytes(self.gather(torch.tensor(list(said), dtype=torch.uint8)).tolist())
        ends = np.cumsum(sizes)
        return [everything[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def any_of(self, *answers: bool) -> tuple[bool, ...]:
        """For each question whether any process answered yes."""
        if self.size == 1:
            return answers
        votes = torch.tensor(answers, dtype=torch.uint8)
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(bool(vote) for vote in votes)

    def any_in_lockstep(self, answer: bool) -> bool:
        """Whether any process answered yes, where they are in lockstep; else this one's own answer."""
        return self.any_of(answer)[0] if self.lockstep else answer

    def hand_out(self, parts: Callable[[int], Tensor], own: Tensor) -> None:
        """Copy ``parts(rank)`` of the main process into each one's ``own``, which has its shape; by way of the CPU."""
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
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


def short_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not get the memory it asked for, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _error_bytes(error: BaseException) -> bytes:
    kind: type[BaseException] = PrivctlError
    sentence = "another process of this run failed; its message says why"
    if isinstance(error, PrivctlError):
        kind, sentence = next((each for each in _SHARED_ERRORS if isinstance(error, each)), PrivctlError), str(error)
    elif short_of_memory(error):
        kind, sentence = MemoryElsewhereError, "another process of this run ran out of memory"
    elif isinstance(error, OSError):
        kind = FileSystemError
        sentence = f"the operating system refused: {error.strerror or error}; files written earlier are intact"
    return json.dumps([kind.__name__, sentence]).encode()


def _error_of(said: bytes) -> Exception:
    name, sentence = json.loads(said)
    if name == MemoryElsewhereError.__name__:
        return MemoryElsewhereError(sentence)
    return next((each for each in _SHARED_ERRORS if each.__name__ == name), PrivctlError)(sentence)


#: This process by itself.
ALONE = Workers()


def own_device(device: torch.device) -> torch.device:
    """The accelerator of this process, where torchrun started several and none was named."""
    local = os.environ.get("LOCAL_RANK", "")
    if device.type != "cuda" or device.index is not None or not local.isdecimal():
        return device
    torch.cuda.set_device(int(local))
    return torch.device("cuda", int(local))


@contextmanager
def start_workers(device: torch.device, *, together: bool = True) -> Iterator[Workers]:
    """The processes torchrun started, or this one alone. Raises CommandError where its variables make no sense.

    They leave ``together``, unless the others have nothing more to say to the one that goes on.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        raise CommandError(f"WORLD_SIZE is {size!r}; start several processes with torchrun, which sets it")
    if int(size) == 1:
        yield Workers()
        return
    # Keys and counts lie on the CPU also where gradients do not.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        workers = Workers(dist.get_rank(), dist.get_world_size())
        yield workers
        if together:
            workers.barrier()  # a process that leaves early takes down what the others still talk to
    except RuntimeError as error:
        if not any(words in str(error) for words in _LOST):
            raise
        raise PrivctlError(
            "another process of this run ended in the midst of it, so this one ends too; see what it wrote, and "
            "continue with --resume where the run had begun"
        ) from None
    finally:
        dist.destroy_process_group()
