"""The app: it imports `jobs.py` of every installed app, so that handlers and jobs are registered."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class HorariumConfig(AppConfig):
    """`horarium.contrib.django`."""

    name = "horarium.contrib.django"
    label = "horarium"
    verbose_name = "Horarium"

    def ready(self) -> None:
        """Once all apps are loaded."""
        autodiscover_modules("jobs")
