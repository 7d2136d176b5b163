"""`horarium conformance`: whether a worker, or a library of recurrence rules, does as it should."""

from __future__ import annotations

import asyncio
import logging

import click

from horarium.cli.output import one_line, print_json, say
from horarium.cli.shell import FAILED, Lazy, json_option

conformance = Lazy(
    name="conformance",
    commands={"worker": "horarium.cli.conformance:worker"},
    summaries={"worker": "Play the scenes of the worker protocol to a worker."},
    help="Whether a program in any language does as the protocol says.",
)


@click.command(
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
