"""`make docs` builds the whole site without a warning and without a link that leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.blackbox.outside import environment, horarium, serving
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD_SECONDS = 600
LANDING = (DOCS / "site" / "landing.html").read_text()


def build(target: Path, pictures: Path) -> subprocess.CompletedProcess[str]:
    url, tool = "https://docs.example.com/1", ROOT / "tools" / "docs_site.py"
    return subprocess.run(
        [sys.executable, tool, "--outdir", target, "--url", url, "--pictures", pictures],
        env=environment(), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip


def test_the_site_is_built_whole(tmp_path: Path) -> None:
    pictures = re.findall(r'^<img src="pictures/([^"]+)"', (DOCS / "dashboard.md").read_text(), re.M)
    (tmp_path / "pictures").mkdir()
    for name in pictures[1:]:
        (tmp_path / "pictures" / name).write_bytes(b"picture")
    done = build(tmp_path / "site", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    shown = re.findall(r'<img src="pictures/([^"]+)"', (site / "dashboard.html").read_text())
    assert len(pictures) > 1
    assert shown == pictures[1:], "those that were made, and no other"
    assert all((site / "pictures" / name).exists() for name in shown)
    for page in DOCS.rglob("*.md"):
        if "pictures" not in page.parts:
            assert (site / page.relative_to(DOCS)).with_suffix(".html").exists(), page
    listed = {entry.text for entry in ElementTree.parse(site / "sitemap.xml").iter() if entry.tag.endswith("loc")}
    assert {"https://docs.example.com/1/index.html", "https://docs.example.com/1/jobs.html"} <= listed
    assert "https://docs.example.com/1/start/python-app.md" in (site / "llms.txt").read_text()
    assert 'href="/1/contents.html"' in (site / "404.html").read_text()
    assert (site / "searchindex.js").stat().st_size > 100_000
    for page in (*site.glob("*.html"), *site.glob("start/*.html")):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"|<link[^>]*href="(https?:[^"]+)"', page.read_text()
        )
        assert loaded == [], f"{page.name} loads from another host"
    python, rest = (site / "python.html").read_text(), (site / "rest.html").read_text()
    assert 'id="horarium.Scheduler.enqueue"' in python
    assert "/runs/claim" in rest


def programs() -> list[str]:
    """The programs of the first page, as a reader copies them."""
    return [
        unescape(re.sub(r"<[^>]+>", "", text))
        for text in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", LANDING, re.S)
    ]


def test_the_programs_of_the_first_page_work(tmp_path: Path) -> None:
    python, http, cron, explain = programs()
    store = f"sqlite:///{tmp_path}/jobs.db"
    with serving(store) as server:
        env = {"HORARIUM_URL": server.url}
        for line in commands(http):
            done = horarium(*line, env=env)
            assert done.returncode == 0, (line, done.stderr)
        (tmp_path / "old.crontab").write_text("30 2 * * * true\n")
        for line in commands(cron):
            if line[0] == "job":
                assert (
                    horarium(
                        *[str(tmp_path / "old.crontab") if part == "old.crontab" else part for part in line], env=env
                    ).returncode
                    == 0
                )
            else:
                assert line == ["worker", "--queue", "shell", "--allow-commands"]
        rule = {"type": "cron", "expression": "30 2 * * *", "timezone": "Europe/Berlin"}
        server.add("nightly", rule, {"type": "queue", "queue": "nights"})
        (question,) = commands(explain.replace("$ ", ""))
        said = horarium(*question, env=env).stdout
        assert said.split() == explain.split("01:00:00Z\n", 1)[1].split()
    process = subprocess.Popen([sys.executable, "-c", python], cwd=tmp_path, env=environment())
    try:
        with serving(store) as server:
            eventually(lambda: "report" in [job["name"] for job in server("GET", "/jobs?limit=100")["items"]])
    finally:
        process.terminate()
        process.wait()


def commands(text: str) -> list[list[str]]:
    """Its `horarium ...`, without the start of a server."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    found = [re.findall(r'"([^"]*)"|(\S+)', line)[1:] for line in lines if line.startswith("horarium ")]
    plain = [[quoted or word for quoted, word in line] for line in found]
    return [line for line in plain if line[0] != "serve"]
