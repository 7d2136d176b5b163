"""Orders: FastAPI, SQLAlchemy and PostgreSQL, with Horarium in the same database.

    pip install horarium[postgres] fastapi uvicorn 'sqlalchemy[asyncio]'
    DATABASE_URL=postgresql://localhost/orders uvicorn orders:app

An order and the run that confirms it are written in one transaction. Each handler has a session of its own, and so have
the routes. The report of a day is made every night, and can be asked for. Invoices are computed in a process of their
own; a letter to all customers is a batch, at the pace of the mail server; the search follows once edits are over.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from horarium import Defer, Discard, NotFound, Run, RunContext, Scheduler, StateConflict, cron
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
    note: Mapped[str] = mapped_column(default="")
    confirmed: Mapped[bool] = mapped_column(default=False)


@dataclass
class Report:
    """A day's orders."""

    day: date
    orders: int
    cents: int


# ---- the work

index: dict[int, str] = {}
"""What the search finds. It lives in each process, as an example."""
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


def is_worth_it(run: RunContext, error: BaseException) -> bool | float | None:
    """A mail server that is busy is asked again after 20 s; else as `retry` says."""
    return 20.0 if "busy" in str(error) else None


@scheduler.handler(
    queue="mail", rate="mail=600/1m", fair="{args.customer}", unique={"key": "{args.letter} to {args.customer}"},
    concurrency={"key": "mail server", "max": 5}, retry_if=is_worth_it, labels={"kind": "letter"},
)  # fmt: skip
async def write(run: RunContext, letter: str, customer: str) -> str:
    """Write a letter to a customer, no matter how often it is asked for; not on a Sunday."""
    if run.due_at.weekday() == 6 and "urgent" not in letter:
        raise Defer(run.due_at + timedelta(days=1))
    await run.progress({"writing to": customer})
    return customer


@scheduler.handler(retry_for=OSError)
async def written(run: RunContext, batch: str, total: int, completed: int, **others: Any) -> dict[str, int]:
    """All letters are written, or have failed."""
    run.log("batch %s: %d of %d", batch, completed, total)
    return {"letters": total, "written": completed}


@scheduler.handler(pool="process", timeouts={"execution_seconds": 20}, retention={"finished_seconds": 3600})
def invoice(order: int, customer: str, cents: int) -> dict[str, Any]:
    """Compute an invoice: in a process of its own, so that it keeps nobody from being answered."""
    text = f"Invoice {order}\n{customer}\n{cents / 100:.2f} EUR\n"
    return {"order": order, "checksum": zlib.crc32(text.encode() * 100_000)}


@scheduler.handler()
async def search(run: RunContext, order: int, note: str) -> None:
    """Let an order be found by its note."""
    index[order] = note


@scheduler.handler(give_up_on=ValueError)
async def report(day: date) -> Report:
    """Count the orders of a day."""
    orders, cents = (
        await session_of_run.get().execute(
            select(func.count(), func.coalesce(func.sum(Order.cents), 0)).where(Order.day == day)
        )
    ).one()
    return Report(day, orders, int(cents))


@scheduler.on_startup
async def remember() -> None:
    """The tables are there before the first run and the first request, and the index is as it was."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions() as session:
        index.update({order.id: order.note for order in await session.scalars(select(Order).where(Order.note != ""))})


@scheduler.on_shutdown
async def forget() -> None:
    """Once the last run has ended."""
    index.clear()


@scheduler.job(cron("15 0 * * *", timezone="Europe/Berlin"), overlap="skip")
async def nightly(run: RunContext) -> None:
    """Have the report of yesterday made."""
    day = run.fire_at.date() - timedelta(days=1)
    await report.with_options(unique_key=f"report of {day}").enqueue(day=day)


# ---- the application


@asynccontextmanager
async def with_engine(app: FastAPI) -> AsyncIterator[None]:
    """Its connections are closed after the last request."""
    yield
    await engine.dispose()


async def new_session() -> AsyncIterator[AsyncSession]:
    """One transaction for each request."""
    async with sessions.begin() as session:
        yield session


app = FastAPI(lifespan=lifespan(scheduler, inner=with_engine))
Session = Annotated[AsyncSession, Depends(new_session, scope="function")]
Jobs = Annotated[Scheduler, Depends(scheduler_of)]


@app.exception_handler(NotFound)
@app.exception_handler(StateConflict)
@app.exception_handler(TimeoutError)
async def refuse(request: Request, error: Exception) -> JSONResponse:
    """What is not there, has failed, or takes too long."""
    return JSONResponse({"detail": str(error)}, 404 if isinstance(error, NotFound) else 409)


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


@app.put("/orders/{order}/note", status_code=202)
async def note(order: int, text: str, session: Session) -> Run:
    """Edit an order's note. It is found by the last of many edits, once they are over."""
    found = await session.get(Order, order)
    if found is None:
        raise HTTPException(404, f"there is no order {order}")
    found.note = text
    edits = {"key": f"note of {order}", "seconds": 0.2, "max_seconds": 10}
    return await search.with_options(debounce=edits).enqueue(order=order, note=text)


@app.get("/search")
async def find(text: str) -> list[int]:
    """The orders whose note has this text."""
    return [order for order, note in index.items() if text in note]


@app.post("/letters", status_code=202)
async def send_letters(letter: str, session: Session, jobs: Jobs) -> dict[str, str]:
    """Write to each customer once, and count the letters at the end."""
    customers = await session.scalars(select(Order.customer).distinct())
    async with jobs.batch(letter, on_finished=written) as batch:
        for customer in customers:
            await batch.enqueue(write, {"letter": letter, "customer": customer})
    return {"batch": batch.id}


@app.get("/letters/{batch}")
async def show_letters(batch: str, jobs: Jobs) -> dict[str, Any]:
    """How far it is, once it is over or after a little."""
    return (await jobs.wait_for_batch(batch, timeout=10)).to_dict()


@app.get("/invoices/{order}")
async def show_invoice(order: int, session: Session, jobs: Jobs) -> Any:
    """An invoice, computed now."""
    found = await session.get(Order, order)
    if found is None:
        raise HTTPException(404, f"there is no order {order}")
    run = await invoice.enqueue(order=order, customer=found.customer, cents=found.cents)
    return await jobs.result(await jobs.wait_for(run, timeout=20))


@app.post("/reports/{day}", status_code=202)
async def ask_for_report(day: date) -> Run:
    """Have a day's report made now, before other work."""
    return await report.with_options(priority=10).enqueue(day=day)


@app.get("/reports/{run}")
async def show_report(run: str, jobs: Jobs) -> Report:
    """A report that was asked for; it is waited for a little."""
    await jobs.wait_for(run, timeout=10)
    return await jobs.result(run, as_=Report)
