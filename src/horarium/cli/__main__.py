"""`python -m horarium.cli`."""

from __future__ import annotations

from horarium.cli import main

main()
