"""Each field of a job and each of its values stands in a page that people read, not in the list of commands alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from horarium.model import Disposition, Occasion, State
from horarium.model.jobs import Definition
from horarium.policies import CatchUp, CatchUpPolicy, Concurrency, Overlap, Retention, Retry, Timeouts

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "\n".join(page.read_text() for page in sorted(DOCS.glob("*.md")) if page.name not in {"cli.md", "api.md"})
FIELDS = (Definition, CatchUp, Retry, Timeouts, Concurrency, Retention)
VALUES: tuple[type[StrEnum], ...] = (Overlap, CatchUpPolicy, Occasion, State, Disposition)


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_job_has_its_words(kind: type) -> None:
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    missing = [name for name in names if f"`{name}`" not in PAGES and f'"{name}"' not in PAGES]
    assert missing == [], f"say in docs/jobs.md, or on a page about it, what {missing} of {kind.__name__} means"


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_value_has_its_words(kind: type[StrEnum]) -> None:
    missing = [str(value) for value in kind if f"`{value}`" not in PAGES]
    assert missing == [], f"say in docs/jobs.md, or on a page about it, what {missing} of {kind.__name__} does"
