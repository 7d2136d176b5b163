"""`manage.py horarium worker|check|declare`: what `horarium worker --app` does, and what a deployment asks."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from horarium.contrib.django import scheduler
from horarium.errors import HorariumError


class Command(BaseCommand):
    """The command of that name."""

    help = "Horarium: perform runs, check the store and the jobs, declare the jobs."

    def add_arguments(self, parser: Any) -> None:
        """Its three parts."""
        parts = parser.add_subparsers(dest="part", required=True)
        worker = parts.add_parser("worker", help="Perform runs and plan jobs, until a signal stops it.")
        worker.add_argument("--slots", type=int, help="Runs at one time (100).")
        worker.add_argument("--grace", type=float, help="Seconds that runs under way have to finish (30).")
        worker.add_argument("--queue", action="append", help="Only handlers of this queue; repeatable.")
        worker.add_argument("--name", help="The name of this node.")
        parts.add_parser("check", help="Say whether the store answers, and what declaring the jobs would change.")
        declare = parts.add_parser("declare", help="Bring the jobs to what the code says.")
        declare.add_argument("--prune", action="store_true", help="Delete jobs that are in the code no more.")

    def handle(self, *args: Any, part: str, **options: Any) -> None:
        """Call one of them. An error of ours is one line."""
        try:
            getattr(self, f"_{part}")(**options)
        except HorariumError as error:
            raise CommandError(error.message) from None

    def _worker(
        self, slots: int | None, grace: float | None, name: str | None, queue: list[str] | None, **_: Any
    ) -> None:
        scheduler.configure(handler_concurrency=slots, grace_seconds=grace, node_name=name, queues=queue)
        scheduler.run_forever()

    def _check(self, **_: Any) -> None:
        stats = scheduler.stats()
        self._say(scheduler.declare(dry_run=True).to_dict(), "would be ")
        for queue in stats.queues:
            self.stdout.write(f"{queue.queue}: {queue.due} due, {queue.scheduled} scheduled, {queue.running} running")
        self.stdout.write("the store answers")

    def _declare(self, prune: bool, **_: Any) -> None:
        self._say(scheduler.declare(prune=prune).to_dict(), "")

    def _say(self, done: dict[str, Any], would: str) -> None:
        for name in ("created", "updated"):
            for job in done[name]:
                self.stdout.write(f"{job}: {would}{name}")
        for job in done["gone"]:
            self.stdout.write(f"{job}: {'deleted' if done['pruned'] else 'in the code no more'}")
