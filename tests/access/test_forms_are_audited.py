"""Each form of the pages that changes something leaves one entry in the audit; one that is new has no case here, and is
seen."""

from __future__ import annotations

import msgspec
import pytest

from horarium.clock import DAY, to_datetime
from horarium.dashboard.fields import NEW
from horarium.dashboard.views.bulk_jobs import digest_of_reason
from horarium.ports import Store
from horarium.testing.values import NOW
from tests.access import test_everything_is_audited as everything
from tests.access.test_everything_is_audited import ADMIN, CHANNEL, KEY, RULE, Case, check, entries, the_run
from tests.api.conftest import Api, a_definition
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow

store, opened, plans_are_noted = everything.store, everything.opened, everything.plans_are_noted
READING_PAGES = {
    "POST /preview-job", "POST /sign-out", "POST /failures", "POST /acknowledge", "POST /acknowledge/undo",
    "POST /access/end", "POST /bulk-jobs/chosen", "POST /bulk-runs/chosen", "POST /approvals/{id}/missed",
    "POST /jobs/{name}/backfill", "POST /batches/{id}/close", "POST /batches/{id}/cancel", "POST /batches/{id}/retry",
    "POST /plans/{id}/discard", "POST /channels/{name}/send-by",
}  # fmt: skip
"""Or (failures, acknowledged causes, ended sessions, discarded plans, what was missed, backfills, batches, messages
sent by another channel) seen in `tests.dashboard`."""

FORM = {**NEW, "name": "b", "kind": "cron", "rule": "0 3 * * *", "target": "queue", "queue": "work"}
PLANNED = msgspec.json.encode(a_definition("planned", **RULE)).decode()
PAGES = [
    Case("POST /jobs/{name}/run", "job.trigger", "job/a"),
    Case("POST /approvals/{id}/approve", "approval.approve", "run/{run}", before=True),
    Case("POST /runs/{id}/cancel", "run.cancel", "run/{run}", before=True),
    Case("POST /jobs/{name}/run", "job.trigger", "job/a"),
    Case("POST /approvals/{id}/reject", "approval.reject", "run/{run}", before=True),
    Case("POST /new-job", "job.create", "job/b", form=FORM),
    Case("POST /jobs/{name}/edit", "job.update", "job/a", before=True, form={**FORM, "name": "a", "attempts": "7"}),
    Case("POST /forecast", "plan.create", "plan/{plan}", form={"at": f"{to_datetime(NOW + DAY):%Y-%m-%d}T03:00:00Z"}),
    Case("POST /plans", "plan.create", "plan/{plan}", form={"documents": PLANNED}),
    Case("POST /plans/{id}/approve", "plan.approve", "plan/{plan}"),
    Case("POST /plans/{id}/apply", "job.create", "job/planned"),
    Case("POST /jobs/{name}/pause", "job.pause", "job/a", before=True, form={"reason": "moving"}),
    Case("POST /jobs/{name}/resume", "job.resume", "job/a", before=True),
    Case("POST /jobs/{name}/skip", "job.skip", "job/a", before=True, form={"at": "2030-01-01T03:00:00Z"}),
    Case(
        "POST /jobs/{name}/move",
        "job.move",
        "job/a",
        before=True,
        form={"at": "2030-01-01T03:00:00Z", "to": "2030-01-01T04:00"},
    ),
    Case("POST /jobs/{name}/unskip", "job.unskip", "job/a", before=True, form={"at": "2030-01-01T03:00:00Z"}),
    Case("POST /jobs/{name}/revert", "job.revert", "job/a", before=True, form={"version": "1"}),
    Case("POST /jobs/{name}/run", "job.trigger", "job/a"),
    Case("POST /runs/{id}/cancel", "run.cancel", "run/{run}", before=True),
    Case("POST /runs/{id}/retry", "run.retry", "run/{run}"),
    Case("POST /bulk-runs", "run.cancel", "run/{run}", before=True, form={"action": "cancel"}),
    Case("POST /holds", "hold.create", "hold/{hold}", form={"scope": "all", "reason": "moving"}),
    Case("POST /holds/{id}/lift", "hold.lift", "hold/{hold}", before=True),
    Case("POST /jobs", "job.pause", "job/a", before=True, form={"action": "pause", "chosen": "a"}),
    Case(
        "POST /bulk-jobs/undo",
        "job.resume",
        "job/a",
        before=True,
        form={"from": "0", "to": "9" * 18, "why": digest_of_reason("by api-key")},
    ),
    Case("POST /views", "view.save", "view/mine", form={"name": "mine", "to": "/runs?job=a"}),
    Case("POST /views/remove", "view.remove", "view/mine", before=True, after=False, form={"name": "mine"}),
    Case("POST /channels", "channel.create", "channel/c", form={"name": "c", "type": "email", "to": "ops@example.org"}),
    Case("POST /channels/{name}/test", "channel.test", "channel/a"),
    Case("POST /queue", "queue.set", "queue/pull/q", before=True, form={"name": "q", "weights": "gold=3"}),
    Case("POST /rates", "rate.set", "rate/k", form={"key": "k", "limit": "5/1m"}),
    Case("POST /rates/reset", "rate.reset", "rate/k", before=True, after=False, form={"key": "k"}),
    Case("POST /feeds", "feed.create", "feed/f", form={"name": "f"}),
    Case("POST /feeds/revoke", "feed.revoke", "feed/f", after=False, form={"name": "f"}),
    Case("POST /access", "key.create", "key/k", form={"name": "k", "role": "viewer"}),
    Case("POST /access/revoke", "key.revoke", "key/k", after=False, form={"name": "k"}),
    Case("POST /channels/{name}/delete", "channel.delete", "channel/a", before=True, after=False),
    Case("POST /jobs/{name}/delete", "job.delete", "job/a", before=True, after=False, form={"confirm": "a"}),
    Case("POST /deleted-jobs/restore", "job.create", "job/a", form={"name": "a"}),
]


async def test_each_form_of_the_pages_leaves_one_entry(opened: Store) -> None:
    api, store = Api([KEY], store=opened, pages=True), opened
    for method, path, body in (
        ("POST", "/jobs", a_definition("a")),
        ("PATCH", "/jobs/a", {"priority": 2, "approval": {}}),
        ("PUT", "/channels/a", CHANNEL),
    ):
        assert (await api.send(method, path, body, headers=ADMIN)).status < 300
    visitor = Visitor(api)
    await visitor.open("/sign-in")
    await visitor.post("/sign-in", key=KEY)
    seen = {line.id for line in await entries(store)}
    for case in PAGES:
        api.clock.advance(1)
        run = await the_run(store, case)
        path = (
            case.what.partition(" ")[2]
            .replace("{name}", "a")
            .replace("{key}", "a")
            .replace("{id}", run)
            .replace("{queue}", "q")
        )
        await visitor.open("/jobs")
        reply = await visitor.post(path, **{name: text.replace("{run}", run) for name, text in case.form.items()})
        assert reply.status in (201, 303), (case.what, visitor.text)
        await check(store, seen, case, ("api-key", "key"), run)


def test_the_pages_have_no_other_forms() -> None:
    pages = [route.page for route in Api(pages=True).app.routes if route.page is not None]
    forms = {f"POST {page.path}" for page in pages if page.method == "POST" and not page.open}
    assert forms - READING_PAGES == {case.what for case in PAGES}
