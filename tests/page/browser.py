"""A real Chromium, driven by its DevTools protocol over a pipe: what it asks for, says and shows."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.waiting import LONG

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
]


class Browser:
    """One page in one browser, from start to stop."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._number = 0
        self.console: list[str] = []
        """Errors and warnings that it printed, and exceptions that nobody caught."""
        self.requests: list[str] = []
        self._session: str | None = None
        threading.Thread(target=self._read, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        answer = self._answers[self._number] = queue.SimpleQueue()
        os.write(self._out, json.dumps(message).encode() + b"\0")
        told = answer.get(timeout=120)
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    def _read(self) -> None:
        data = b""
        while chunk := os.read(self._in, 1 << 16):
            *whole, data = (data + chunk).split(b"\0")
            for each in whole:
                self._told(json.loads(each))

    def _told(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers.pop(message["id"]).put(message)
            return
        given = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.console.append(json.dumps(given["exceptionDetails"])[:500])
        elif message["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.console.append(json.dumps(given["args"])[:500])
        elif message["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def open(self, url: str, width: int = 1280, height: int = 1000, theme: str = "light") -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str, seconds: float = LONG) -> None:
        """Wait for an expression to be true."""
        deadline = time.monotonic() + seconds
        guarded = f"(() => {{ try {{ return !!({script}); }} catch (e) {{ return false; }} }})()"
        while not self.run(guarded):  # a page that is still coming has nothing to ask
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {script}\n{self.text()[:3000]}"
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def shot(self, path: Path) -> None:
        """The whole page."""
        told = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)
        os.close(self._out)
