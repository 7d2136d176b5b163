"""cronsim."""

import json
import sys
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim

for line in sys.stdin:
    case = json.loads(line)
    if case["kind"] != "cron":
        continue
    try:
        after = datetime.fromisoformat(case["after"]).astimezone(ZoneInfo(case["zone"]))
        fires = list(islice(CronSim(case["rule"], after), case["count"]))
        print(json.dumps({"id": case["id"], "fires": [fire.astimezone(UTC).isoformat() for fire in fires]}))
    except Exception as error:
        print(json.dumps({"id": case["id"], "error": str(error)}))
