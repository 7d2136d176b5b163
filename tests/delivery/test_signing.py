"""Signatures, against the public reference implementation of Standard Webhooks."""

from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from horarium.delivery.signing import SECRETS_MAX, TOLERANCE_SECONDS, check_secret, new_secret, sign, verify
from horarium.errors import InvalidJob, InvalidSetting

OLD, NEW = new_secret(bytes(range(32))), new_secret(bytes(range(32, 64)))
NOW = 1_800_000_000


@given(
    st.binary(min_size=24, max_size=64),
    st.text("abcdef0123456789-", min_size=1),
    st.integers(0, 4_000_000_000),
    st.text(),
)
def test_the_reference_signs_the_same(entropy: bytes, message_id: str, seconds: int, body: str) -> None:
    secret = new_secret(entropy)
    reference = standardwebhooks.Webhook(secret).sign(message_id, datetime.fromtimestamp(seconds, UTC), body)
    assert sign(secret, message_id, seconds, body.encode()) == reference


def test_a_signature_is_verified() -> None:
    assert verify(OLD, "m", str(NOW), b"{}", sign(OLD, "m", NOW, b"{}"), now=NOW)


@pytest.mark.parametrize(
    ("message_id", "seconds", "body"), [("n", NOW, b"{}"), ("m", NOW + 1, b"{}"), ("m", NOW, b"{} ")]
)
def test_a_change_to_any_part_is_noticed(message_id: str, seconds: int, body: bytes) -> None:
    assert not verify(OLD, message_id, seconds, body, sign(OLD, "m", NOW, b"{}"), now=NOW)


@pytest.mark.parametrize(
    ("away", "accepted"),
    [
        (TOLERANCE_SECONDS, True),
        (-TOLERANCE_SECONDS, True),
        (TOLERANCE_SECONDS + 1, False),
        (-TOLERANCE_SECONDS - 1, False),
    ],
)
def test_the_timestamp_must_be_within_five_minutes(away: int, accepted: bool) -> None:
    assert verify(OLD, "m", NOW, b"", sign(OLD, "m", NOW, b""), now=NOW + away) is accepted


@pytest.mark.parametrize("timestamp", ["", "x", "-1", "1e9", "9" * 5_000, "１２３"])
def test_a_timestamp_that_is_no_number_is_refused(timestamp: str) -> None:
    assert not verify(OLD, "m", timestamp, b"", sign(OLD, "m", NOW, b""), now=NOW)


def test_during_a_rotation_either_side_may_be_first() -> None:
    both = f"{OLD} {NEW}"
    assert len(sign(both, "m", NOW, b"").split()) == 2
    for receiver in (OLD, NEW, both):
        assert verify(receiver, "m", NOW, b"", sign(both, "m", NOW, b""), now=NOW)
    assert verify(both, "m", NOW, b"", sign(NEW, "m", NOW, b""), now=NOW)
    assert not verify(OLD, "m", NOW, b"", sign(NEW, "m", NOW, b""), now=NOW)


@pytest.mark.parametrize("signature", ["", "v1", "v1,", "v2," + "A" * 44, "v1,é", "x " * 10_000])
def test_what_is_no_signature_is_refused(signature: str) -> None:
    assert not verify(OLD, "m", NOW, b"", signature, now=NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "secret",
        "whsec_",
        "whsec_???",
        "whsec_é",
        "whsec_AAAA",
        f"{OLD} nonsense",
        " ".join([OLD] * (SECRETS_MAX + 1)),
    ],
)
def test_a_bad_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_secret(text)
    assert caught.value.field == "signing_secret"
    assert OLD not in caught.value.message
    assert "nonsense" not in caught.value.message


def test_the_caller_names_the_field_and_the_error() -> None:
    with pytest.raises(InvalidJob) as caught:
        check_secret("x", field="target.signing_secret", error=InvalidJob)
    assert caught.value.field == "target.signing_secret"


@pytest.mark.parametrize("size", [24, 64])
def test_a_new_secret_passes_the_check(size: int) -> None:
    check_secret(new_secret(bytes(size)))


@pytest.mark.parametrize("size", [0, 23, 65])
def test_a_new_secret_needs_24_to_64_bytes(size: int) -> None:
    with pytest.raises(InvalidSetting):
        new_secret(bytes(size))
