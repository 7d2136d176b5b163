"""The diagram in the docs is the table in the model."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_state_diagram_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("lifecycle", ROOT / "tools" / "lifecycle.py")
    assert spec is not None
    assert spec.loader is not None
    lifecycle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lifecycle)
    text = lifecycle.PAGE.read_text()
    assert lifecycle.page(text) == text, "run: python tools/lifecycle.py --write"
