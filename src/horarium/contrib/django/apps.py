"""The app: it imports `jobs.py` of every installed app, and makes the backends of tasks that are ours, so that handlers
and jobs are registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules


class HorariumConfig(AppConfig):
    """`horarium.contrib.django`."""

    name = "horarium.contrib.django"
    label = "horarium"
    verbose_name = "Horarium"

    def ready(self) -> None:
        """Once all apps are loaded."""
        autodiscover_modules("jobs")
        backends: Mapping[str, Any] = getattr(settings, "TASKS", {})
        for alias, given in backends.items():
            if given["BACKEND"].startswith(f"{self.name}.tasks."):
                from horarium.contrib.django.tasks import backend_of

                backend_of(alias)
