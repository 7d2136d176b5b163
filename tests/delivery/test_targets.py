"""What is checked of an HTTP target when a job is defined."""

from base64 import b64encode
from collections.abc import Mapping

import pytest

from horarium.delivery.http import HttpDelivery, check_target
from horarium.errors import InvalidJob, InvalidSetting
from horarium.model import (
    HEADER_CHARS_MAX,
    HEADERS_MAX,
    HttpTarget,
)
from tests.delivery.receiver import StoppedClock


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "x"}, "set by Horarium"),
        ({"content-LENGTH": "1"}, "set by Horarium"),
        ({"Transfer-Encoding": "chunked"}, "set by Horarium"),
        ({"Webhook-Signature": "x"}, "set by Horarium"),
        ({"horarium-token": "x"}, "set by Horarium"),
        ({"Idempotency-Key": "x"}, "set by Horarium"),
        ({"X": "a\r\nHost: b"}, "line break"),
        ({"X": "a\x00"}, "line break"),
        ({"X": "\ud800"}, "line break"),
        ({"X Y": "a"}, "not a header name"),
        ({"": "a"}, "not a header name"),
        ({"X:": "a"}, "not a header name"),
        ({"X": "a", "x": "b"}, "twice"),
        ({"X": "a" * HEADER_CHARS_MAX}, "longer"),
        ({f"X{number}": "" for number in range(HEADERS_MAX + 1)}, "at most"),
    ],
)
def test_a_header_that_is_not_the_user_s_is_refused(headers: Mapping[str, str], reason: str) -> None:
    with pytest.raises(InvalidJob, match=reason) as caught:
        check_target(HttpTarget("http://example.com", headers=dict(headers)), False)
    assert caught.value.field == "target.headers"


@pytest.mark.parametrize(
    ("target", "field_name"),
    [
        (HttpTarget("http://10.0.0.1"), "target.url"),
        (HttpTarget("http://example.com", cancel_url="http://10.0.0.1"), "target.cancel_url"),
        (HttpTarget("http://example.com", method="CONNECT"), "target.method"),
        (HttpTarget("http://example.com", signing_secret=b64encode(bytes(32)).decode()), "target.signing_secret"),
    ],
)
def test_each_part_of_a_target_is_checked(target: HttpTarget, field_name: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        check_target(target, False)
    assert caught.value.field == field_name


def test_a_full_set_of_headers_passes() -> None:
    headers = {f"X-{number:02}": "ü\t" * 10 for number in range(HEADERS_MAX - 1)}
    check_target(HttpTarget("http://example.com", headers={**headers, "X": "a" * (HEADER_CHARS_MAX - 1)}), False)


def test_a_server_secret_is_checked_at_the_start() -> None:
    with pytest.raises(InvalidSetting):
        HttpDelivery(StoppedClock(), signing_secret="short")
