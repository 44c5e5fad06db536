"""privctl as a process of its own, without paying for the import of torch each time.

One process imports the engines when it is first asked, computes nothing, and forks for every command it is asked for:
the command has its own process id, and can be killed. ``Forked.start`` is for tests, ``Forked.shell`` for scripts that
call ``$PRIVCTL``, ``Forked.together`` for processes that compute together. Workers of pytest share it. What
is said of start-up itself needs ``python -m privctl``.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import threading

_STATUS = struct.Struct("<i")
_ENGINES = (
    *(
        "torch",
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "transformers.generation",
        "transformers.models.gpt2.modeling_gpt2",
    ),
    *("transformers.models.llama.modeling_llama", "privctl.train.run", "privctl.noise.weight_noise"),
    *("privctl.accounting.ledger", "privctl.show.text", "audits.whole.run", "audits.membership.quantile", "verify.run"),
    *("sklearn.ensemble", "privctl.gate.judge", "privctl.cli.audit.commands", "privctl.cli.gate", "tests.seeded"),
)


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    errors: str


class Command:
    """A command that was started, with as much of ``subprocess.Popen`` as the tests use."""

    def __init__(self, connection: socket.socket, errors: int | None) -> None:
        self._connection, self._errors = connection, errors
        (self.pid,) = _STATUS.unpack(_received(connection))
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._connection.setblocking(False)
            try:
                ended = bool(self._connection.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                ended = False
            finally:
                self._connection.setblocking(True)
            if ended:
                self.wait()
        return self.returncode

    def wait(self) -> int:
        """The exit code; of a command that a signal ended, the signal's number, negative."""
        if self.returncode is None:
            (self.returncode,) = _STATUS.unpack(_received(self._connection))
            self._connection.close()
        return self.returncode

    def communicate(self) -> tuple[None, str]:
        """Wait; what it wrote to standard error, where that was asked for."""
        assert self._errors is not None
        with os.fdopen(self._errors, encoding="utf-8") as file:
            text = file.read()
        self.wait()
        return None, text


class Server:
    """The process that forks. It ends with whoever made it."""

    def __init__(self, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")  # a socket's path must be short
        self.place = os.path.join(self._folder.name, "s")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", self.place],
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


class Forked:
    """Starts commands through the server whose socket lies at ``place``."""

    def __init__(self, place: str) -> None:
        self._socket = place
        self._ports = 0

    def start(
        self,
        arguments: Sequence[str],
        *,
        errors: bool = False,
        stdout: int = 1,
        script: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Command:
        """``privctl``, or a ``script`` of Python, with ``arguments``.

        With ``errors`` its standard error is kept for ``communicate``; ``environment`` is added to this process's.
        """
        read, write = os.pipe() if errors else (None, 2)
        from tests.seeded import CHILD, SEEDED

        own = {CHILD: SEEDED.next_child(), **(environment or {})}
        connection = _asked(self._socket, arguments, (0, stdout, write), script, own)
        if errors:
            os.close(write)
        return Command(connection, read)

    def together(
        self, size: int, arguments: Sequence[str], *, script: str = "", patience: float = 300.0
    ) -> list[Ended]:
        """``privctl``, or a ``script``, in ``size`` processes with the variables that torchrun sets.

        Processes that wait for each other would do so for hours: after ``patience`` seconds they are killed, and this
        raises AssertionError. Seconds in which one of them waits for a core do not count (``tests/watched.py``).
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor

        from tests.watched import Watch

        with contextlib.ExitStack() as stack:
            shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._free_port())}
            outs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(size)]
            running = []
            for rank, out in enumerate(outs):
                own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                call = self.start(arguments, errors=True, stdout=out.fileno(), script=script, environment=own)
                running.append(call)
            # A process waits for the others in the midst of what it writes: all are read at once.
            late = threading.Event()
            pids = [process.pid for process in running]
            with Watch(pids, patience, lambda: _kill(running, late)), ThreadPoolExecutor(size) as pool:
                errors = [stderr for _, stderr in pool.map(Command.communicate, running)]
            if late.is_set():
                raise AssertionError(f"{size} processes did not end in {patience:g} s; they wrote {errors}")
            found = []
            for process, out, stderr in zip(running, outs, errors, strict=True):
                out.seek(0)
                assert process.returncode is not None
                found.append(Ended(process.returncode, out.read(), stderr))
            return found

    def _free_port(self) -> int:
        """A port for the processes to meet at, below those that the system gives away and other than other workers'."""
        while True:
            self._ports += 1
            port = 10_000 + (37 * os.getpid() + self._ports) % 20_000
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port

    def shell(self) -> str:
        """A command line that does what ``privctl`` does."""
        return f"{sys.executable} -I -S {__file__} {self._socket}"


def _kill(commands: Sequence[Command], late: threading.Event) -> None:
    """End those that still run. The signal is sent directly, as other threads read from their connections."""
    late.set()
    for command in commands:
        if command.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(command.pid, signal.SIGKILL)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(_STATUS.size, socket.MSG_WAITALL)
    assert len(data) == _STATUS.size, "the process that forks is gone"
    return data


def _asked(
    place: str,
    arguments: Sequence[str],
    descriptors: Sequence[int],
    script: str = "",
    environment: Mapping[str, str] | None = None,
) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    request = {
        "arguments": list(arguments),
        "folder": os.getcwd(),
        "script": script,
        "environment": {**os.environ, **(environment or {})},
    }
    asked = json.dumps(request).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([struct.pack("<q", len(asked))], rights)
    connection.sendall(asked)
    return connection


def _serve(place: str) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    os.write(1, b"ready\n")
    maker, ready = os.getppid(), False
    listening.settimeout(1.0)
    while os.getppid() == maker:
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        if not ready:
            _import_engines()
            ready = True
        connection.setblocking(True)
        if not os.fork():
            listening.close()
            _keep(connection)
        connection.close()


def _import_engines() -> None:
    import gc
    import importlib
    import threading

    from tests import bytecode

    if place := os.environ.get(bytecode.PLACE):
        bytecode.keep_in(Path(place), Path(__file__).parent.parent)
    gc.disable()  # a quarter of the time goes to looking for garbage among modules
    for name in _ENGINES:
        importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError):  # of some versions; it compiles a thousand expressions
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("gpt2")
    gc.freeze()
    gc.enable()
    assert threading.active_count() == 1, "a process with threads must not fork"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers


def _keep(connection: socket.socket) -> None:
    """Run the command in a child, tell its process id and how it ended, and exit."""
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    (length,) = struct.unpack("<q", head)
    asked = json.loads(connection.recv(length, socket.MSG_WAITALL))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        connection.close()
        _command(asked, descriptors)
    for descriptor in (*descriptors, 0, 1, 2):  # the command alone holds them, so that its readers see their end
        os.close(descriptor)
    with contextlib.suppress(OSError):  # nobody listens any more
        connection.sendall(_STATUS.pack(child))
        connection.sendall(_STATUS.pack(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os._exit(0)


def _command(asked: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    code = 70
    try:
        for i, descriptor in enumerate(descriptors):
            os.dup2(descriptor, i)
            os.close(descriptor)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = [asked["script"] or "privctl", *asked["arguments"]]
        from tests.seeded import begin_child

        begin_child()
        if asked["script"]:
            import runpy

            runpy.run_path(asked["script"], run_name="__main__")
        else:
            from privctl.cli import main

            main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(sys.argv[2])
    else:
        raise SystemExit(Command(_asked(sys.argv[1], sys.argv[2:], (0, 1, 2)), None).wait())
