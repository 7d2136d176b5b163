"""Every error that Horarium raises, as one tree.

    HorariumError
    ├── CallerError (ValueError)   what was given is wrong; nothing was written
    │   ├── InvalidTrigger         a rule that can't be read, or that can never fire
    │   │   └── TooExpensive       a rule whose next fire time takes too long to find
    │   ├── InvalidJob             a job definition with a wrong field
    │   ├── InvalidRequest         a body, a parameter or a cursor that can't be used
    │   │   ├── WrongArguments     args with which a handler can't be called
    │   │   └── UnknownArgument    a keyword argument that is not known (also a TypeError, as Python's own)
    │   ├── InvalidSetting         a setting that is unknown or out of range
    │   ├── Forbidden              the caller may not do this
    │   └── NotFound               no job, run or handler of that name
    │       └── NoSuchFire         the job has no fire time at that instant
    ├── Conflict                   right in itself, but not in the present state
    │   ├── LeaseLost              the token is stale, or the run has ended
    │   ├── StateConflict          the run's state does not allow this
    │   │   ├── AlreadyBegun       the run of this fire time has begun, or has ended
    │   │   └── AlreadyDecided     a decision was made, or the time for it is over
    │   ├── AlreadyExists          the name is taken
    │   ├── CalendarInUse          jobs use this calendar
    │   ├── PlanStale              what the plan was made for has changed since
    │   └── OverBudget             the key has asked for as much as it may
    ├── Outage                     a dependency does not answer; try again later
    │   ├── StoreUnavailable       the store is down, locked, full or read-only
    │   │   └── StoreRefused       it refuses us, and will until someone changes it or our settings
    │   ├── BusUnavailable         the message bus is down
    │   └── IssuerUnavailable      the issuer of access tokens does not give its keys
    └── BrokenInvariant            a bug of ours: the step stops, the server goes on

A message names the given value, the expected one and the remedy. `code` is stable: clients may match on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


class HorariumError(Exception):
    """The root. `code` never changes once released; `field` names the offending input where there is one."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class CallerError(HorariumError, ValueError):
    """What the caller gave is wrong. Nothing was written."""

    code = "invalid"


class InvalidTrigger(CallerError):
    """A rule that can't be read, or that can never fire. `position`: where in the text."""

    code = "invalid_trigger"

    def __init__(self, message: str, *, field: str | None = None, position: int | None = None) -> None:
        super().__init__(message, field=field)
        self.position = position


class TooExpensive(InvalidTrigger):
    """A rule whose next fire time takes too many steps to find."""

    code = "too_expensive"


class InvalidJob(CallerError):
    """A job definition with a missing, unknown or wrong field."""

    code = "invalid_job"


class InvalidRequest(CallerError):
    """A body, a parameter or a cursor that can't be used."""

    code = "invalid_request"


class WrongArguments(InvalidRequest):
    """Args with which the handler can't be called: one is missing, of the wrong type, or unknown to it."""


class UnknownArgument(InvalidRequest, TypeError):
    """A keyword argument that is not known here. Also a TypeError, as Python's own."""


class InvalidSetting(CallerError):
    """A setting that is unknown, of the wrong type or out of range."""

    code = "invalid_setting"


class Forbidden(CallerError):
    """The caller is known, and may not do this. `missing_scopes`: what it lacks."""

    code = "forbidden"

    def __init__(self, message: str, missing_scopes: Iterable[str] = (), *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.missing_scopes = list(missing_scopes)


class NotFound(CallerError):
    """There is no job, run or handler of that name."""

    code = "not_found"


class NoSuchFire(NotFound):
    """The job has no fire time at that instant. `previous` and `next`: those around it."""

    code = "no_such_fire"

    def __init__(
        self,
        message: str,
        previous: datetime | None = None,
        next: datetime | None = None,
        *,
        field: str | None = None,
    ) -> None:
        super().__init__(message, field=field)
        self.previous, self.next = previous, next


class Conflict(HorariumError):
    """The request is well formed, but the present state does not allow it."""

    code = "conflict"


class LeaseLost(Conflict):
    """Another claim was made, or the run has ended otherwise: the report was not written."""

    code = "lease_lost"


class StateConflict(Conflict):
    """The run or job is in a state that does not allow this."""

    code = "state_conflict"


class AlreadyBegun(StateConflict):
    """The run of this fire time has begun, or has ended."""

    code = "already_begun"


class AlreadyDecided(StateConflict):
    """A decision about this run was made already, or the time for it is over."""

    code = "already_decided"


class AlreadyExists(Conflict):
    """The name is taken."""

    code = "already_exists"


class CalendarInUse(Conflict):
    """Jobs use this calendar. `jobs`: the names of some of them."""

    code = "calendar_in_use"

    def __init__(self, message: str, jobs: Iterable[str] = (), *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.jobs = list(jobs)


class PlanStale(Conflict):
    """What the plan was made for has changed since; nothing was written. `changed`: what, and how."""

    code = "plan_stale"

    def __init__(self, message: str, changed: Iterable[str] = (), *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.changed = list(changed)


class OverBudget(Conflict):
    """The key has asked for as much as it may; `retry_after_seconds`: until it may again."""

    code = "over_budget"

    def __init__(self, message: str, *, field: str | None = None, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message, field=field)
        self.retry_after_seconds = retry_after_seconds


class Outage(HorariumError):
    """Something that we depend on does not answer. Nothing is lost; it is tried again. `retry_after_seconds`: how long
    a server asked us to wait."""

    code = "outage"
    retry_after_seconds = 0.0


class StoreUnavailable(Outage):
    """The store is down, locked, full or read-only."""

    code = "store_unavailable"


class StoreRefused(StoreUnavailable):
    """The store refuses us (a wrong password, no such database, no such folder). A running node goes on trying, since
    an operator may mend it; a start does not wait for that."""


class BusUnavailable(Outage):
    """The message bus is down."""

    code = "bus_unavailable"


class IssuerUnavailable(Outage):
    """The issuer of access tokens does not answer, or not as it should, and no key of it is known yet."""

    code = "issuer_unavailable"


class BrokenInvariant(HorariumError, AssertionError):
    """A bug of ours. The step that met it stops; the server goes on."""

    code = "broken_invariant"
