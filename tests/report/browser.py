"""Headless Chromium over its debugging pipe: open a page, evaluate, click, and hear what it complains of."""

import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

CHROMIUM = shutil.which("chromium")
_QUIET = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
_QUIET += ["--disable-sync", "--disable-extensions", "--disable-dev-shm-usage"]
_PIPES = "import os, sys; r, w, *c = sys.argv[1:]; os.dup2(int(r), 3); os.dup2(int(w), 4); os.execv(c[0], c)"
_SECONDS = 60


class Page:
    """One tab. `heard` holds every event, in order."""

    def __init__(self, to: int, back: int):
        self.to, self.back, self.held, self.heard, self.session = to, back, b"", [], None
        self.number = itertools.count(1)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **named):
        """The answer to a command of the protocol; events on the way are heard."""
        number = next(self.number)
        message = {"id": number, "method": method, "params": named}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.next()).get("id") != number:
            self.heard.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def next(self) -> dict:
        """The next message; waits for it."""
        until = time.monotonic() + _SECONDS
        while b"\0" not in self.held:
            assert select.select([self.back], [], [], max(0.0, until - time.monotonic()))[0], "the browser is silent"
            part = os.read(self.back, 65536)
            assert part, "the browser has gone"
            self.held += part
        message, _, self.held = self.held.partition(b"\0")
        return json.loads(message)

    def open(self, path) -> None:
        """Load a file and wait for it."""
        self.heard.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not self.events("Page.loadEventFired"):
            self.heard.append(self.next())

    def events(self, *methods: str) -> list[dict]:
        """What was heard of these."""
        return [event["params"] for event in self.heard if event.get("method") in methods]

    def value(self, script: str):
        """What a script comes to."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def prefer(self, theme: str, media: str = "") -> None:
        """A reader whose system is light or dark; `media` may be print."""
        self.ask("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": theme}])


@contextlib.contextmanager
def browser(folder):
    """A page of a browser of its own, which ends with the block; `folder` is new and its own too."""
    ours, theirs = _pipes()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", *_QUIET, f"--user-data-dir={folder}"]
    command = [sys.executable, "-S", "-c", _PIPES, *map(str, theirs), CHROMIUM, *flags, "--remote-debugging-pipe"]
    running = subprocess.Popen(command, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in theirs:
        os.close(end)
    try:
        yield Page(*ours)
    finally:
        for end in ours:
            os.close(end)  # the browser ends when its pipe does
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """(we write, we read), (it reads, it writes); numbers above 9, so that none of them is 3 or 4."""
    (its_read, our_write), (our_read, its_write) = os.pipe(), os.pipe()
    high = []
    for end in (our_write, our_read, its_read, its_write):
        high.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return (high[0], high[1]), (high[2], high[3])
