"""What a server keeps in memory for the next time: each of these is filled, and what it takes is compared with what
docs/operating.md says of it (a part of the larger ones: a test has no time to fill them). A bound that is only reached
after days looks like a leak until then."""

from __future__ import annotations

import gc
import re
import tracemalloc
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horarium import clock
from horarium.access import keys, remembered, sessions, tokens
from horarium.access.roles import Role, principal
from horarium.api import refused, sign_ins
from horarium.clock import SECOND, SystemClock
from horarium.dashboard.foresight import COUNTS_MAX, Foresight, Kept
from horarium.delivery import addresses, message, signing
from horarium.model import State
from horarium.model.records import Record
from horarium.operations.looking.forecasting import Forecast
from horarium.operations.runs import logs
from horarium.rules.compiled import BYTES_MAX, CompiledTriggers
from horarium.rules.forecasting import Bucket
from horarium.services.metrics.ends import End
from horarium.services.metrics.job_meters import JOBS_MAX_DEFAULT, JobMeters
from horarium.stores import encoding, lately
from horarium.stores.memory import MemoryStore
from horarium.stores.sqlite import session
from horarium.testing.values import NOW, a_job
from horarium.triggers import calendar, cron_fields
from horarium.triggers.cron_trigger import COMPILED_KEPT, _compile
from horarium.triggers.zones import get_zone, zone_names
from horarium.wire import views

Keep = Callable[[int], object]
"""Keeps what belongs to this number."""

ROOT = Path(__file__).parents[2]
SERVER_MB_MAX = 72
"""What all of these take together, where each is full: about as much as a server takes without them."""
PART = 16
"""Of the larger ones this part is filled."""
SESSIONS = 3
"""Connections of a process to a SQLite file, each with its own memory of names."""


def uuid_of(number: int) -> str:
    return f"01930000-0000-7000-8000-{number:012}"


def forecasts() -> tuple[Any, Keep]:
    async def never(asked: object) -> list[Forecast]:
        raise AssertionError(asked)

    kept = Foresight(never, SystemClock())

    def keep(number: int) -> None:
        names = [f"job-{number}-{each}" for each in range(100)]
        bucket = Bucket(number, dict.fromkeys(names, number), dict.fromkeys(names, number + 0.5))
        kept.keep(((number, number, 60, "job"), True, ""), Kept(Forecast([bucket], [], [], []), 1.0, 2.0))

    return kept, keep


def triggers() -> tuple[Any, Keep]:
    kept = CompiledTriggers(BYTES_MAX // PART)

    def keep(number: int, kept: CompiledTriggers = kept) -> None:
        spec = {"type": "cron", "expression": f"{number % 60} 4 * * *", "timezone": "Europe/Berlin"}
        kept.get(spec, NOW + number, f"job-{number}")

    for number in range(60):  # the expressions are kept elsewhere
        keep(number, CompiledTriggers())

    return kept, keep


def names() -> tuple[Any, Keep]:
    kept: list[lately.Lately[Any, Any]] = [lately.Lately(lately.NAMES_MAX // PART) for _ in range(4)]

    def keep(number: int) -> None:
        for way in kept[::2]:
            way.recall("")
            way.learn({f"name-{number}": number})
        for way in kept[1::2]:
            way.recall(-1)
            way.learn({number: f"name-{number}"})

    return kept, keep


def owners() -> tuple[Any, Keep]:
    kept: lately.Lately[int, tuple[str, str]] = lately.Lately(lately.OWNERS_MAX // PART)

    def keep(number: int) -> None:
        kept.recall(-1)
        kept.learn({number: (uuid_of(number), f"name-of-job-{number}")})

    return kept, keep


def jobs() -> tuple[Any, Keep]:
    kept: lately.Lately[str, Any] = lately.Lately(lately.JOBS_BYTES_MAX // PART)
    decode = msgspec.json.Decoder(type(a_job())).decode

    def keep(number: int) -> None:
        text = msgspec.json.encode(a_job(f"job-{number}"))
        job = decode(text)
        kept.recall("")
        kept.learn({uuid_of(number): job}, lately.weight_of_jobs(1, len(text)))

    return kept, keep


def shown() -> tuple[Any, Keep]:
    def keep(number: int) -> None:
        views.job_text(a_job(f"job-{number}", id=uuid_of(number)))

    for number in range(1_000):  # what others keep of these, such as their triggers, stands in rows of its own
        keep(number)
    views._shown.clear()
    views._shown_bytes = 0
    return None, keep


def meters() -> tuple[Any, Keep]:
    kept = JobMeters()

    def keep(number: int) -> None:
        kept.ended([(End(f"job-{number}", State.COMPLETED, None, NOW + SECOND, NOW, 1), 1)])
        for meter in kept._meters.values() if number == JOBS_MAX_DEFAULT // PART - 1 else ():
            meter.texts()

    return kept, keep


def asked_keys() -> tuple[Any, Keep]:
    kept = keys.Keys(MemoryStore(), SystemClock())

    def keep(number: int) -> None:
        key = keys.Key(name=f"key-{number}", digest=keys.digest_of(str(number)), roles=(Role.VIEWER,), created_at=NOW)
        record = Record(name=f"key/{number}", body=msgspec.json.encode(key), version=1)
        kept._remembered.keep(key.digest, keys._known(record), 0.0)

    return kept, keep


def asked_sessions() -> tuple[Any, Keep]:
    kept = sessions.Sessions(MemoryStore(), SystemClock(), lambda size: b"1" * size)

    def keep(number: int) -> None:
        digest = keys.digest_of(str(number))
        bearer = principal(f"person-{number}", f"Person {number}", "oidc", [Role.OPERATOR])
        found = sessions.SignInSession(
            digest=digest, id=digest[:16], credential="person", key="k" * 64, created_at=NOW, ends_at=NOW, person=bearer
        )
        kept._remembered.keep(digest, found, 0.0)

    return kept, keep


def judged_tokens() -> tuple[Any, Keep]:
    kept: OrderedDict[bytes, Any] = OrderedDict()

    def keep(number: int) -> None:
        bearer = principal(f"person-{number}", f"Person {number}", "oidc", [Role.OPERATOR])
        kept[f"{number:032}".encode()] = float(number), NOW + number, 1, bearer
        if len(kept) > tokens.REMEMBERED_MAX:
            kept.popitem(last=False)

    return kept, keep


def addresses_that_sign_in() -> tuple[Any, Keep]:
    kept = sign_ins.SignIns(SystemClock())

    def keep(number: int) -> None:
        address = str(ip_address(0x08000000 + number))
        kept._debtor(address)
        if number % (sign_ins.ADDRESSES_MAX // sign_ins.KNOWN_MAX) == 0:
            kept.succeeded(address, f"{number:032}".encode())

    return kept, keep


def refusals() -> tuple[Any, Keep]:
    kept = refused.RefusalLog(MemoryStore(), SystemClock())
    return kept, lambda number: kept._note(f"caller/{number}", f"job.update job/{number:0100}", 0.0)


def books() -> tuple[Any, Keep]:
    kept = logs.Books()
    return kept, lambda number: kept.remember(uuid_of(number), Record(name=f"log/{number}", body=bytes(16_000)))


def of_a_function(function: Any, given: Callable[[int], Any]) -> Callable[[], tuple[Any, Keep]]:
    def fill() -> tuple[Any, Keep]:
        function.cache_clear()
        return function, lambda number: function(*_several(given(number)))

    return fill


def _several(given: Any) -> tuple[Any, ...]:
    return given if type(given) is tuple else (given,)


def an_url(number: int) -> str:
    return f"https://host-{number}.test/path/{number}"


def an_address(number: int) -> Any:
    return ip_address(0x08080000 + number)


def a_signing_secret(number: int) -> str:
    return signing.PREFIX + b64encode(f"{number:032}".encode()).decode()


def an_expression(number: int) -> tuple[str, str, str]:
    return f"{number % 60} {number // 60 % 24} L,{number // 1440 % 28 + 1} * 1-5", "", "any"


def a_field(number: int) -> tuple[int, str, int, str]:
    return 1, f"{number % 60},{number // 60 % 60}", 0, ""


def times(number: int) -> Any:
    return calendar.Times(1 << number % 60, (1 << 60) - 1, 1 << number // 60 % 24)


def zones() -> tuple[Any, Keep]:
    names = [name for name in zone_names() if "/" in name and not name.startswith("Etc/")]
    return None, lambda number: get_zone(names[number % len(names)]).segment_at(1_800_000_000)


def read_jobs() -> tuple[Any, Keep]:
    kept: dict[str, Any] = {}
    decode = msgspec.json.Decoder(list[type(a_job())]).decode  # type: ignore[misc]

    def keep(number: int) -> None:
        text = msgspec.json.encode([a_job(f"job-{number}", title="t" * 1_500)]).decode()
        kept[text] = decode(text)

    return kept, keep


# What it is, as the table in docs/operating.md has it: how it is filled, with how many, and how many times as much a
# process may have.
KEPT: dict[str, tuple[Callable[[], tuple[Any, Keep]], int, int]] = {
    "triggers that were read": (triggers, 9_000 // PART, PART),
    "definitions of jobs at work": (jobs, 18_000 // PART, PART),
    "ids and names of jobs": (owners, 3 * (lately.OWNERS_MAX // PART), SESSIONS * PART),
    "names of queues and workers": (names, 3 * (lately.NAMES_MAX // PART), SESSIONS * PART),
    "jobs that were read by name": (read_jobs, session.TEXTS_KEPT, SESSIONS),
    "jobs as they were shown": (shown, 1_000, 1),
    "metrics of jobs": (meters, JOBS_MAX_DEFAULT // PART, PART),
    "API keys": (asked_keys, remembered.REMEMBERED_MAX // PART, PART),
    "sessions of the dashboard": (asked_sessions, remembered.REMEMBERED_MAX // PART, PART),
    "tokens of an issuer": (judged_tokens, tokens.REMEMBERED_MAX // PART, PART),
    "addresses that sign in": (addresses_that_sign_in, sign_ins.ADDRESSES_MAX // PART, PART),
    "requests that were refused": (refusals, refused.REMEMBERED_MAX, 1),
    "books of logs": (books, 1_000, 1),
    "endpoints": (of_a_function(addresses._read_lately, an_url), addresses.KEPT // PART, PART),
    "paths": (of_a_function(message._quoted, lambda number: f"/a/path/{number}"), 2_048 // PART, PART),
    "addresses that were judged": (of_a_function(addresses.reach, an_address), 1_024 // PART, PART),
    "signing secrets": (of_a_function(signing._keyed, a_signing_secret), 256, 1),
    "forecasts of pages": (forecasts, COUNTS_MAX // 201 // PART, PART),
    "instants": (of_a_function(clock.to_datetime, lambda number: NOW + number * 1_000_003), 1_024, 1),
    "texts of seconds": (of_a_function(clock._second_text, lambda number: NOW // SECOND + number), 512, 1),
    "cron expressions": (of_a_function(_compile, an_expression), COMPILED_KEPT // PART, PART),
    "fields of cron expressions": (of_a_function(cron_fields._read, a_field), cron_fields.FIELDS_KEPT // PART, PART),
    "days of combined crons": (of_a_function(calendar._bits_of, times), calendar._KEPT_DAYS, 2),
    "time zones": (zones, 400 // PART, PART),
    "policies of runs": (of_a_function(encoding._kept_details, lambda number: b'{"fires":%d}' % number), 256, 1),
}


def budgets() -> dict[str, float]:
    """What docs/operating.md says: MB, where it is full."""
    text = (ROOT / "docs/operating.md").read_text()
    text = text.partition("## What a server keeps in memory")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return {row[0]: float(row[-1].split()[0]) for row in rows}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_takes_what_is_said(name: str) -> None:
    fill, count, times = KEPT[name]
    _, spare = fill()
    for number in range(10**5, 10**5 + count):  # what else they fill is full before, in any order of these tests
        spare(number)
    kept, keep = fill()
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        keep(number)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] * times / 1e6
    tracemalloc.stop()
    del kept
    assert used <= budgets()[name] <= 2 * used + 0.3, f"{name}: {used:.2f} MB"


def test_the_table_names_them_all_and_together_they_are_bounded() -> None:
    said = budgets()
    assert list(said) == list(KEPT)
    assert sum(said.values()) <= SERVER_MB_MAX


def test_nothing_else_is_kept_by_key() -> None:
    """Whatever is bounded by a number is in the table, or so small that it need not be."""
    folder = ROOT / "src/horarium"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"\b(lru_cache|OrderedDict|Lately)[\[(]", path.read_text())
    }
    assert found == {*IN_THE_TABLE, *SMALL}


IN_THE_TABLE = {
    "access/remembered.py", "access/tokens.py", "api/refused.py", "clock.py",
    "dashboard/foresight.py", "delivery/addresses.py",
    "delivery/message.py", "delivery/signing.py", "operations/runs/logs.py", "rules/compiled.py", "stores/encoding.py",
    "stores/lately.py", "stores/postgres/session.py", "stores/sqlite/session.py", "triggers/calendar.py",
    "triggers/cron_trigger.py", "triggers/cron_fields.py", "triggers/zones.py",
}  # fmt: skip
SMALL = {
    "buses/amqp_publisher.py": "1,024 frames of 100 bytes",
    "buses/nats.py": "1,024 subjects",
    "buses/nats_publisher.py": "256 lines",
    "dashboard/formats.py": "64 zones, that are kept anyway",
    "delivery/bus.py": "128 texts",
    "operations/jobs/triggering.py": "1,000 instants: 0.3 MB",
    "rules/holds.py": "256 URLs: 0.5 MB",
    "services/leases/attempt.py": "1,000 numbers",
    "services/polling/claims.py": "lines that wait at present",
    "triggers/phrase_words.py": "one table",
    "triggers/registry.py": "64 types",
}
