"""`horarium conformance`: whether a worker, or a library of recurrence rules, does as it should."""

from __future__ import annotations

import asyncio
import logging

import click

from horarium.cli.output import one_line, print_json, say
from horarium.cli.shell import FAILED, Lazy, json_option

conformance = Lazy(
    name="conformance", help="Whether a program in any language does as the protocol, or the standards, say."
)


@conformance.command(
    help="""Play the scenes of the worker protocol to a worker in any language.

\b
COMMAND is started once for each scene, with HORARIUM_URL, HORARIUM_KEY and HORARIUM_QUEUE in its environment, and
performs runs as their payload says (docs/worker-protocol.md). Needs no server: it has its own, on loopback. Each scene
is passed, or the fault is told in a sentence; the exit status is 0 only if all are passed.
\b
Examples:
  horarium conformance worker -- python my_worker.py
  horarium conformance worker --scene cancel --scene drain -- node worker.js
"""
)
@click.option("--scene", "scenes", multiple=True, metavar="NAME", help="Only this scene; repeatable.")
@click.argument("command", nargs=-1, required=True)
@json_option
def worker(scenes: tuple[str, ...], command: tuple[str, ...], as_json: bool) -> int:
    from horarium.testing.conformance import play

    logging.getLogger("horarium").addHandler(logging.NullHandler())  # runs that fail are part of the scenes
    verdicts = asyncio.run(play(command, scenes))
    passed = sum(verdict.passed for verdict in verdicts)
    if as_json:
        print_json({"protocol": 1, "passed": passed, "failed": len(verdicts) - passed, "scenes": verdicts})
    else:
        for verdict in verdicts:
            say(
                f"pass  {verdict.scene}"
                if verdict.fault is None
                else f"FAIL  {verdict.scene}: {one_line(verdict.fault)}"
            )
        say(f"{passed} of {len(verdicts)} scenes passed")
    return 0 if passed == len(verdicts) else FAILED


@conformance.command(
    help="""Ask a library of recurrence rules or cron patterns for the fire times of thousands of cases.

\b
COMMAND reads cases as JSON lines ({"id", "kind", "rule", "zone", "after", "count"}) and writes for each {"id", "fires":
[...]}, or {"id", "error"} where it refuses the rule. The exit status is 0 if every case is answered as expected; the
suite `disputed` is asked only where it is named (docs/conformance.md).
\b
Examples:
  horarium conformance rules -- python conformance/adapters/ours.py
  horarium conformance rules --suite cron --show 3 -- node conformance/adapters/croner_js.mjs
"""
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(("rrule", "cron", "dst", "disputed")),
    help="Only this suite; repeatable. [default: rrule, cron, dst]",
)
@click.option("--cases", metavar="FOLDER", help="Where the cases are; left out: conformance/recurrence of the clone.")
@click.option("--show", type=click.IntRange(0, 100), default=0, help="How many missed cases of each suite are shown.")
@click.argument("command", nargs=-1, required=True)
@json_option
def rules(suites: tuple[str, ...], cases: str | None, show: int, command: tuple[str, ...], as_json: bool) -> int:
    from horarium.testing.conformance.rules import folder, score, summary

    scores = score(command, folder(cases), suites or ("rrule", "cron", "dst"))
    told = summary(scores)
    if as_json:
        print_json(told)
    else:
        for each in scores:
            say(f"{each.right:5} of {each.cases:5}  {each.name}")
            for miss in each.missed[:show]:
                expected = "an error" if miss.expected is None else ", ".join(miss.expected)
                found = miss.found if isinstance(miss.found, str) else ", ".join(miss.found)
                say(f"      {miss.id}  {one_line(miss.rule)}  {miss.zone}, after {miss.after}")
                say(f"        expected {expected}")
                say(f"        found    {one_line(found)}")
        say(f"{told['right']} of {told['cases']} cases as expected")
    return 0 if told["right"] == told["cases"] else FAILED
