"""Keys and certificates that end soon are told before it happens: once a day in the log, once to each channel."""

from __future__ import annotations

import logging
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from horarium.access.keys import Key, Keys
from horarium.access.roles import Role
from horarium.clock import DAY, HOUR, SECOND, to_text
from horarium.errors import Outage
from horarium.model.channels import WebhookChannel
from horarium.ports import RunFilter
from horarium.services.alerts.endings import LOOK_EVERY, Endings, certificate_ends_at
from horarium.testing import Fault, FaultyStore
from tests.servers.certificate import make_certificate
from tests.services.conftest import START, Setting


def endings(setting: Setting, certificate: str | None = None) -> Endings:
    return Endings(setting.operations.context, setting.operations.channels, certificate)


async def told(setting: Setting) -> list[str]:
    runs = (await setting.store.list_runs(RunFilter(queue="notify"), None, 100)).items
    return [msgspec.json.decode(run.payload or b"")["event"]["message"] for run in reversed(runs)]


async def add_key(setting: Setting, name: str, lasts: int | None) -> None:
    ends_at = None if lasts is None else setting.now + lasts
    key = Key(name=name, digest=name, roles=(Role.VIEWER,), created_at=setting.now, expires_at=ends_at)
    await Keys(setting.store, setting.clock).add(key)


async def test_a_key_that_ends_is_told_two_weeks_before_or_in_its_last_quarter(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/"))
    await setting.operations.channels.put("quiet", WebhookChannel(url="https://example.org/", system=False))
    for name, lasts in (("year", 365 * DAY), ("month", 28 * DAY), ("day", DAY), ("for-good", None)):
        await add_key(setting, name, lasts)
    several = [endings(setting) for _ in range(2)]
    ends = {name: to_text(START + lasts) for name, lasts in (("day", DAY), ("month", 28 * DAY), ("year", 365 * DAY))}
    expected: list[str] = []
    with caplog.at_level(logging.WARNING, "horarium"):
        for passed, key in ((0, None), (18 * HOUR + SECOND, "day"), (22 * DAY, "month"), (352 * DAY, "year")):
            setting.clock.advance((START + passed - setting.now) / SECOND)
            for _ in range(3):
                for each in several:
                    assert await each.step(setting.now) == setting.now + LOOK_EVERY
                setting.clock.advance(3_601)
            expected += [] if key is None else [f"the key {key} ends at {ends[key]}"]
            assert await told(setting) == expected
    assert caplog.messages == [text for text in expected for _ in several], "once by each node, within a day"


async def test_a_store_that_is_away_repeats_no_line_of_the_log(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/"))
    for name in ("a", "b"):
        await add_key(setting, name, DAY)
    setting.clock.advance(18 * 3_600 + 1)
    faults = iter((None, Fault.BEFORE, Fault.BEFORE))
    setting.store = FaultyStore(setting.store, lambda call: next(faults, None) if call == "add_runs" else None)
    service = endings(setting)
    with caplog.at_level(logging.WARNING, "horarium"):
        for _ in range(2):
            with pytest.raises(Outage):
                await service.step(setting.now)
        await service.step(setting.now)
    assert [text[:9] for text in caplog.messages] == ["the key a", "the key b"]
    assert [text[:9] for text in await told(setting)] == ["the key a", "the key b"]


@pytest.mark.slow
async def test_the_certificate_of_the_server_is_told_until_it_is_another(setting: Setting, tmp_path: Path) -> None:
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/"))
    file, _ = make_certificate(tmp_path, days=40)
    until = ends_at(file)
    assert certificate_ends_at(str(file)) == until
    service = endings(setting, str(file))
    setting.clock.advance((until - 15 * DAY - setting.now) / SECOND)
    await service.step(setting.now)
    assert await told(setting) == []
    setting.clock.advance(2 * 86_400)
    await service.step(setting.now)
    assert await told(setting) == [f"the certificate cert.pem ends at {to_text(until)}"]
    make_certificate(tmp_path, days=365 * 30)
    assert certificate_ends_at(str(file)) == ends_at(file), "from 2050 on the time is written in another way"
    setting.clock.advance(2 * 86_400)
    await service.step(setting.now)
    assert len(await told(setting)) == 1


def ends_at(file: Path) -> int:
    """As openssl reads it: `notAfter=Jan 25 12:00:00 2026 GMT`."""
    asked = ["openssl", "x509", "-enddate", "-noout", "-in", str(file)]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]
    return ssl.cert_time_to_seconds(said) * SECOND


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----", "\x00"])
def test_a_file_that_holds_no_certificate_ends_never(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    assert certificate_ends_at(str(file)) is None
    file.write_text(text)
    assert certificate_ends_at(str(file)) is None
