"""How Chromium is started for the dashboard, in tests and for its pictures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest_asyncio
from playwright.async_api import Browser, ViewportSize, async_playwright

PATIENCE_MS = 60_000
CHROMIUM = "/usr/lib/chromium/chromium-headless-shell"  # not its wrapper in /usr/bin, which stays beside it
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
WIDE: ViewportSize = {"width": 1_440, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 844}


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser for the length of the `with`."""
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE_MS)
        yield launched
        await launched.close()


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    """One for one test."""
    async with chromium() as launched:
        yield launched
