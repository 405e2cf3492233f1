"""Chromium without a screen, driven over the DevTools protocol on a pair of pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Debian's; without it tests that need a browser are skipped.
CHROMIUM = shutil.which("chromium")
#: Longest wait for an answer, and for something on the page, seconds.
ANSWER_S, WAIT_S = 120.0, 60.0
_OPTIONS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--mute-audio",
    ),
    *(
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-sync",
    ),
    *("--disable-component-update", "--force-color-profile=srgb", "--hide-scrollbars"),
)
#: Keys that do something by themselves, by what they are called.
_CODES = {
    "Tab": 9,
    "Enter": 13,
    " ": 32,
    "Delete": 46,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "Home": 36,
    "End": 35,
}


class Browser:
    """One tab. What the page says on its console is kept in ``said``, what it asked for in ``asked``."""

    def __init__(
        self, process: subprocess.Popen[bytes], reads: int, writes: int
    ) -> None:
        self.process, self._reads, self._writes = process, reads, writes
        self._number, self._left = 0, b""
        self.said: list[str] = []
        self.asked: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the protocol. Raises RuntimeError for its error, TimeoutError."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            found = self._next(deadline)
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found.get("result", {})
            self._note(found)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._writes, data) :]

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self._left:
            ready, _, _ = select.select(
                [self._reads], [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._reads, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._left += part
        whole, _, self._left = self._left.partition(b"\0")
        return json.loads(whole)

    def _note(self, event: Any) -> None:
        match event.get("method"), event.get("params", {}):
            case "Runtime.consoleAPICalled", told:
                self.said.append(
                    " ".join(
                        str(one.get("value", one.get("description")))
                        for one in told["args"]
                    )
                )
            case "Runtime.exceptionThrown", told:
                details = told["exceptionDetails"]
                self.said.append(
                    str(
                        details.get("exception", {}).get("description", details["text"])
                    )
                )
            case "Log.entryAdded", told:
                self.said.append(
                    told["entry"]["text"] + " " + told["entry"].get("url", "")
                )
            case "Network.requestWillBeSent", told:
                self.asked.append(told["request"]["url"])

    def screen(self, width: int, height: int = 900, scale: float = 1.0) -> None:
        """Set the size of the page, pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited. Raises RuntimeError with what it threw."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(
                details.get("exception", {}).get("description", details["text"])
            )
        return found["result"].get("value")

    def wait(self, expression: str, timeout_s: float = WAIT_S) -> Any:
        """The first true value of an expression. Raises TimeoutError with what the page has said."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                if found := self.run(expression):
                    return found
            time.sleep(0.02)
        raise TimeoutError(
            f"{expression} did not become true; the page said: {self.said[-5:]}"
        )

    def key(
        self, key: str, *, text: str = "", shift: bool = False, control: bool = False
    ) -> None:
        """Press and release a key, such as ArrowRight or Tab."""
        code = _CODES.get(key, 0)
        told: dict[str, Any] = {
            "key": key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 * shift + 2 * control,
        }
        if control:
            told["commands"] = ["selectAll"] if key == "a" else []
        text = text or (
            "" if control else key if len(key) == 1 else "\r" if key == "Enter" else ""
        )
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            **told,
            **({"text": text} if text else {}),
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def reach(self, wanted: str, tabs: int = 150) -> None:
        """Press Tab until an expression of ``e``, what has the focus, is true. Raises TimeoutError."""
        for _ in range(tabs):
            self.key("Tab")
            if self.run(f"(e => {wanted})(document.activeElement)"):
                return
        raise TimeoutError(f"Tab does not come to where {wanted}")

    def write(self, text: str) -> None:
        """Type into the field that has the focus, in place of what is there."""
        self.key("a", control=True)
        self.call("Input.insertText", text=text)

    def picture(
        self,
        path: Path | None = None,
        *,
        whole: bool = False,
        clip: Mapping[str, float] | None = None,
    ) -> bytes:
        """PNG of the screen, of the whole page, or of a part of it; also written to ``path``."""
        part = {} if clip is None else {"clip": {"scale": 1, **clip}}
        found = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **part
        )
        data = base64.b64decode(found["data"])
        if path is not None:
            path.write_bytes(data)
        return data


@contextlib.contextmanager
def browser(*options: str) -> Iterator[Browser]:
    """A browser with a profile of its own, which is ended and removed."""
    assert CHROMIUM is not None
    to_it, from_it = os.pipe(), os.pipe()
    os.set_inheritable(to_it[0], True)
    os.set_inheritable(from_it[1], True)
    with tempfile.TemporaryDirectory(
        prefix="ringlight-browser-", ignore_cleanup_errors=True
    ) as profile:
        # The protocol is spoken on descriptors 3 and 4.
        command = f'exec 3<&{to_it[0]} 4>&{from_it[1]}; exec "$@"'
        process = subprocess.Popen(
            [
                *("bash", "-c", command, "bash", CHROMIUM, *_OPTIONS, *options),
                *(f"--user-data-dir={profile}", "--remote-debugging-pipe"),
            ],
            pass_fds=(to_it[0], from_it[1]),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it[0])
        os.close(from_it[1])
        try:
            yield Browser(process, from_it[0], to_it[1])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)
            os.close(from_it[0])
            os.close(to_it[1])
