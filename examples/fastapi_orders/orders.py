"""Orders: FastAPI, SQLAlchemy and PostgreSQL, with Horarium in the same database.

    pip install horarium[postgres] fastapi uvicorn 'sqlalchemy[asyncio]'
    DATABASE_URL=postgresql://localhost/orders uvicorn orders:app

An order and the run that confirms it are written in one transaction. Each handler has a session of its own, and so have
the routes. The report of a day is made every night, and can be asked for.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from horarium import Discard, NotFound, Run, RunContext, Scheduler, StateConflict, cron
from horarium.contrib.starlette import lifespan, scheduler_of

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/orders")

engine = create_async_engine(URL.replace("postgresql://", "postgresql+asyncpg://"))
sessions = async_sessionmaker(engine, expire_on_commit=False)
scheduler = Scheduler(URL, program="orders")


# ---- the data


class Base(DeclarativeBase):
    """Of all tables."""


class Order(Base):
    """One order. `confirmed`: its customer was written to."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    day: Mapped[date]
    confirmed: Mapped[bool] = mapped_column(default=False)


@dataclass
class Report:
    """A day's orders."""

    day: date
    orders: int
    cents: int


# ---- the work

session_of_run: ContextVar[AsyncSession] = ContextVar("session_of_run")


@scheduler.around
async def with_session(run: RunContext) -> AsyncIterator[None]:
    """Each run has a session; it is committed if the handler returns."""
    async with sessions.begin() as session:
        session_of_run.set(session)
        yield


@scheduler.handler(retry={"attempts_max": 8, "backoff_seconds": 2}, timeouts={"execution_seconds": 30})
async def confirm(run: RunContext, order: int) -> str:
    """Write to the customer, once: a run that is performed again finds the order confirmed."""
    session = session_of_run.get()
    found = await session.get(Order, order, with_for_update=True)
    if found is None:
        raise Discard(f"there is no order {order}")
    if not found.confirmed:
        run.log("writing to %s", found.customer)
        found.confirmed = True
    return found.customer


@scheduler.handler(give_up_on=ValueError)
async def report(day: date) -> Report:
    """Count the orders of a day."""
    orders, cents = (
        await session_of_run.get().execute(
            select(func.count(), func.coalesce(func.sum(Order.cents), 0)).where(Order.day == day)
        )
    ).one()
    return Report(day, orders, int(cents))


@scheduler.job(cron("15 0 * * *", timezone="Europe/Berlin"), overlap="skip")
async def nightly(run: RunContext) -> None:
    """Have the report of yesterday made."""
    day = run.fire_at.date() - timedelta(days=1)
    await report.with_options(unique_key=f"report of {day}").enqueue(day=day)


# ---- the application


@asynccontextmanager
async def with_tables(app: FastAPI) -> AsyncIterator[None]:
    """The tables are there before the first request."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def new_session() -> AsyncIterator[AsyncSession]:
    """One transaction for each request."""
    async with sessions.begin() as session:
        yield session


app = FastAPI(lifespan=lifespan(scheduler, inner=with_tables))
Session = Annotated[AsyncSession, Depends(new_session, scope="function")]
Jobs = Annotated[Scheduler, Depends(scheduler_of)]


@app.post("/orders", status_code=201)
async def buy(customer: str, cents: int, day: date, session: Session) -> dict[str, int | str]:
    """Take an order. It exists if and only if its confirmation is enqueued."""
    if cents <= 0:
        raise HTTPException(422, "cents: must be more than 0")
    order = Order(customer=customer, cents=cents, day=day)
    session.add(order)
    await session.flush()
    run = await confirm.with_options(connection=session).enqueue(order=order.id)
    return {"order": order.id, "run": run.id}


@app.get("/orders/{order}")
async def show_order(order: int, session: Session) -> dict[str, str | int | bool]:
    """One order."""
    found = await session.get(Order, order)
    if found is None:
        raise HTTPException(404, f"there is no order {order}")
    return {"customer": found.customer, "cents": found.cents, "confirmed": found.confirmed}


@app.post("/reports/{day}", status_code=202)
async def ask_for_report(day: date) -> Run:
    """Have a day's report made now, before other work."""
    return await report.with_options(priority=10).enqueue(day=day)


@app.get("/reports/{run}")
async def show_report(run: str, jobs: Jobs) -> Report:
    """A report that was asked for; it is waited for a little."""
    try:
        await jobs.wait_for(run, timeout=10)
        return await jobs.result(run, as_=Report)
    except NotFound as error:
        raise HTTPException(404, error.message) from None
    except (StateConflict, TimeoutError) as error:
        raise HTTPException(409, str(error)) from None
