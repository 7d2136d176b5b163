"""python-dateutil, as a program calls it: an aware DTSTART, and instants as they come."""

import json
import sys
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

for line in sys.stdin:
    case = json.loads(line)
    if case["kind"] != "rrule":
        continue
    try:
        rules = rrulestr(case["rule"], tzids=ZoneInfo)
        fires = islice(rules.xafter(datetime.fromisoformat(case["after"])), case["count"])
        print(json.dumps({"id": case["id"], "fires": [fire.astimezone(UTC).isoformat() for fire in fires]}))
    except Exception as error:
        print(json.dumps({"id": case["id"], "error": str(error)}))
