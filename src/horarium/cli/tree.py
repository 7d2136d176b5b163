"""All commands, by name."""

from __future__ import annotations

from horarium.cli.shell import Lazy, version_option

SECTIONS = {
    "Jobs and runs": {
        "job": ("horarium.cli.job:job", "Define, show, pause, trigger, import and export jobs."),
        "run": ("horarium.cli.run:run", "List, show, cancel and retry runs."),
        "batch": ("horarium.cli.batch:batch", "Runs whose common end brings something about."),
        "approval": ("horarium.cli.approval:approval", "Decide about runs that wait for it."),
        "calendar": ("horarium.cli.calendar:calendar", "Define which days are business days."),
        "hold": ("horarium.cli.hold:hold", "Let nothing begin, until a moment."),
        "rate": ("horarium.cli.rate:rate", "How many attempts may begin in a time, by key."),
        "queue": ("horarium.cli.queue:queue", "How fairness keys share a queue."),
        "channel": ("horarium.cli.channel:channel", "Define and try where notifications go."),
        "preview": ("horarium.cli.preview:preview", "Show when a trigger would fire."),
        "upcoming": ("horarium.cli.upcoming:upcoming", "What fires next, of all jobs together."),
        "attention": ("horarium.cli.attention:attention", "Faults and their acknowledgements."),
        "status": ("horarium.cli.status:status", "Is all well? Nodes, queues, failures."),
    },
    "Before it happens": {
        "plan": ("horarium.cli.plan:plan", "Show what files of definitions would change."),
        "apply": ("horarium.cli.plan:apply", "Carry out a plan, as a whole or not at all."),
        "simulate": (
            "horarium.cli.simulate:simulate",
            "Carry out definitions in virtual time: what would run, and when.",
        ),
        "forecast": ("horarium.cli.forecast:forecast", "How much will run, and when, as a map of the hours."),
        "feed": ("horarium.cli.feed:feed", "Make, list and revoke addresses for calendar programs."),
    },
    "Server": {
        "serve": ("horarium.cli.serve:serve", "Run a server with all its roles."),
        "api": ("horarium.cli.serve:api", "Run only the API."),
        "planner": ("horarium.cli.serve:planner", "Run only the planner, which turns fire times into runs."),
        "dispatcher": (
            "horarium.cli.serve:dispatcher",
            "Run only the dispatcher, which delivers runs to HTTP targets.",
        ),
        "rescuer": ("horarium.cli.serve:rescuer", "Run only the rescuer, which takes runs back from silent workers."),
        "pruner": ("horarium.cli.serve:pruner", "Run only the pruner, which deletes old runs."),
        "store": ("horarium.cli.store:store", "Prepare, check or copy a store."),
        "door": ("horarium.cli.door:door", "Take over from another scheduler."),
    },
    "Workers": {
        "worker": ("horarium.cli.worker:worker", "Perform runs with a Python function, or as shell commands."),
        "mcp": ("horarium.cli.mcp:mcp", "Tools for an agent, by the Model Context Protocol."),
        "conformance": (
            "horarium.cli.conformance:conformance",
            "Whether a worker in any language keeps to the protocol.",
        ),
    },
    "Access": {
        "login": ("horarium.cli.login:login", "Sign in, to act in your own name."),
        "logout": ("horarium.cli.login:logout", "Forget a sign-in."),
        "whoami": ("horarium.cli.login:whoami", "Show as whom the server knows you."),
        "key": ("horarium.cli.key:key", "Make, list and revoke named keys."),
        "session": ("horarium.cli.key:session", "List and end sign-ins to the dashboard."),
        "audit": ("horarium.cli.audit:audit", "Who changed what, when, and what it was before."),
    },
    "This command": {
        "completion": ("horarium.cli.completion:completion", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}

cli = Lazy(
    name="horarium",
    commands=COMMANDS,
    sections=SECTIONS,
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
