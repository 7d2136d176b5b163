"""The paths of rrule-scheduler's door, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any

from horarium.doors.rrule_scheduler import SCHEDULES

_TEXT = {"type": "string"}
_SCHEDULE = {
    "type": "object",
    "required": ["name", "rrule", "callback_url"],
    "properties": {
        "name": _TEXT,
        "rrule": _TEXT,
        "callback_url": {"type": "string", "format": "uri"},
        "method": _TEXT,
        "headers": {"type": "object", "additionalProperties": _TEXT},
        "body": _TEXT,
    },
}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {}}}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{24}$"}}
_PAGES = [
    {"name": name, "in": "query", "required": False, "schema": {"type": "integer", "minimum": 1}}
    for name in ("limit", "page")
]


def _answers(meanings: dict[str, str]) -> dict[str, Any]:
    return {
        status: {
            "description": meaning,
            "content": {"application/json": {"schema": _ERROR if status >= "400" else {"type": "object"}}},
        }
        for status, meaning in meanings.items()
    }


def _operation(id: str, summary: str, answers: dict[str, str], **more: Any) -> dict[str, Any]:
    refusals = {"401": "No key, or a wrong one.", "403": "The key does not allow this."}
    said = {"operationId": id, "summary": summary, "tags": ["rrule-scheduler"]}
    return {**said, "responses": _answers({**answers, **refusals}), **more}


_BODY = {"required": True, "content": {"application/json": {"schema": _SCHEDULE}}}
_PATCH = {"required": True, "content": {"application/json": {"schema": {**_SCHEDULE, "required": []}}}}
_UNKNOWN = {"400": "Not an id.", "404": "There is no such schedule."}
_WRONG = {"400": "The body can't be read.", "422": "A field is missing or wrong."}

PATHS: dict[str, Any] = {
    SCHEDULES: {
        "post": _operation("createSchedule", "Create a schedule.", {"201": "Its id.", **_WRONG}, requestBody=_BODY)
    },
    f"{SCHEDULES}/{{id}}": {
        "parameters": [_ID],
        "get": _operation("getSchedule", "One schedule.", {"200": "The schedule.", **_UNKNOWN}),
        "put": _operation(
            "updateSchedule", "Change the fields that are sent.", {"200": "Done.", **_UNKNOWN, **_WRONG},
            requestBody=_PATCH,
        ),
        "delete": _operation("deleteSchedule", "Delete a schedule.", {"200": "Done.", **_UNKNOWN}),
    },
    **{
        f"{SCHEDULES}/{{id}}/events/{which}": {
            "parameters": [_ID, *_PAGES],
            "get": _operation(f"{which}Events", f"Its {which} events.", {"200": "A page of events.", **_UNKNOWN}),
        }
        for which in ("pending", "history")
    },
}  # fmt: skip
