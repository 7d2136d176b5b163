"""Builds the site of the documentation into site/, without a network: `make docs`.

The pages are those of docs/. To them come the first page (docs/site/landing.html), references made from the code
(tools/docs_reference.py), a list of all pages, sitemap.xml, llms.txt and a page for dead addresses. A page in no group
of GROUPS is listed under "More": nothing that is added to docs/ is left out. A warning of Sphinx, a link or a picture
that leads nowhere, and a page without a title are errors.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs_reference import write_references

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LOCAL = "http://127.0.0.1:8000/"
"""Where `python -m http.server -d site` shows it."""
TOP_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "vulnerabilities.md"}
"""Pages outside docs/, and their names on the site."""
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Start",
        (
            "start/install",
            "start/python-app",
            "start/fastapi",
            "start/replace-cron",
            "start/http-endpoints",
            "start/workers-any-language",
            "start/team-postgresql",
            "start/kubernetes",
            "start/*",
        ),
    ),
    (
        "Guides",
        (
            "library",
            "fastapi-django",
            "processes",
            "http-delivery",
            "workers",
            "clients/*",
            "bus",
            "notifications",
            "pings",
            "logs",
            "calendars",
            "explain",
            "guides/retries",
            "guides/idempotency",
            "guides/overlap",
            "guides/dst",
            "guides/backup",
            "guides/production",
            "guides/*",
            "agents",
            "holds",
            "overrides",
            "approvals",
            "rates",
            "fairness",
            "batches",
            "unique",
            "secrets",
            "results",
            "plans",
            "simulate",
            "testing",
        ),
    ),
    ("Coming from", ("coming-from", "coming-from/*", "doors")),
    ("Fix it", ("fix/*",)),
    ("Concepts", ("concepts/*", "lifecycle", "security", "architecture/*")),
    (
        "Reference",
        (
            "jobs",
            "triggers",
            "triggers-recurrence",
            "api",
            "rest",
            "python",
            "cli",
            "settings",
            "worker-protocol",
            "conformance",
            "protocol",
            "glossary",
        ),
    ),
    (
        "Running it",
        ("operating", "access", "dashboard", "proxies", "tracing", "postgresql", "redis", "mongodb", "cockroachdb"),
    ),
    ("About", ("about/*", "performance", "changelog", "contributing", "vulnerabilities", "releasing", "adr/README")),
)
MORE = "More"
PICTURES = "pictures"
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
COMMENT = re.compile(r"<!--.*?-->|\A---\n.*?\n---\n", re.DOTALL)


class BadSite(Exception):
    """The text says which page, and what is wrong with it."""


@dataclass(frozen=True)
class Page:
    """One page: its name on the site without a suffix, its title, its first words."""

    name: str
    title: str
    summary: str


def gather(source: Path, pictures: Path) -> None:
    """Every page and every file that Sphinx reads, in one folder; links that leave docs/ lead to copies."""
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("site", "__pycache__", PICTURES))
    if pictures.is_dir():
        shutil.copytree(pictures, source / PICTURES)
    shutil.copytree(DOCS / "site", source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for page in sorted(source.rglob("*.md")):
        original = DOCS / page.relative_to(source)
        page.write_text(relinked(page.read_text(), original, page, source))
    for name, short in TOP_PAGES.items():
        (source / short).write_text(relinked((ROOT / name).read_text(), ROOT / name, source / short, source))
    write_references(source)
    for page in (source / "adr").glob("0*.md"):
        page.write_text(f"---\norphan: true\n---\n{page.read_text()}")  # README lists them, the navigation does not


def relinked(text: str, original: Path, page: Path, source: Path) -> str:
    """The text of a page with links that hold on the site, without pictures that were not made (tools/pictures.py)."""

    def place(match: re.Match[str]) -> str:
        target = (original.parent / match[2]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            raise BadSite(f"{original.relative_to(ROOT)} links {match[2]}, and there is no such file")
        there = on_site(target, source)
        return match[1] + os.path.relpath(there, page.parent) + match[3]

    text = re.sub(
        r'^<img src="(pictures/[^"]+)".*\n',
        lambda match: match[0] if (source / match[1]).exists() else "",
        text,
        flags=re.M,
    )
    return LINK.sub(place, text).replace("```mermaid\n", "```text\n")


def on_site(target: Path, source: Path) -> Path:
    """Where a file of the repository is in the gathered folder. A page that lies elsewhere is taken along."""
    name = target.relative_to(ROOT).as_posix()
    if name == "README.md":
        return source / "contents.md"
    if name in TOP_PAGES:
        return source / TOP_PAGES[name]
    if target.is_relative_to(DOCS):
        return source / target.relative_to(DOCS)
    if target.is_dir():
        raise BadSite(f"{name} is a folder: link a file in it")
    if target.suffix == ".md":
        page = source / name
        if not page.exists():
            page.parent.mkdir(parents=True, exist_ok=True)
            page.touch()  # two pages may link each other
            page.write_text(relinked(target.read_text(), target, page, source))
        return page
    copy = source / "files" / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(target, copy)
    return copy


def pages_in(source: Path) -> dict[str, Page]:
    """Every page by its name. Raises BadSite for one without a title."""
    found = {}
    for path in sorted(source.rglob("*.md")):
        name = path.relative_to(source).with_suffix("").as_posix()
        title, _, rest = COMMENT.sub("", path.read_text()).lstrip().partition("\n")
        if not title.startswith("# "):
            raise BadSite(f"{name}.md does not begin with a title (`# ...`)")
        found[name] = Page(name, plain(title[2:]), plain(first_words(rest)))
    return found


def first_words(text: str) -> str:
    """The first paragraph that is no heading, table or code."""
    paragraphs = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n")
    return next((each for each in paragraphs if re.match(r"\s*[^#|`\s:]", each) and not each.startswith("    ")), "")


def plain(text: str) -> str:
    """Markdown without its signs, on one line."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*]", "", text).split())


def grouped(pages: dict[str, Page]) -> list[tuple[str, list[Page]]]:
    """Each page in the first group that has a place for it; the others under "More"."""
    left = {name: page for name, page in pages.items() if not name.startswith("adr/0")}
    groups = []
    for caption, patterns in GROUPS:
        members = []
        for pattern in patterns:
            names = [name for name in left if fnmatch(name, pattern)]
            members += [left.pop(name) for name in names]
        groups.append((caption, members))
    return [(caption, members) for caption, members in [*groups, (MORE, list(left.values()))] if members]


def contents(groups: list[tuple[str, list[Page]]]) -> str:
    """The list of all pages, which gives the site its navigation."""
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(f"/{page.name}" for page in members) + "\n```"
        for caption, members in groups
    ]
    lists = [
        f"## {caption}\n\n| page | about |\n|---|---|\n"
        + "\n".join(f"| [{page.title}]({page.name}.md) | {shortened(page.summary)} |" for page in members)
        for caption, members in groups
    ]
    return "\n\n".join(["# All pages", "Every page, by kind, with its first words.", *trees, *lists]) + "\n"


def shortened(text: str, most: int = 160) -> str:
    cut = text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."
    return cut.replace("|", "\\|").replace("<", "&lt;")


def run_sphinx(source: Path, target: Path) -> None:
    """Raises BadSite with what Sphinx says."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(source.parent / "doctrees"), str(source), str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BadSite(done.stderr.replace(str(source), "docs"))


def add_front(target: Path, url: str) -> None:
    """The first page, and the page for dead addresses, whose links begin at the site's root."""
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    front = (DOCS / "site" / "landing.html").read_text().replace("{{version}}", release)
    (target / "index.html").write_text(front)
    root = html.escape(urlsplit(url).path or "/")
    (target / "404.html").write_text(
        f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>No such page: Horarium</title><link rel="stylesheet" href="{root}_static/landing.css"></head>
<body><main class="wrap"><h1>There is no page at this address</h1>
<p><a href="{root}contents.html">All pages</a>, <a href="{root}search.html">Search</a>,
<a href="{root}index.html">First page</a></p></main></body></html>
"""
    )


def add_lists(source: Path, target: Path, groups: list[tuple[str, list[Page]]], url: str) -> None:
    """sitemap.xml for search engines; llms.txt and the pages as Markdown for language models."""
    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*.html") if path.name != "404.html")
    entries = "".join(f"<url><loc>{html.escape(url + name)}</loc></url>\n" for name in names)
    (target / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        f"{entries}</urlset>\n"
    )
    lines = [
        "# Horarium",
        "",
        "> A durable, distributed job scheduler in Python: library, server, dashboard, commands.",
    ]
    whole = []
    for caption, members in groups:
        lines += ["", f"## {caption}", ""]
        for page in members:
            text = (source / f"{page.name}.md").read_text()
            (target / f"{page.name}.md").write_text(text)
            whole.append(text)
            lines.append(f"- [{page.title}]({url}{page.name}.md): {page.summary[:200]}")
    (target / "llms.txt").write_text("\n".join(lines) + "\n")
    (target / "llms-full.txt").write_text("\n\n".join(whole))


class Links(HTMLParser):
    """What a page points to, and what can be pointed to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in {"href", "src"} and value and tag != "use":
                self.targets.append(value)


def dead_links(target: Path) -> Iterator[str]:
    """Each link or picture of the built pages that leads nowhere, and each script or style of another host."""
    seen = {path: Links(path.read_text()) for path in target.rglob("*.html") if path.name != "404.html"}
    for page, links in seen.items():
        for link in links.targets:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            named = f"{page.relative_to(target)} -> {link}"
            if not there.exists():
                yield named
            elif parts.fragment and there in seen and unquote(parts.fragment) not in seen[there].anchors:
                yield f"{named} (no such heading)"


def build(target: Path, url: str, pictures: Path) -> int:
    """Make the site in `target`, fresh. Returns its number of pages. Raises BadSite."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages"
        gather(source, pictures)
        groups = grouped(pages_in(source))
        (source / "contents.md").write_text(contents(groups))
        shutil.rmtree(target, ignore_errors=True)
        run_sphinx(source, target)
        if (source / PICTURES).is_dir():
            shutil.copytree(source / PICTURES, target / PICTURES)
        add_front(target, url)
        add_lists(source, target, groups, url)
    if dead := sorted(set(dead_links(target))):
        raise BadSite("these lead nowhere:\n  " + "\n  ".join(dead))
    return sum(1 for _ in target.rglob("*.html"))


def main() -> int:
    """0: the site is built. 1: it is not, and why."""
    parser = argparse.ArgumentParser(description="Builds the site of the documentation.")
    parser.add_argument("--outdir", type=Path, default=ROOT / "site")
    parser.add_argument("--url", default=LOCAL, help="the address at which it will be")
    parser.add_argument("--pictures", type=Path, default=DOCS / PICTURES, help="of tools/pictures.py")
    given = parser.parse_args()
    try:
        count = build(given.outdir.resolve(), given.url.rstrip("/") + "/", given.pictures)
    except BadSite as why:
        print(f"docs: {why}", file=sys.stderr)
        return 1
    print(f"docs: {count} pages in {given.outdir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
