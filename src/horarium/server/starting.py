"""From settings to a server that runs."""

from __future__ import annotations

from horarium.server.config import Settings


def start(settings: Settings) -> int:
    """Serve, in as many processes as are wanted, until a signal stops it. The exit status."""
    from horarium.server.cpus import usable_cpus
    from horarium.server.later import postpone, seldom_used

    postpone(*seldom_used(settings.store))
    count = usable_cpus() if settings.processes == "auto" else settings.processes
    if count > 1:
        from horarium.server.supervisor import run_processes

        return run_processes(settings, count)
    from horarium.server.process import run_server

    return run_server(settings)
