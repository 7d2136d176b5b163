"""The policies of a job, as values: catch-up, overlap, retry, timeouts, concurrency, retention.

Nothing here acts. `planning.py` reads catch-up, overlap and concurrency; `settling.py` reads retry, timeouts and
retention; no store and no adapter reads any of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

ATTEMPTS_MAX = 100
RETRY_AGE_SECONDS_MAX = 7 * 24 * 3600
SECONDS_MAX = 10 * 366 * 24 * 3600
CONCURRENCY_MAX = 100_000
KEY_LENGTH_MAX = 200
RATES_MAX = 4
"""Rate limits that one run may be under."""
RATE_MAX = 1_000_000
LEASE_SECONDS_DEFAULT = 30
CANCEL_GRACE_SECONDS = 30
SILENCES_MAX = 50
"""As many as a run's history is sure to hold."""
BUFFER_MAX_MAX = 1_000
"""The largest `buffer_max`."""
RETENTION_SECONDS_DEFAULT = 7 * 24 * 3600

Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
RoleName = Literal["viewer", "operator", "producer", "editor", "worker", "admin"]
PositiveSeconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]


class CatchUpPolicy(StrEnum):
    """The policy for fire times that could not be planned in time."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"
    ASK = "ask"


class CatchUp(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`latest` (the default) runs once, for the newest fire time that was missed; `all` runs the newest 1,000 of them;
    `none` runs none. `ask`: a person decides which of these it is; without a decision within `within_seconds` (14,400)
    it is `then` (`latest`); both mean nothing under other policies. Fire times older than `window_seconds` count as
    missed under every policy."""

    policy: CatchUpPolicy = CatchUpPolicy.LATEST
    window_seconds: Seconds | None = None
    then: Literal["none", "latest", "all"] | UnsetType = UNSET
    within_seconds: PositiveSeconds | UnsetType = UNSET

    def __post_init__(self) -> None:
        asks = self.policy is CatchUpPolicy.ASK
        for name, default in (("then", "latest"), ("within_seconds", 4 * 3600.0)):
            if getattr(self, name) is UNSET and asks:
                force_setattr(self, name, default)
            elif not asks:
                force_setattr(self, name, UNSET)


class Overlap(StrEnum):
    """The policy for a fire time when an earlier run of the job is not finished. Retries count as not finished."""

    ALLOW = "allow"
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"


class Retry(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attempt n + 1 comes `backoff_seconds * backoff_factor ** (n - 1)` after attempt n failed, `backoff_max_seconds`
    at most, less a jitter of up to half. No attempt starts later than `age_max_seconds` after the run was due.
    `silences_max`: how many attempts a run may lose by the silence of its worker, beside `attempts_max`; left out, each
    of them counts as an attempt."""

    attempts_max: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] = 3
    backoff_seconds: Seconds = 5.0
    backoff_factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    backoff_max_seconds: Seconds = 3600.0
    age_max_seconds: Annotated[float, Meta(gt=0, le=RETRY_AGE_SECONDS_MAX)] | None = None
    silences_max: Annotated[int, Meta(ge=0, le=SILENCES_MAX)] | Literal["unlimited"] | None = None


class Timeouts(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`start_seconds`: a run that no worker took within this of being due fails. `execution_seconds`: how long one
    attempt may take. `heartbeat_seconds`: the length of the lease; silence for longer loses the attempt. On a bus a
    worker takes a run by its first report, and is told to stop when one of the first two has passed."""

    start_seconds: PositiveSeconds | None = None
    execution_seconds: PositiveSeconds | None = None
    heartbeat_seconds: Annotated[float, Meta(ge=1, le=24 * 3600)] = LEASE_SECONDS_DEFAULT


class Concurrency(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most `max` runs that share `key` are claimed at one time, over all jobs and nodes."""

    key: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
    max: Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] = 1


UniquenessKey = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
"""Any text of up to 200 bytes."""


class Until(StrEnum):
    """How long a run holds its unique key: until its first attempt begins, it is over, or it is kept no longer."""

    BEGUN = "begun"
    FINISHED = "finished"
    FORGOTTEN = "forgotten"


class OnConflict(StrEnum):
    """The effect of a call on the run that holds its key."""

    KEEP = "keep"
    REPLACE = "replace"


class Unique(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run at a time holds `key`: for `for_seconds` from when it was made, or `until`. With `replace`, a run that
    waits gets payload, due time and priority of the later call."""

    key: UniquenessKey
    for_seconds: PositiveSeconds | None = None
    until: Until = Until.FORGOTTEN
    on_conflict: OnConflict = OnConflict.KEEP


class Debounce(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Of many calls with `key` the last counts: each brings its payload, and moves the due time of the run that waits
    to `seconds` from now, at most to `max_seconds` from the first."""

    key: UniquenessKey
    seconds: Seconds
    max_seconds: Seconds | None = None


class Limit(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most `max` attempts begin within any `per_seconds`; up to `burst` of them (left out: a tenth of `max`) at
    once."""

    max: Annotated[int, Meta(ge=1, le=RATE_MAX)]
    per_seconds: Annotated[float, Meta(ge=1, le=SECONDS_MAX)]
    burst: Annotated[int, Meta(ge=1, le=RATE_MAX)] | None = None

    def __post_init__(self) -> None:
        if self.burst is not None and self.burst > self.max:
            raise ValueError(f"burst: {self.burst:,} is more than max, which is {self.max:,}")


class Rate(Limit, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A limit for all runs that share `key`, over all jobs and nodes."""

    key: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]


FairKey = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH_MAX)]
FAIR_WEIGHT_MAX, FAIR_WEIGHTS_MAX = 1_000, 200
"""The largest weight of a fairness key, and of how many keys a queue knows weights."""
FairWeights = Annotated[
    dict[FairKey, Annotated[int, Meta(ge=1, le=FAIR_WEIGHT_MAX)]], Meta(max_length=FAIR_WEIGHTS_MAX)
]

Rates = Annotated[tuple[Rate, ...], Meta(max_length=RATES_MAX)]


class Approval(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Each run waits for a person's decision before its first attempt. `roles`: who may decide: callers that have all
    scopes of one of these. `within_seconds`: how long it waits; `then`: what becomes of it without a decision.
    `four_eyes`: who defined the job, or asked for the run, may not decide."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1, max_length=6)] = ("operator",)
    within_seconds: PositiveSeconds = 4 * 3600.0
    then: Literal["skip", "run"] = "skip"
    four_eyes: bool = False


class Retention(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long a finished run is kept (`None`: for good), and at most how many finished runs of the job."""

    finished_seconds: Seconds | None = RETENTION_SECONDS_DEFAULT
    runs_max: Annotated[int, Meta(ge=0, le=100_000_000)] | None = None


RetryPolicy = Retry
"""The name under which programs import it, beside the exception `Retry`."""

DEFAULT_CATCH_UP = CatchUp()
DEFAULT_RETRY = Retry()
DEFAULT_TIMEOUTS = Timeouts()
DEFAULT_RETENTION = Retention()
DEFAULT_APPROVAL = Approval()
"""The defaults: the same objects everywhere, so that they are recognised at a glance."""
