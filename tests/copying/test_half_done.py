"""Work that was half done when its store was copied goes on in the copy: a batch, a join; and holds and limits hold."""

from __future__ import annotations

from typing import Any

from horarium.clock import HOUR, to_datetime
from horarium.model.holds import HoldScope
from horarium.operations.settling.turns import QueueSettings
from horarium.rules.rates import Override
from horarium.stores.memory import MemoryStore
from horarium.wire.holds import HoldDefinition
from tests.copying.test_copy import copied
from tests.services.test_batches import ON
from tests.services.test_batches import World as BatchWorld
from tests.services.test_joins import World as JoinWorld
from tests.services.test_joins import a_world


async def moved(world: Any) -> None:
    """The world goes on in a copy of its store."""
    target = MemoryStore()
    assert (await copied(world.store, target)).ok
    world.store = target
    world.operations = world.on(target)


async def test_a_batch_finishes_once_in_the_copy() -> None:
    world = BatchWorld()
    batch, _ = await world.operations.batches.create("import", ON, await world.rows(3))
    first, second, third = await world.claim()
    await world.end(first)
    await moved(world)  # one end is not counted yet
    for run in (second, third):
        await world.end(run, failed=run is third)
    await world.count()
    assert (await world.operations.batches.get(batch.id)).state == "finished"
    assert await world.follow_ups() == {"failed": 1, "finished": 1, "follow": 2}
    await world.operations.batches.retry(batch.id)
    (again,) = await world.claim()
    await world.end(again)
    await moved(world)
    await world.count()
    assert await world.follow_ups() == {"failed": 1, "completed": 1, "finished": 2, "follow": 4}


async def test_a_join_fires_once_in_the_copy() -> None:
    world = await a_world()
    await world.run("a")
    await moved(world)
    await world.run("b")
    await moved(world)  # this end was not read yet
    await world.join()
    assert await world.fired() == [0]
    await moved(world)
    await world.run("a")
    await world.run("b")
    await world.join()
    assert await world.fired() == [0], "the window has had its run"


async def test_a_hold_a_limit_and_the_weights_of_a_queue_hold_in_the_copy() -> None:
    world = JoinWorld()
    await world.extracts()
    held = HoldDefinition(scope=HoldScope(job="a"), reason="moving", until=to_datetime(world.clock.now() + HOUR))
    await world.operations.holds.add(held)
    await world.operations.rates.put("api", Override(max=3, per_seconds=60))
    await world.operations.queues.put("pull/extract", QueueSettings(fair_weights={"gold": 3}))
    await moved(world)
    await world.operations.jobs.trigger_job("a")
    waits = await world.operations.jobs.trigger_job("b")
    claimed = await world.operations.claiming.claim(["pull/extract"], 9, "w", world.clock.now(), world.clock.now())
    assert [run.id for run in claimed.runs] == [waits.id]
    ((key, bucket),) = (await world.operations.rates.page("", None, 9)).items
    assert (key, bucket.override) == ("api", Override(max=3, per_seconds=60))
    assert (await world.operations.queues.get("pull/extract")).fair_weights == {"gold": 3}
