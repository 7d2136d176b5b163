"""Runs the blocks of a tutorial, word for word, as a reader would: in one folder, in one shell, from top to bottom.

A comment on the line above a block says what it is:

| marker | the block |
|---|---|
| `<!-- file: NAME -->` | is saved as NAME |
| `<!-- run -->` | is run; it must succeed |
| `<!-- run: fails -->` | is run; it must not |
| `<!-- run: until -->` | is run again and again, until it prints the block that follows |
| `<!-- run: server -->` | starts the server that all tutorials share, which runs already |
| `<!-- prints -->` | was printed by the block before; `...` stands for anything, on a line of its own for any lines |

Addresses in the text are those of a reader's machine; `Reader` puts those of the test in their place.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from tests.blackbox.outside import environment
from tests.waiting import PATIENCE, eventually, let_pass

MARKED = re.compile(r"^<!-- (?P<kind>file|run|prints)(?:: (?P<what>\S+))? -->\n```\w*\n(?P<text>.*?)^```$", re.M | re.S)
END = "-- end of the block --"
AGAIN_SECONDS = 1.0
"""Before a command is tried again: each starts a process, and some wait for the end of a lease."""


@dataclass(frozen=True)
class Block:
    """One marked block of a page; `prints`: the output that the page shows after it."""

    kind: str
    what: str
    text: str
    prints: str = ""


def blocks(text: str) -> list[Block]:
    """The marked blocks of a page, in order, each with its output."""
    found: list[Block] = []
    for match in MARKED.finditer(text):
        block = Block(match["kind"], match["what"] or "", match["text"])
        if block.kind == "prints":
            last = found.pop()
            assert last.kind == "run", f"output without a command: {block.text}"
            block = Block(last.kind, last.what, last.text, block.text)
        found.append(block)
    assert len(found) > 1, "a page without marked blocks"
    return found


def shown(promised: str, said: str) -> bool:
    """Whether the output is that of the page."""
    pattern = ""
    for line in promised.splitlines():
        parts = [re.sub(r"(\\ )+", r" +", re.escape(part)) for part in line.split("...")]
        pattern += r"(.*\n)*" if line == "..." else ".*".join(parts) + "\n"
    return re.fullmatch(pattern, said) is not None


class Reader:
    """A reader with a shell in a folder. `places` maps addresses of the pages to those of the test."""

    def __init__(self, folder: Path, places: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._folder = folder
        self._places = places
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._errors = (folder / "errors.txt").open("a+")
        self._shell = subprocess.Popen(
            ["bash"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=environment({"PATH": path, "PYTHONFAULTHANDLER": "1", **env}), start_new_session=True,
        )  # fmt: skip

    def read(self, page: str) -> None:
        """Do what a page says. Raises AssertionError with the block that does otherwise."""
        for block in blocks(page):
            text = self._here(block.text)
            if block.kind == "file":
                (self._folder / block.what).write_text(text)
            elif block.what == "server":
                assert text.startswith("horarium serve"), text
            elif block.what == "until":
                eventually(lambda text=text, block=block: self._does(text, block), what=block.text)  # type: ignore[misc]
            else:
                said, status = self._run(text)
                assert (status != 0) == (block.what == "fails"), (block.text, status, said, self.errors())
                assert not block.prints or shown(self._here(block.prints), said), (block.text, said, self.errors())

    def _does(self, text: str, block: Block) -> bool:
        said, status = self._run(text)
        does = status == 0 and shown(self._here(block.prints), said)
        if not does:
            let_pass(AGAIN_SECONDS)
        return does

    def _here(self, text: str) -> str:
        for address, real in self._places.items():
            text = text.replace(address, real)
        return text

    def _run(self, text: str) -> tuple[str, int]:
        """Its output, which ends in a line end, and exit status. A block that hangs ends the shell and is traced."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        limit = Timer(PATIENCE, os.killpg, (self._shell.pid, signal.SIGABRT))
        limit.start()
        try:
            self._shell.stdin.write(f"{text}\nprintf '\\n{END} %s\\n' $?\n")
            self._shell.stdin.flush()
            said = ""
            for line in self._shell.stdout:
                if line.startswith(END):
                    whole = said[:-1]
                    return whole if whole.endswith("\n") or not whole else f"{whole}\n", int(line.removeprefix(END))
                said += line
        finally:
            limit.cancel()
        raise AssertionError((text, "the shell ended", self.errors()))

    def errors(self) -> str:
        """What was written to the standard error so far, its end."""
        return Path(self._errors.name).read_text()[-2000:]

    def leave(self) -> None:
        """End the shell and all that it started."""
        os.killpg(self._shell.pid, signal.SIGTERM)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell.wait(PATIENCE)
        self._errors.close()
