"""All commands, by name."""

from __future__ import annotations

from horarium.cli.shell import Lazy, version_option

COMMANDS = {
    "serve": "horarium.cli.serve:serve",
    "api": "horarium.cli.serve:api",
    "planner": "horarium.cli.serve:planner",
    "dispatcher": "horarium.cli.serve:dispatcher",
    "rescuer": "horarium.cli.serve:rescuer",
    "pruner": "horarium.cli.serve:pruner",
    "job": "horarium.cli.job:job",
    "run": "horarium.cli.run:run",
    "approval": "horarium.cli.approval:approval",
    "calendar": "horarium.cli.calendar:calendar",
    "hold": "horarium.cli.hold:hold",
    "rate": "horarium.cli.rate:rate",
    "channel": "horarium.cli.channel:channel",
    "preview": "horarium.cli.preview:preview",
    "upcoming": "horarium.cli.upcoming:upcoming",
    "plan": "horarium.cli.plan:plan",
    "apply": "horarium.cli.plan:apply",
    "forecast": "horarium.cli.forecast:forecast",
    "feed": "horarium.cli.feed:feed",
    "status": "horarium.cli.status:status",
    "login": "horarium.cli.login:login",
    "logout": "horarium.cli.login:logout",
    "whoami": "horarium.cli.login:whoami",
    "key": "horarium.cli.key:key",
    "audit": "horarium.cli.audit:audit",
    "worker": "horarium.cli.worker:worker",
    "store": "horarium.cli.store:store",
    "door": "horarium.cli.door:door",
    "mcp": "horarium.cli.mcp:mcp",
    "conformance": "horarium.cli.conformance:conformance",
    "completion": "horarium.cli.completion:completion",
}
SUMMARIES = {
    "serve": "Run a server with all its roles.",
    "api": "Run only the API.",
    "planner": "Run only the planner, which turns fire times into runs.",
    "dispatcher": "Run only the dispatcher, which delivers runs to HTTP targets.",
    "rescuer": "Run only the rescuer, which takes runs back from workers that fell silent.",
    "pruner": "Run only the pruner, which forgets old runs.",
    "job": "Define, show, pause, trigger, import and export jobs.",
    "run": "List, show, cancel and retry runs.",
    "approval": "Decide about runs that wait for it.",
    "calendar": "Define which days are business days.",
    "hold": "Let nothing begin, until a moment.",
    "rate": "How many attempts may begin in a time, by key.",
    "channel": "Define and try where notifications go.",
    "preview": "Show when a trigger would fire.",
    "upcoming": "What fires next, of all jobs together.",
    "plan": "Show what files of definitions would change.",
    "apply": "Carry out a plan, as a whole or not at all.",
    "forecast": "How much will run, and when, as a map of the hours.",
    "feed": "Make, list and revoke addresses for calendar programs.",
    "status": "Is all well? Nodes, queues, failures.",
    "login": "Sign in, to act in your own name.",
    "logout": "Forget a sign-in.",
    "whoami": "Show as whom the server knows you.",
    "key": "Make, list and revoke named keys.",
    "audit": "Who changed what, when, and what it was before.",
    "worker": "Perform runs with a Python function, or as shell commands.",
    "store": "Prepare, check or copy a store.",
    "door": "Take over from another scheduler.",
    "mcp": "Tools for an agent, by the Model Context Protocol.",
    "conformance": "Whether a worker in any language keeps to the protocol.",
    "completion": "Print the completion script of a shell.",
}

cli = Lazy(
    name="horarium",
    commands=COMMANDS,
    summaries=SUMMARIES,
    sections={
        "Jobs and runs": (
            "job",
            "run",
            "approval",
            "calendar",
            "hold",
            "rate",
            "channel",
            "preview",
            "upcoming",
            "status",
        ),
        "Before it happens": ("plan", "apply", "forecast", "feed"),
        "Server": ("serve", "api", "planner", "dispatcher", "rescuer", "pruner", "store", "door"),
        "Workers": ("worker", "mcp", "conformance"),
        "Access": ("login", "logout", "whoami", "key", "audit"),
        "This command": ("completion",),
    },
    help="""Horarium, a durable job scheduler.

\b
Examples:
  horarium serve --store sqlite:///horarium.db
  horarium job add nightly --cron "0 3 * * *" --timezone Europe/Berlin --http https://example.com/report
  horarium job list
  horarium preview "every other tuesday at 9:34am"
""",
    params=[version_option()],
)
