"""The recurrence engine: RFC 5545 rules (and RFC 7529 SKIP) as arithmetic on integers.

    parse_parts -> Parts -> make_fires -> Fires.next(after)

`parts` reads and checks, `days` says which days of a year or month are meant, `periods` and `steps` jump along the wall
clock (the slower and the faster half of the frequencies), `fires` turns wall times into instants. Nothing here iterates
from the start of a rule, and nothing knows of RDATE, EXDATE or the JSON form: that is `triggers/rrule_trigger.py`.
"""

from horarium.triggers.recurrence.fires import Fires, make_fires
from horarium.triggers.recurrence.parts import Freq, Parts, Skip, parse_parts

__all__ = ["Fires", "Freq", "Parts", "Skip", "make_fires", "parse_parts"]
