"""croniter, with seconds first."""

import json
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from croniter import croniter

for line in sys.stdin:
    case = json.loads(line)
    if case["kind"] != "cron":
        continue
    try:
        after = datetime.fromisoformat(case["after"]).astimezone(ZoneInfo(case["zone"]))
        rule = croniter(case["rule"], after, second_at_beginning=True)
        fires = [rule.get_next(datetime) for _ in range(case["count"])]
        print(json.dumps({"id": case["id"], "fires": [fire.astimezone(UTC).isoformat() for fire in fires]}))
    except Exception as error:
        print(json.dumps({"id": case["id"], "error": str(error)}))
