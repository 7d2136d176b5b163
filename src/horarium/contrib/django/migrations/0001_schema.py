"""The schema of the store, where that is in a database of the project: also in the database that its tests make. The
changes of later versions of Horarium are made when the store is opened."""

from __future__ import annotations

import asyncio
from typing import Any

from django.conf import settings
from django.db import migrations, models

from horarium.contrib.django.scheduling import database_url
from horarium.node.backends import make_store


def make_schema(apps: Any, schema_editor: Any) -> None:
    """Make it, unless this is another database."""
    connection = schema_editor.connection
    if getattr(settings, "HORARIUM", {}).get("DATABASE") == connection.alias:
        asyncio.run(_made(database_url(connection.alias, connection.settings_dict)))


async def _made(url: str) -> None:
    store = make_store(url)
    await store.open()
    await store.close()


class Migration(migrations.Migration):
    """The first."""

    atomic = False
    operations = (
        migrations.RunPython(make_schema, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Dashboard",
            fields=[("id", models.BigAutoField(primary_key=True))],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    )
