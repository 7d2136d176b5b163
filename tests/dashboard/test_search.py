"""One search for what has a page and for what can be done to it, and the views that a person keeps by name."""

from __future__ import annotations

import re

import pytest

from horarium.operations.looking import saved
from tests.api.conftest import Api, a_definition
from tests.dashboard.test_pages import KEY, a_failed_run, a_key, signed_in
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


def links(visitor: Visitor) -> list[str]:
    """Where the results lead."""
    _, _, found = visitor.page.partition('id="found"')
    return [each.replace("&amp;", "&") for each in re.findall(r'<li><a href="([^"]+)"', found.partition("</main>")[0])]


async def test_what_has_a_page_is_found_and_a_verb_offers_to_do_it(api: Api, visitor: Visitor) -> None:
    await api.add_job("backup-db", title="Nightly dump", labels={"team": "ops"})
    await api.add_job("backup-files")
    run = await a_failed_run(api, "backup-db")
    assert (await visitor.open(f"/search?q=+{run}")).headers["location"] == f"/runs/{run}"
    for text in ("dump", "team=ops", "label:team=ops", "BACKUP-d"):
        await visitor.open(f"/search?q={text}")
        assert "/jobs/backup-db" in links(visitor), text
        assert "/bulk-jobs?action=pause&chosen=backup-db" in links(visitor), text
    for words, page in (("timel", "/timeline"), ("deleted", "/deleted-jobs")):
        await visitor.open(f"/search?q={words}")
        assert links(visitor)[0] == page
    await visitor.open("/search?q=pause+backup*")
    assert links(visitor)[:3] == ["/bulk-jobs?action=pause&q=backup", "/bulk-jobs?action=pause&chosen=backup-db",
                                  "/bulk-jobs?action=pause&chosen=backup-files"]  # fmt: skip
    await visitor.open(links(visitor)[1])
    assert "Pause 1 job?" in visitor.text
    await visitor.open("/search?q=why+backup-db")
    assert links(visitor)[0] == "/jobs/backup-db#why"
    await visitor.open("/search?q=<b>xyz")
    assert "<b>xyz" not in visitor.page
    assert "/failures?q=%3Cb%3Exyz&span=week" in links(visitor)


async def test_what_one_may_not_do_is_not_offered(api: Api) -> None:
    locked = Api([KEY], pages=True)
    await locked.post("/jobs", a_definition("backup"), headers={"authorization": f"Bearer {KEY}"})
    visitor = await signed_in(locked, await a_key(locked, "looks", "viewer"))
    for text in ("", "pause+backup", "backup", "new", "audit"):
        await visitor.open(f"/search?q={text}")
        assert not [to for to in links(visitor) if to.startswith(("/bulk", "/new-job", "/audit"))], text
    assert (await visitor.open("/audit")).status == 403


async def test_a_view_is_kept_for_the_one_who_saved_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Api([KEY], pages=True)
    ann = await signed_in(locked, await a_key(locked, "ann", "viewer"))
    bob = await signed_in(locked, await a_key(locked, "bob", "viewer"))
    await ann.open("/runs?state=failed&job=x")
    assert "Save this view" in ann.text
    to = re.search(r'name="to" value="([^"]+)"', ann.page)
    assert to is not None
    reply = await ann.post("/views", name="Failures of <x>", to=to[1].replace("&amp;", "&"))
    assert reply.headers["location"] == "/runs?job=x&state=failed"
    await ann.open("/runs")
    assert ">Failures of &lt;x&gt;</a>" in ann.page
    await ann.open("/search?q=failures+of")
    assert "/runs?job=x&state=failed" in links(ann)
    await bob.open("/runs")
    assert "Failures of" not in bob.text
    for name, address in (("", "/runs"), ("n" * 61, "/runs"), ("n", "//x.org"), ("n", "https://x.org"), ("n", "/\\x")):
        await ann.open("/runs?state=failed")
        assert (await ann.post("/views", name=name, to=address)).status == 422, address
    monkeypatch.setattr(saved, "VIEWS_MAX", 1)
    await ann.open("/runs?state=failed")
    assert (await ann.post("/views", name="second", to="/runs?job=y")).status == 422
    await ann.open("/runs?job=x&state=failed")
    assert (await ann.post("/views/remove", name="Failures of <x>")).status == 303
    await ann.open("/runs?job=x&state=failed")
    assert "Save this view" in ann.text
    assert (await ann.post("/views/remove", name="Failures of <x>")).status == 404


async def test_a_view_of_the_team_is_seen_by_all_and_changed_by_those_who_may_change_jobs() -> None:
    locked = Api([KEY], pages=True)
    ann = await signed_in(locked, await a_key(locked, "ann", "editor"))
    bob = await signed_in(locked, await a_key(locked, "bob", "viewer"))
    await ann.open("/runs?state=failed")
    assert "For everyone who signs in" in ann.text
    assert (await ann.post("/views", name="Night", to="/runs?state=failed", shared="1")).status == 303
    await bob.open("/runs?state=failed")
    assert ">Night</a>" in bob.page
    assert "Forget the view" not in bob.text
    await bob.open("/runs?job=x")
    assert "For everyone" not in bob.text
    assert (await bob.post("/views", name="Mine", to="/runs?job=x", shared="1")).status == 403
    assert (await bob.post("/views/remove", name="Night", shared="1")).status == 403
    await ann.open("/runs?state=failed")
    assert "Forget the view Night" in ann.text
    assert (await ann.post("/views/remove", name="Night", shared="1")).status == 303
    await bob.open("/runs")
    assert "Night" not in bob.text
