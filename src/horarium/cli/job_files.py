"""`horarium job import` and `horarium job export`.

Each job of a file is put, many in one request: a new one is made, a changed one is changed, an unchanged one stays as
it is, with its next fire time. A job that is refused is named with its place, and the others are imported all the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.crontab import addresses_in, host_zone, is_of_crontab, mail_channel
from horarium.cli.documents import FORMATS, Beside, read_entries
from horarium.cli.entry import Entry
from horarium.cli.fields import CATCH_UPS, OVERLAPS, pairs
from horarium.cli.job_overrides import overrides_of, set_overrides, without_overrides
from horarium.cli.output import labels_text, print_json, say
from horarium.cli.shell import FAILED, Server, on_server
from horarium.errors import Forbidden, InvalidJob, NotFound
from horarium.triggers.words import counted

if TYPE_CHECKING:
    from horarium.client import Client
    from horarium.wire.views import JobView

ERRORS_SHOWN_MAX = 20
READ_ONLY = ("undelivered",)
"""Fields of a channel that none is defined by."""
SOURCE_LABEL = "crontab-source"
HERD_JOBS = 100
"""From this number of jobs on, one cron expression that all of them have is worth a remark."""


@click.command(
    "import",
    help="""Define the jobs of FILE (- is the standard input): YAML, JSON, a crontab, a systemd timer, Kubernetes
CronJobs, schedules of EventBridge or of Celery beat. A second import changes nothing.

New jobs with an interval and no anchor begin spread evenly over it, so that they do not all fire as one.

\b
A line of a crontab becomes a job that starts ["/bin/sh", "-c", COMMAND] on a worker
(`horarium worker --queue shell --allow-commands`); its name follows from the command. As under cron, it is tried once,
nothing is caught up, and runs may overlap. CRON_TZ= and TZ= set the zone, SHELL= the shell, HOME= the folder,
RANDOM_DELAY= a jitter in minutes; other variables go into its env. --source says which crontab it is: a line that was
edited or has left it takes its job along.
\b
--format systemd: what `systemctl cat NAME.timer NAME.service` prints, as a job with a command.
--format kubernetes: CronJobs (YAML or JSON), each as the command of its container; UTC where none names a zone.
--format eventbridge: what `aws scheduler get-schedule` prints; the input is the payload of runs in --queue.
--format healthchecks: what GET /api/v3/checks/ of Healthchecks answers, as work that is done elsewhere.
--format celery: the beat_schedule of an application, with module:app as FILE; each job calls the handler celery_task.
\b
Examples:
  horarium job import jobs.yaml
  horarium job import jobs.json --dry-run
  crontab -l | horarium job import - --format crontab --source web1
  horarium job import /etc/crontab --timezone Europe/Berlin --mailto --dry-run
  systemctl cat dump.timer dump.service | horarium job import - --format systemd --dry-run
  kubectl get cronjobs --output yaml | horarium job import - --format kubernetes --dry-run
  horarium job import jobs.yaml --label app=billing --prune --dry-run
""",
)
@click.argument("file", metavar="FILE")
@click.option("--format", type=click.Choice(FORMATS), help="What the file is; left out: by its name or content.")
@click.option("--dry-run", is_flag=True, help="Check every job and show the changes; write nothing.")
@click.option(
    "--queue", metavar="NAME", default="shell", show_default=True, help="Files of others: the queue of their jobs."
)
@click.option("--timezone", metavar="ZONE", help="Crontab, systemd: the time zone; left out: that of this machine.")
@click.option(
    "--prefix", metavar="TEXT", help="Files of others: what the names of their jobs begin with; else `SOURCE-`."
)
@click.option(
    "--source", metavar="NAME", help="Crontab: whose it is; jobs of this source that have left it are deleted."
)
@click.option("--mailto", is_flag=True, help="Crontab: make channels of MAILTO=, which get the failures.")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), help="Files of others: what to do about missed fire times.")
@click.option(
    "--attempts",
    type=click.IntRange(1),
    metavar="N",
    help="Files of others: attempts of a run; a crontab: 1 if left out.",
)
@click.option(
    "--overlap", type=click.Choice(OVERLAPS), help="Files of others: what to do when an earlier run is not finished."
)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label for every job; repeatable.")
@click.option("--prune", is_flag=True, help="Delete the jobs with these labels that FILE no longer has; needs --label.")
@click.option("--take-over", is_flag=True, help="Take jobs over that have another value of a --label.")
@click.option("--allow-empty", is_flag=True, help="Prune although FILE has no job: all jobs with these labels go.")
@on_server
def import_jobs(
    server: Server,
    file: str,
    format: str | None,
    dry_run: bool,
    queue: str,
    timezone: str | None,
    prefix: str | None,
    source: str | None,
    mailto: bool,
    catch_up: str | None,
    attempts: int | None,
    overlap: str | None,
    labels: tuple[str, ...],
    prune: bool,
    take_over: bool,
    allow_empty: bool,
) -> None:
    owned = pairs("--label", labels, "=") | ({SOURCE_LABEL: source} if source else {})
    prune = prune or source is not None
    if prune and not owned:
        raise click.UsageError("--prune deletes jobs by label: give the --label that all jobs of this file have")
    if allow_empty and not prune:
        raise click.UsageError("--allow-empty belongs to --prune")
    fields: dict[str, Any] = {"retry": {"attempts_max": attempts}} if attempts else {}
    fields |= {"overlap": overlap} if overlap else {}
    fields |= {"catch_up": {"policy": catch_up}} if catch_up else {}
    zone, prefix = timezone or host_zone() or "UTC", prefix or (f"{source}-" if source else "")
    beside: Beside = {"calendars": [], "channels": []}
    entries = read_entries(
        file, format, queue=queue, timezone=zone, prefix=prefix, fields=fields, mail=mailto, beside=beside
    )
    entries, overridden = without_overrides([labelled(entry, owned) for entry in entries])
    with_labels = labels_text(owned)
    if prune and not entries and not allow_empty:
        raise click.UsageError(
            f"{file} has no job: every job with {with_labels} would be deleted; say --allow-empty if that is meant"
        )
    if mailto and not dry_run:
        make_channels(server.client, entries)
    others = put_beside(server.client, beside, dry_run)
    with _progress(len(entries), server.as_json) as advance:
        names, errors = _import(server.client, entries, dry_run, {} if take_over else owned, advance, beside)
    if not dry_run:
        failed = {error["job"] for error in errors}
        set_overrides(server.client, {name: each for name, each in overridden.items() if name not in failed})
    gone, owned_before = _prune(server.client, entries, owned, errors, dry_run) if prune else (None, 0)
    found = notes(entries, None if timezone else zone, mailto=mailto)
    if server.as_json:
        counts = {outcome: len(those) for outcome, those in names.items()} | {"failed": len(errors)}
        pruned = {} if gone is None else {"deleted": gone}
        print_json({**counts, **pruned, **others, "dry_run": dry_run, "errors": errors, "notes": found})
    else:
        _print_summary(names, gone, errors, found, others, dry_run)
        if gone:
            again = "" if dry_run else "; `horarium job revert NAME` makes one again"
            said = "would be" if dry_run else "was" if len(gone) == 1 else "were"
            say(f"{len(gone):,} of {counted(owned_before, 'job')} with {with_labels} {said} deleted{again}.")
    if errors:
        sys.exit(FAILED)


def make_channels(client: Client, entries: Iterable[Entry]) -> None:
    """A channel of type email for each MAILTO of a crontab."""
    for addresses in {tuple(addresses_in(_env_of(entry).get("MAILTO", ""))) for entry in entries} - {()}:
        client.channels.put(mail_channel(addresses), {"type": "email", "to": addresses})


def put_beside(client: Client, beside: Beside, dry_run: bool) -> dict[str, list[str]]:
    """Write the calendars and channels of a file, all or none: the names of those that changed, by kind. A new channel
    with a masked secret is left out, with a warning. Raises InvalidJob."""
    from horarium.wire.masking import SECRET_SHOWN

    if not any(beside.values()):
        return {}
    plan = client.plans.make(beside)
    wrong = [change for change in plan["changes"] if change["action"] == "invalid"]
    refused = {change["name"] for change in wrong if change["kind"] == "channel"}
    if masked := [each for each in beside["channels"] if each.get("name") in refused and SECRET_SHOWN in str(each)]:
        for each in masked:
            say(
                f"Warning: channel {each['name']} is left out: its secret is masked, and none is stored for it",
                err=True,
            )
        beside["channels"] = [each for each in beside["channels"] if each not in masked]
        return put_beside(client, beside, dry_run)
    if wrong:
        raise InvalidJob(f"{wrong[0]['kind']} {wrong[0]['name']}: {wrong[0]['problem']['detail']}")
    changed = [change for change in plan["changes"] if change["action"] != "unchanged"]
    if changed and not dry_run:
        client.plans.apply(plan["id"])
    return {
        kind: names for kind in beside if (names := [each["name"] for each in changed if kind.startswith(each["kind"])])
    }


def _planned(
    client: Client, beside: Beside, entries: Sequence[Entry]
) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    """What becomes of jobs beside calendars and channels that are not written yet, as `_import` says it."""
    good = [entry for entry in entries if entry.definition is not None]
    plan = client.plans.make({**beside, "jobs": [entry.definition or {} for entry in good]})
    changes = [change for change in plan["changes"] if change["kind"] == "job"]
    errors = [_failed(entry, entry.error) for entry in entries if entry.error is not None]
    names: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}
    words = {"create": "created", "update": "updated", "unchanged": "unchanged"}
    for entry, change in zip(good, changes, strict=True):
        if change["action"] == "invalid":
            errors.append(_failed(entry, change["problem"]["detail"]))
        else:
            names[words[change["action"]]].append(change["name"])
    return names, errors


def _env_of(entry: Entry) -> dict[str, str]:
    target = (entry.definition or {}).get("target")
    env = target.get("env") if isinstance(target, dict) else None
    return env if isinstance(env, dict) else {}


def labelled(entry: Entry, labels: dict[str, str]) -> Entry:
    """The entry, its job with these labels too."""
    if entry.definition is None or not labels or not isinstance(entry.definition.get("labels", {}), dict):
        return entry
    job = {**entry.definition, "labels": {**entry.definition.get("labels", {}), **labels}}
    return entry._replace(definition=job)


def _prune(
    client: Client, entries: Sequence[Entry], labels: dict[str, str], errors: Sequence[object], dry_run: bool
) -> tuple[list[str], int]:
    """Delete the jobs with these labels that have left the file: their names, and of how many. None while the file has
    an error, which may hide a job that is meant to stay."""
    if errors:
        return [], 0
    kept = {entry.name for entry in entries}
    owned = [job.name for job in client.list_jobs(labels=labels, finished=None)]
    gone = [name for name in owned if name not in kept]
    for name in () if dry_run else gone:
        client.delete_job(name)
    return gone, len(owned)


def _import(
    client: Client,
    entries: Sequence[Entry],
    dry_run: bool,
    owned: dict[str, str],
    advance: Callable[[], None],
    beside: Beside,
) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    """The names of the jobs by what became of them, and the errors."""
    if dry_run and any(beside.values()):
        return _planned(client, beside, entries)
    names: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}
    errors: list[dict[str, str]] = []
    good: list[Entry] = []
    first: dict[str, str] = {}
    for entry in entries:
        why = entry.error
        if entry.name and entry.name in first:
            why = f"there is a job of this name already, at {first[entry.name]}"
        elif entry.name:
            first[entry.name] = entry.place
        if why is None:
            good.append(entry)
        else:
            errors.append(_failed(entry, why))
            advance()
    sent = client.import_jobs((entry.definition or {} for entry in good), dry_run=dry_run, owned_by=owned)
    for entry, imported in zip(good, sent, strict=True):
        if imported.error is None:
            names[imported.outcome].append(imported.name)
            if imported.warning is not None:
                say(f"Warning: {imported.name}: {imported.warning}", err=True)
        else:
            errors.append(_failed(entry, imported.error.message))
        advance()
    return names, errors


def _failed(entry: Entry, why: str) -> dict[str, str]:
    return {"job": entry.name or "", "place": entry.place, "error": why}


def notes(entries: Iterable[Entry], zone: str | None = None, *, mailto: bool = False) -> list[str]:
    """Warnings: valid, but perhaps not meant. `zone`: that of a crontab, if no one named it."""
    herds: Counter[tuple[str, str]] = Counter()
    mail, crons = False, 0
    for entry in entries:
        job = entry.definition or {}
        trigger = job.get("trigger")
        if isinstance(trigger, dict) and trigger.get("type") == "cron" and not job.get("jitter_seconds"):
            herds[str(trigger.get("expression")), str(trigger.get("timezone", "UTC"))] += 1
        mail = mail or bool(_env_of(entry).get("MAILTO"))
        crons += is_of_crontab(job)
    found = [
        f"{count:,} jobs fire at the same instants ({expression}, {zone}): jitter_seconds in their definitions spreads "
        "them, and so does H in place of a number"
        for (expression, zone), count in herds.most_common()
        if count >= HERD_JOBS and "H" not in expression
    ]
    if crons and zone is not None:
        found.append(f"times are those of {zone}, the zone of this machine; --timezone names another")
    if mail and not mailto:
        found.append("MAILTO: no mail is sent; --mailto makes channels of it, which get the failures")
    return found


@contextmanager
def _progress(total: int, as_json: bool) -> Iterator[Callable[[], None]]:
    """The callback for each job; on a terminal, a bar shows how far it is."""
    if as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Importing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("import", total=total)
        yield lambda: bar.advance(task)


def _print_summary(
    names: dict[str, list[str]],
    gone: list[str] | None,
    errors: list[dict[str, str]],
    notes: list[str],
    others: dict[str, list[str]],
    dry_run: bool,
) -> None:
    for kind, listed in others.items():
        say(f"{kind}: {', '.join(listed)} {'would be' if dry_run else 'were'} written.")
    for error in errors[:ERRORS_SHOWN_MAX]:
        if error["job"]:
            say(f"Error: {error['job']}: {error['error']} ({error['place']})", err=True)
        else:
            say(f"Error: {error['place']}: {error['error']}", err=True)
    if len(errors) > ERRORS_SHOWN_MAX:
        say(f"... and {counted(len(errors) - ERRORS_SHOWN_MAX, 'more error')}; --json lists them all", err=True)
    for note in notes:
        say(f"Note: {note}", err=True)
    changes = {**names, **({} if gone is None else {"deleted": gone})}
    if dry_run:
        for outcome in ("created", "updated", "deleted"):
            for name in changes.get(outcome, ()):
                say(f"  {outcome:<8} {name}")
    if gone == [] and errors:
        say("Note: no job was deleted, since the file has errors", err=True)
    counts = [f"{len(those)} {outcome}" for outcome, those in changes.items()] + [f"{len(errors)} failed"]
    said = ", ".join(counts) + "."
    say(f"Nothing was written. It would be: {said}" if dry_run else said)


@click.command(
    "export",
    help="""Write jobs as YAML (or JSON) that `horarium job import` and `horarium plan` take back: a list of jobs, or,
where they use calendars or channels, these beside `jobs:` (channels take a key that may read them). Secrets are masked;
importing over the same job or channel keeps the one that is stored.

\b
Examples:
  horarium job export > jobs.yaml
  horarium job export nightly --format json --output nightly.json
""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only jobs with this label; repeatable.")
@click.option("--format", type=click.Choice(["yaml", "json"]), help="What to write; left out: YAML, or by the output.")
@click.option("--output", metavar="FILE", help="Where to; left out: the standard output.")
@click.option("--overrides", is_flag=True, help="With the fire times that are skipped or moved.")
@on_server
def export_jobs(
    server: Server,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    format: str | None,
    output: str | None,
    overrides: bool,
) -> None:
    wanted = pairs("--label", labels, "=")
    jobs = [server.client.get_job(name) for name in names] if names else server.client.list_jobs(labels=wanted)
    fields = [definition_of_view(job) for job in jobs]
    beside = used_beside(server.client, fields)
    if overrides:
        fields = [{**job, "overrides": overrides_of(server.client, job["name"])} for job in fields]
    wants_json = server.as_json or format == "json" or (format is None and (output or "").endswith(".json"))
    _write(_text({**beside, "jobs": fields} if beside else fields, wants_json), output)


def used_beside(client: Client, jobs: Sequence[dict[str, Any]]) -> Beside:
    """The calendars and channels that these jobs use, as far as the caller may read them."""
    from horarium.rules.calendars import calendars_in

    calendars = sorted({name for job in jobs for name in calendars_in(job["trigger"])})
    followed = [each for job in jobs for some in job.get("on", {}).values() for each in some]
    channels = sorted({each["notify"] for each in followed if "notify" in each})
    found: Beside = {"calendars": _each(client.calendars.get, calendars, "calendars")}
    found["channels"] = _each(client.channels.get, channels, "channels")
    return {kind: listed for kind, listed in found.items() if listed}


def _each(get: Callable[[str], dict[str, Any]], names: Sequence[str], kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            shown = get(name)
        except Forbidden:
            say(f"Note: {kind} are left out: this key may not read them", err=True)
            return []
        except NotFound:
            continue
        found.append({field: value for field, value in shown.items() if field not in READ_ONLY and value is not None})
    return found


def definition_of_view(job: JobView) -> dict[str, Any]:
    """The definition that its owner would write to get this job."""
    import msgspec

    from horarium.wire.definitions import JobDefinition

    shown = {name: getattr(job, name) for name in JobDefinition.__struct_fields__}
    fields: dict[str, Any] = msgspec.to_builtins(JobDefinition(**shown))
    return fields


def _text(fields: Any, as_json: bool) -> str:
    if as_json:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"
    from horarium.server.documents import write_yaml

    return write_yaml(fields)


def _write(text: str, output: str | None) -> None:
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--output: {output} can't be written: {error.strerror}") from None
