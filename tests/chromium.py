"""Debian's headless Chromium, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PROGRAM = "chromium-headless-shell"
FLAGS = ("--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
         "--disable-background-networking", "--no-first-run")
PATIENCE_SECONDS = 30.0


class Browser:
    """One page. `problems` are errors of its scripts, and what its policy or the network refused."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a command. Raises RuntimeError for one that is refused."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._heard(answer)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("Chromium does not answer")
            self._buffer += os.read(self._answers, 1 << 20)
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _heard(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")

    def show(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """What the page is shown on."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && window.speedwell !== undefined")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives. Raises RuntimeError for one that throws."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = PATIENCE_SECONDS) -> Any:
        return wait_until(lambda: self.value(expression), seconds, lambda: f"{expression}; {self.problems}")

    def text(self, selector: str) -> str:
        found: str = self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def press(self, *keys: str) -> None:
        for key in keys:
            text = key if len(key) == 1 else "\r" if key == "Enter" else ""
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with nothing open yet, and with no way to the internet."""
    with ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        their_commands, commands = os.pipe()
        answers, their_answers = os.pipe()
        for descriptor in (commands, answers):
            cleanup.callback(os.close, descriptor)
        # It takes commands from descriptor 3 and answers to descriptor 4.
        script = f'exec "$@" 3<&{their_commands} 4>&{their_answers}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", PROGRAM, *FLAGS, f"--user-data-dir={directory}",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE 10.255.0.1"],
            pass_fds=(their_commands, their_answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(their_commands)
        os.close(their_answers)
        cleanup.callback(process.wait)
        cleanup.callback(process.kill)
        yield Browser(commands, answers)
