"""What a page says once, of what was just done."""

from __future__ import annotations

from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor

SAID = '<div class="toast"><span>job is paused.'


async def test_a_page_that_looks_again_takes_no_message_from_the_page_that_was_gone_to(
    api: Api, visitor: Visitor
) -> None:
    """All tabs of a browser have the same cookies, and look again when something changes: just then."""
    await api.add_job("job")
    await visitor.open("/jobs/job")
    await visitor.post("/jobs/job/pause", reason="")
    await visitor.open("/jobs/job", x_live="1")
    assert SAID not in visitor.page
    await visitor.open("/jobs/job")
    assert SAID in visitor.page
    await visitor.open("/jobs/job")
    assert SAID not in visitor.page
