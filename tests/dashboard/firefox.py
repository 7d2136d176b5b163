"""Firefox without a driver: by the protocol that it speaks itself (Marionette), as far as the tests here need it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.servers.process import free_port
from tests.waiting import PATIENCE, eventually

FIREFOX = "/usr/bin/firefox-esr"
NARROWEST = 500
"""Pixels of a window."""
PREFERENCES: dict[str, Any] = {
    "app.update.enabled": False, "browser.shell.checkDefaultBrowser": False, "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False, "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "services.settings.server": "http://127.0.0.1:9",
    "toolkit.telemetry.reportingpolicy.firstRun": False, "ui.prefersReducedMotion": 1,
}  # fmt: skip


class Firefox:
    """One browser; what it is told is done when the call returns."""

    def __init__(self, port: int) -> None:
        self._line = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._read = self._line.makefile("rb")
        self._said = 0
        self._message()
        self.tell("WebDriver:NewSession", capabilities={"alwaysMatch": {"timeouts": {"pageLoad": PATIENCE * 1_000}}})

    def _message(self) -> Any:
        length = b""
        while (letter := self._read.read(1)) != b":":
            assert letter, "Firefox hung up"
            length += letter
        return json.loads(self._read.read(int(length)))

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of WebDriver, and its answer."""
        self._said += 1
        text = json.dumps([0, self._said, command, parameters]).encode()
        self._line.sendall(b"%d:%s" % (len(text), text))
        _, number, error, answer = self._message()
        assert (number, error) == (self._said, None), error
        return answer

    def open(self, url: str) -> None:
        """Go to a page, and return once it is loaded."""
        self.tell("WebDriver:Navigate", url=url)

    def ask(self, script: str, *given: Any) -> Any:
        """What a function with this body returns on the page; `arguments` are those given."""
        return self.tell("WebDriver:ExecuteScript", script=script, args=list(given))["value"]

    def size(self, width: int) -> None:
        """The page gets this many pixels of width; where its window can't be so narrow, it is magnified."""
        scale = 1 if width >= NARROWEST else 2
        self.tell("Marionette:SetContext", value="chrome")
        self.ask("gBrowser.selectedBrowser.fullZoom = arguments[0]", scale)
        self.tell("Marionette:SetContext", value="content")
        self.tell("WebDriver:SetWindowRect", width=width * scale, height=900)
        self.until("return innerWidth === arguments[0]", width)

    def until(self, script: str, *given: Any) -> None:
        """Wait until that is true."""
        eventually(lambda: self.ask(script, *given), what=f"{script} {given}")

    def type(self, selector: str, text: str) -> None:
        """Type into the first element that fits, key by key."""
        found = self.tell("WebDriver:FindElement", using="css selector", value=selector)["value"]
        self.tell("WebDriver:ElementSendKeys", id=next(iter(found.values())), text=text)

    def click(self, selector: str) -> None:
        found = self.tell("WebDriver:FindElement", using="css selector", value=selector)["value"]
        self.tell("WebDriver:ElementClick", id=next(iter(found.values())))

    def close(self) -> None:
        self._read.close()
        self._line.close()


@contextmanager
def firefox(**preferences: Any) -> Iterator[Firefox]:
    """A browser with a profile of its own."""
    port = free_port()
    profile = Path(tempfile.mkdtemp(prefix="firefox-"))
    lines = {**PREFERENCES, **preferences, "marionette.port": port}
    text = "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in lines.items())
    (profile / "user.js").write_text(text)
    command = [FIREFOX, "--headless", "--marionette", "--remote-allow-system-access", "--profile", str(profile)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        eventually(lambda: _listens(port), what="Firefox listens")
        with closing(Firefox(port)) as browser:
            yield browser
    finally:
        process.terminate()
        process.wait(PATIENCE)
        shutil.rmtree(profile, ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
