"""Pictures of every page of the dashboard: light, dark and narrow, of the demonstration's system.

    python tools/pictures.py [--only jobs,run] [--url http://127.0.0.1:8080] [--into docs/pictures]

Starts the demonstration (`make demo`), unless it is given the address of a server, and writes PNG files into
`docs/pictures`, which is kept out of git. `docs/dashboard.md` shows them where the documents are built.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import Browser, Page  # noqa: E402

from tests.dashboard.browsing import NARROW, WIDE, chromium  # noqa: E402

LANGUAGE, ZONE = "en-GB", "Europe/Berlin"
LOOKS: dict[str, tuple[Any, Any]] = {"light": (WIDE, "light"), "dark": (WIDE, "dark"), "narrow": (NARROW, "light")}


@contextmanager
def demonstration() -> Iterator[str]:
    """The address of a demonstration that has fired for a while."""
    demo = subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "examples" / "demo.py")],
        env={**os.environ, "DEMO_SECONDS": "3600", "DEMO_SAMPLES": "0"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert demo.stdout is not None
        url = ""
        for line in demo.stdout:
            url = found[0] if not url and (found := re.findall(r"Dashboard: (http://[^/]+)/", line)) else url
            if line.startswith("Callbacks"):
                break
        assert url, "the demonstration did not start"
        yield url
    finally:
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(60)


def run_of(url: str, query: str) -> str:
    """The newest run that fits."""
    with urllib.request.urlopen(f"{url}/api/v1/runs?limit=1&{query}", timeout=60) as answer:
        return str(json.load(answer)["items"][0]["id"])


def pages_of(url: str) -> dict[str, str]:
    """The name of each picture, and the address it is of."""
    return {
        "overview": "/",
        "overview-day": "/?span=day",
        "jobs": "/jobs",
        "jobs-search": "/jobs?q=backup",
        "jobs-none": "/jobs?q=nothing-like-this",
        "job": "/jobs/invoice-export",
        "job-paused": "/jobs/newsletter-send",
        "job-well": "/jobs/etl-clickstream",
        "new-job": "/new-job",
        "edit": "/jobs/backup-postgres-main/edit",
        "runs": "/runs",
        "runs-failed": "/runs?state=failed",
        "bulk": "/bulk-runs?action=retry&state=failed",
        "run-failed": f"/runs/{run_of(url, 'job=invoice-export&state=failed')}",
        "run-running": f"/runs/{run_of(url, 'job=recommendations-train&state=running')}",
        "run-well": f"/runs/{run_of(url, 'job=fraud-score-batch&state=completed')}",
        "batches": "/batches",
        "calendar-day": "/calendar?span=day",
        "calendar": "/calendar",
        "calendar-month": "/calendar?span=month",
        "queues": "/queues",
        "nodes": "/nodes",
        "channels": "/channels",
        "audit": "/audit",
        "broken": "/jobs/no-such-job",
    }


async def take(browser: Browser, url: str, names: list[str], looks: list[str], folder: Path) -> None:
    """One picture for each page and look."""
    pages = pages_of(url)
    for look in looks:
        viewport, scheme = LOOKS[look]
        context = await browser.new_context(
            base_url=url, viewport=viewport, color_scheme=scheme, locale=LANGUAGE, timezone_id=ZONE
        )
        page = await context.new_page()
        await page.goto("/nodes")
        for name in names or list(pages):
            await page.goto(pages[name])
            await page.wait_for_load_state("load")
            if name == "new-job":
                await fill(page)
            await page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            await page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
        await context.close()


async def fill(page: Page) -> None:
    """Type what makes the form worth seeing."""
    await page.get_by_label("Name", exact=True).fill("report-quarterly")
    await page.get_by_label("Rule", exact=True).fill("last friday of the month at 2:30am")
    await page.get_by_label("HTTP", exact=True).check(force=True)
    await page.get_by_label("URL", exact=True).fill("https://reports.example.com/quarterly")
    await page.get_by_text("--http https://reports.example.com/quarterly", exact=False).first.wait_for(state="attached")


async def draw(url: str, names: list[str], looks: list[str], folder: Path) -> None:
    async with chromium() as browser:
        await take(browser, url, names, looks, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of pictures, with commas")
    parser.add_argument("--looks", default=",".join(LOOKS))
    parser.add_argument("--url", default="")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    names, looks = [name for name in given.only.split(",") if name], given.looks.split(",")
    if given.url:
        asyncio.run(draw(given.url, names, looks, given.into))
    else:
        with demonstration() as url:
            asyncio.run(draw(url, names, looks, given.into))
    return 0


if __name__ == "__main__":
    sys.exit(main())
