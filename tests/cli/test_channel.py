"""The result of `horarium channel test`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from horarium.cli import channel
from horarium.cli.shell import Server
from horarium.errors import HorariumError
from horarium.wire.views import RunView


def shown(state: str, result: Any) -> None:
    run = SimpleNamespace(id="R", state=state, result=result, error=None)
    channel._show_sent(cast(Server, SimpleNamespace(as_json=False)), "ops", cast(RunView, run))


def test_a_message_that_one_recipient_does_not_get_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HorariumError, match=r"not for bob@example.org \(550 no such user\)"):
        shown("completed", {"events": 1, "told": 1, "refused": {"bob@example.org": "550 no such user"}})
    shown("completed", {"events": 1, "told": 1})
    assert capsys.readouterr().out == "Channel ops took the message.\n"
