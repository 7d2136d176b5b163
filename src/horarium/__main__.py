"""The command `horarium`, and `python -m horarium`. Its parts are an extra: without them it says so in one line."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from horarium.cli import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "horarium":
            raise
        sys.exit(f"horarium: the command needs {error.name}, which is not installed; pip install 'horarium[server]'")
    command()


if __name__ == "__main__":
    main()
