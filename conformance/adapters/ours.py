"""Horarium's own engine, as `horarium conformance rules` asks for it."""

import json
import sys
from datetime import datetime

from horarium.triggers import cron
from horarium.triggers.rrule_trigger import rrule

for line in sys.stdin:
    case = json.loads(line)
    gap = {"gap": case["gap"]} if "gap" in case else {}
    try:
        trigger = rrule(case["rule"], **gap) if case["kind"] == "rrule" else cron(case["rule"], case["zone"], **gap)
        fires = trigger.fires(datetime.fromisoformat(case["after"]), case["count"])
        print(json.dumps({"id": case["id"], "fires": [fire.isoformat() for fire in fires]}))
    except ValueError as error:
        print(json.dumps({"id": case["id"], "error": str(error)}))
