"""The clock of a node that uses PostgreSQL: the server's, whatever the machine's own says."""

from __future__ import annotations

import pytest

from horarium.clock import HOUR, MINUTE, SECOND, Instant, SystemClock
from horarium.errors import StoreUnavailable
from horarium.stores.postgres import PostgresStore
from horarium.stores.server_clock import ServerClock
from horarium.testing.values import NOW


class Local:
    """A machine whose wall clock is wrong."""

    machine = "here"
    steady_offset = 0

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> Instant:
        return NOW + HOUR + round(self.elapsed * SECOND)

    def monotonic(self) -> float:
        return 77.0 + self.elapsed

    def steady(self) -> Instant:
        return self.now()


class Server:
    """Tells NOW plus what has elapsed; each answer takes the next of `trips` (seconds), all of it on the way back."""

    def __init__(self, local: Local, *trips: float) -> None:
        self.local, self.trips, self.step = local, list(trips), 0

    async def server_time(self) -> Instant:
        if not self.trips:
            raise StoreUnavailable("down")
        told = NOW + self.step + round(self.local.elapsed * SECOND)
        self.local.elapsed += self.trips.pop(0)
        return told


async def test_before_the_first_reading_the_local_clock_is_told() -> None:
    local = Local()
    assert ServerClock(Server(local), local).now() == NOW + HOUR


async def test_the_servers_time_is_told_within_half_a_round_trip() -> None:
    local = Local()
    clock = ServerClock(Server(local, 0.5, 0.5, 0.002, 0.5, 0.5), local)
    await clock.measure()
    assert clock.error_seconds == pytest.approx(0.001)
    assert abs(clock.now() - (NOW + round(local.elapsed * SECOND))) <= 1_001
    local.elapsed += 60
    assert abs(clock.now() - (NOW + round(local.elapsed * SECOND))) <= 1_001


async def test_a_slow_reading_does_not_replace_a_good_one() -> None:
    local = Local()
    server = Server(local, *[0.002] * 5, *[3.0] * 5)
    clock = ServerClock(server, local)
    await clock.measure()
    await clock.measure()
    assert clock.error_seconds == pytest.approx(0.001)


async def test_a_step_of_the_servers_clock_is_followed() -> None:
    local = Local()
    server = Server(local, *[0.002] * 5, *[0.1] * 5)
    clock = ServerClock(server, local)
    await clock.measure()
    server.step = -MINUTE
    await clock.measure()
    assert abs(clock.now() - (NOW - MINUTE + round(local.elapsed * SECOND))) <= 51_000


async def test_an_outage_keeps_what_is_known() -> None:
    local = Local()
    clock = ServerClock(Server(local, *[0.002] * 5), local)
    await clock.measure()
    before = clock.now()
    with pytest.raises(StoreUnavailable):
        await clock.measure()
    assert clock.now() == before


@pytest.mark.slow
async def test_a_real_server_is_measured(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    clock = ServerClock(store, SystemClock())
    await clock.start()
    await clock.stop()
    assert clock.error_seconds is not None
    error = (clock.error_seconds + 0.005) * SECOND
    before, told, after = SystemClock().now(), clock.now(), SystemClock().now()
    assert before - error <= told <= after + error
    await store.close()
