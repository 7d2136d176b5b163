"""The way from Django's admin to the dashboard, whose address `HORARIUM["DASHBOARD"]` is."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect

from horarium.contrib.django.models import Dashboard


class DashboardAdmin(admin.ModelAdmin):
    """Its list is the dashboard itself, elsewhere."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """With the permission, once there is an address."""
        return bool(_address()) and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """It can only be viewed."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """It can only be viewed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """It can only be viewed."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseRedirect:
        """Go there."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(_address())


def _address() -> str:
    address: str = settings.HORARIUM.get("DASHBOARD") or ""
    return address


admin.site.register(Dashboard, DashboardAdmin)
