"""A headless Chromium over its debugging pipe: enough to open a page, ask it questions and take its picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """The browser's path, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. ``events`` collects what the page logs, throws and asks the network for."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()

        def connect() -> None:  # the pipe's ends are descriptors 3 and 4 by convention
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(ours, "wb", buffering=0), os.fdopen(theirs, "rb")
        self._number = 0
        self._session: str | None = None
        self._held = b""
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            read = os.read(self._in.fileno(), 1 << 20)
            assert read, "the browser went away"
            self._held += read
        line, self._held = self._held.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load a file and wait until it is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(name == "Page.loadEventFired" for name, _ in self.events):
            self._next()
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of a script in the page, awaited."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of what is in view."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and every request but that for the page itself."""
        complaints = []
        for name, what in self.events:
            if name == "Log.entryAdded":
                complaints.append(f"{what['entry']['level']}: {what['entry']['text']}")
            elif name == "Runtime.exceptionThrown":
                complaints.append(str(what["exceptionDetails"]))
            elif name == "Runtime.consoleAPICalled":
                complaints.append(f"console: {what['args']}")
            elif name == "Network.requestWillBeSent" and what["type"] != "Document":
                complaints.append(f"request: {what['request']['url']}")
        return complaints

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A running browser, ended afterwards."""
    program = found()
    assert program is not None
    started = Browser(program, profile)
    try:
        yield started
    finally:
        started.close()
