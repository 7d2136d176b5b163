"""Channels: where news is sent, and what became of the last of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from horarium.access.roles import Scope
from horarium.api.reading import is_name
from horarium.dashboard.attention import channel_of
from horarium.dashboard.formats import fault_in
from horarium.dashboard.marks import mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import InvalidRequest
from horarium.model import Run
from horarium.model.channels import AnyChannel, AppriseChannel, EmailChannel
from horarium.model.targets import NOTIFY_QUEUE
from horarium.ports import PAGE_MAX, RunFilter
from horarium.rules.error_lines import error_line
from horarium.wire.channels import shown_channel
from horarium.wire.faults import Fault

TYPES = (("webhook", "Webhook, signed"), ("email", "Email"), ("apprise", "A service of the library apprise"))
NEW = {"was": "", "name": "", "type": "webhook", "to": "", "signing_secret": "", "group": "1", "quiet": "3600",
       "system": "1", "template": ""}  # fmt: skip


class Channels(Pages):
    """The page at `/channels`."""

    @Page("GET", "/channels", "channels", scope=Scope.ADMIN, place="channels", tells_all=True)
    async def show(self, visit: Visit) -> Answer:
        name = visit.text("edit")
        channel = await self._operations.channels.get(name) if is_name(name) else None
        return await self._page(visit, NEW if channel is None else _form_of(name, channel))

    async def _page(self, visit: Visit, form: dict[str, str], problem: Fault | None = None) -> Answer:
        page = await self._operations.channels.page(None, PAGE_MAX)
        lasts = await self._lasts()
        untold = await self._operations.channels.untold(0)
        kept = {name: sum(item.told.count for item in await self._operations.channels.kept(name)) for name in untold}
        rows = []
        for name, channel in page.items:
            shown = shown_channel(name, channel)
            last = lasts.get(name)
            rows.append(
                {
                    "name": name,
                    "type": shown["type"],
                    "where": shown.get("url") or ", ".join(shown.get("to") or ()),
                    "system": shown["system"],
                    "last": last,
                    "mark": None if last is None else mark_of(last, visit.now),
                }
            )
        well = [name for name, _ in page.items if name not in untold]
        values = {
            "rows": rows, "untold": untold, "kept": kept, "well": well, "error_line": error_line, "form": form,
            "types": TYPES, "problem": problem, "editing": form["was"],
        }  # fmt: skip
        return Shown("channels.html", values, 422 if problem else 200)

    @Page("POST", "/channels", "channel-put", scope=Scope.ADMIN, place="channels")
    async def put(self, visit: Visit) -> Answer:
        form = {name: visit.text(name).strip() for name in NEW}
        try:
            if not is_name(form["name"]):
                raise InvalidRequest("name: letters, digits and . _ : @ -", field="name")
            if form["was"] != form["name"] and await self._operations.channels.find(form["name"]) is not None:
                raise InvalidRequest(f"name: there is a channel {form['name']!r}; edit that one", field="name")
            _, new = await self._operations.channels.put(form["name"], _channel_of(form))
        except InvalidRequest as error:
            return await self._page(visit, form, fault_in(error, form, {"url": "to"}))
        done = "is made: send a test" if new else "was changed"
        return Went("/channels", f"{form['name']} {done}.")

    @Page("POST", "/channels/{name}/delete", "channel-delete", scope=Scope.ADMIN)
    async def delete(self, visit: Visit) -> Answer:
        await self._operations.channels.delete(visit.path_name)
        return Went("/channels", f"{visit.path_name} is deleted; jobs that name it tell it nothing.")

    async def _lasts(self) -> dict[str, Run]:
        """The newest notification of each channel, of the last ones of all."""
        page = await self._operations.store.list_runs(RunFilter(queue=NOTIFY_QUEUE), None, PAGE_MAX)
        found: dict[str, Run] = {}
        for run in page.items:
            found.setdefault(channel_of(run), run)
        return found

    @Page("POST", "/channels/{name}/test", "channel-test", scope=Scope.ADMIN, place="channels")
    async def test(self, visit: Visit) -> Answer:
        run = await self._operations.channels.test(visit.path_name)
        return Went(f"/runs/{run.id}", f"A test goes out on {visit.path_name}; this run says what became of it.")

    @Page("POST", "/channels/{name}/send-by", "channel-send-by", scope=Scope.ADMIN, place="channels")
    async def send_by(self, visit: Visit) -> Answer:
        run = await self._operations.channels.send_by(visit.path_name, by := visit.text("by"))
        return Went(f"/runs/{run.id}", f"Sent by {by} instead: this run says what became of it.")


def _form_of(name: str, channel: AnyChannel) -> dict[str, str]:
    """A stored channel in the form's fields, its secrets masked."""
    shown = shown_channel(name, channel)
    url, secret = shown.get("url"), shown.get("signing_secret")
    return {
        "was": name,
        "name": name,
        "type": shown["type"],
        "to": ", ".join(shown.get("to") or ()) if url is None else _written(url),
        "signing_secret": "" if secret is None else _written(secret),
        "group": f"{channel.group_seconds:.15g}",
        "quiet": f"{channel.quiet_seconds:.15g}",
        "system": "1" if channel.system else "",
        "template": _template_text(channel),
    }


def _template_text(channel: AnyChannel) -> str:
    if channel.template is None or isinstance(channel, EmailChannel | AppriseChannel):
        return channel.template or ""
    return json.dumps(channel.template, ensure_ascii=False)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read(text: str) -> Any:
    """Text, or a secret by reference: `{"secret": "env:NAME"}`."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _channel_of(form: dict[str, str]) -> AnyChannel:
    """Raises InvalidRequest."""
    made: dict[str, Any] = {"type": form["type"], "system": bool(form["system"])}
    for name, field in (("group_seconds", "group"), ("quiet_seconds", "quiet")):
        try:
            made[name] = float(form[field] or 0)
        except ValueError:
            raise InvalidRequest(f"{field}: {form[field][:50]!r} is no number of seconds", field=field) from None
    if form["type"] == "email":
        made["to"] = form["to"].replace(",", " ").split()
    else:
        made["url"] = _read(form["to"])
    if form["type"] == "webhook" and form["signing_secret"]:
        made["signing_secret"] = _read(form["signing_secret"])
    if form["template"]:
        made["template"] = _template_of(form)
    try:
        channel: AnyChannel = msgspec.convert(made, AnyChannel)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"channel: {error}", field="to") from None
    return channel


def _template_of(form: dict[str, str]) -> Any:
    if form["type"] != "webhook":
        return form["template"]
    try:
        return json.loads(form["template"])
    except ValueError as error:
        raise InvalidRequest(f"template: the body of a webhook is JSON: {error}", field="template") from None
