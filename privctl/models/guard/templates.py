"""Renders untrusted chat templates in a separate process with limits on time and memory."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from privctl.domain.errors import InputError

_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("template_worker.py")))
#: Limits per conversation: processor time in seconds, and memory in bytes (of the whole process).
SECONDS, MEMORY = 5, 512 << 20
#: Environment variables that the process inherits: those that locate Python's libraries, and the time zone. No secrets.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
#: Seconds of wall time after which a process is considered hung, if the limit on processor time did not end it.
_TIMEOUT = 120.0


def render(
    template: str, tokens: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], *, longest: int
) -> tuple[str, ...]:
    """The text of ``template`` for each of ``calls``, which are its variables, as transformers renders it.

    ``tokens`` are the special tokens by name; ``longest`` is the limit on a text, in characters. Raises InputError,
    whose message is only the reason, if the template fails, exceeds its limits or makes too long a text.
    """
    request = {"template": template, "tokens": dict(tokens), "calls": [dict(call) for call in calls]}
    answer = _renderer(os.getpid()).ask({**request, "longest": longest, "seconds": SECONDS, "memory": MEMORY})
    if "long" in answer:
        raise InputError(f"its text has {answer['long']} characters, more than {longest}")
    if "texts" not in answer:
        raise InputError(answer["error"])
    texts = tuple(answer["texts"])
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise InputError("its text has an unpaired surrogate, which is not a character") from None
    return texts


class _Renderer:
    """The rendering process, started on demand and restarted after it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer; raises InputError if the worker died or had to be stopped."""
        with self._lock:
            line = self._exchange(json.dumps(request) + "\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self._stop()
            raise InputError(f"it takes more than {SECONDS} s, or breaks the process that renders it") from None
        return answer

    def _exchange(self, request: str) -> str:
        """The line that answers ``request``; empty if the process died or hangs."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                return process.stdout.readline() if selector.select(_TIMEOUT) else ""
        except BrokenPipeError:
            return ""

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own worker, by its full path
                _WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
            weakref.finalize(self, _end, self._process)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


@functools.cache
def _renderer(process: int) -> _Renderer:
    """The renderer of the process with this id; a forked process gets its own."""
    return _Renderer()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
