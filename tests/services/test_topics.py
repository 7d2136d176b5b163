"""Every topic is published by some part and heard by another."""

from __future__ import annotations

import re
from pathlib import Path

import horarium

ROOT = Path(horarium.__file__).parent
TOPICS = {
    "jobs": r'JOBS|"jobs"',
    "batches": "BATCHES",
    "joins": "JOINS",
    "join ends": "JOIN_ENDS",
    "cancel": r'CANCEL|"cancel"',
    "apply": "APPLY",
    "awaited": "AWAITED",
    "holds": "HOLDS",
    "ended": "ENDED",
    "queue": r'queue_topic\(|f"queue:',
}


def sources() -> list[str]:
    return [path.read_text() for folder in ("services", "operations") for path in (ROOT / folder).rglob("*.py")]


def test_each_topic_is_published_and_heard() -> None:
    published = "\n".join(re.findall(r"(?:publish|_say)\((.*)\)", "\n".join(sources())))
    heard = "\n".join(re.findall(r"(?:topics.*=|subscribe\()(.*)", "\n".join(sources())))
    for topic, pattern in TOPICS.items():
        assert re.search(pattern, published), f"{topic} is never published"
        assert re.search(pattern, heard), f"{topic} is heard nowhere"


def test_no_other_topic_is_published() -> None:
    published = re.findall(r"publish\((.*)\)", "\n".join(sources()))
    others = [one for one in published if not any(re.search(pattern, one) for pattern in TOPICS.values())]
    assert [one for one in others if "topic" not in one and "job" not in one] == []
