"""The dashboard, as Django's admin and its permissions know it: a model without a table."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """Who may view it sees the link in the admin."""

    id = models.BigAutoField(primary_key=True)

    class Meta:
        """It is shown, and that is all."""

        managed = False
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "dashboard"
