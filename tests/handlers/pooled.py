"""Handlers for a process of their own."""

from __future__ import annotations

import os
from datetime import date


def add(a: int, b: int) -> tuple[int, int]:
    return a + b, os.getpid()


def endless(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    while True:
        pass


def wrong(day: date) -> None:
    raise ValueError(f"no such day: {day}")


def crash() -> None:
    os.kill(os.getpid(), 9)


class NoDisk(OSError):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


def no_disk() -> None:
    raise NoDisk(28, detail="it is full")
