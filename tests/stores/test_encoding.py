"""Ids that are encoded and decoded together are as each alone, whatever is among them; and what counts as alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.model import Disposition, RunChange, State, uuid7
from horarium.stores.encoding import (
    DISPOSITION_NUMBERS,
    KIND_MIN,
    MANY,
    are_alike,
    decode_id,
    decode_id_blobs,
    decode_id_digits,
    decode_ids,
    encode_id,
    encode_ids,
    kinds_of_end,
)
from horarium.testing.values import NOW, a_run, completed

IDS = [uuid7(NOW + number, bytes([number] * 10)) for number in range(MANY)]
ODD = ("", "x" * 36, IDS[0].upper(), IDS[0][:-1], IDS[0][:-1] + " ", IDS[0].replace("-", "0"), "é" * 36, "-" * 36)


@given(st.lists(st.sampled_from((*IDS, *ODD)) | st.text(max_size=40), max_size=8), st.booleans())
def test_ids_encoded_together_are_as_each_alone(some: list[str], many: bool) -> None:
    texts = [*some, *(IDS if many else [])]
    blobs = [encode_id(text) for text in texts]
    assert encode_ids(texts) == blobs
    assert decode_id_blobs(blobs) == [decode_id(blob) for blob in blobs]
    digits = [blob.hex() for blob in blobs]
    assert decode_ids(digits) == decode_ids([each.upper() for each in digits]) == list(map(decode_id_digits, digits))


def test_ids_of_other_lengths_do_not_make_up_for_one_another() -> None:
    longer, shorter = IDS[0] + "0", IDS[1][1:]
    texts = [longer, shorter, *IDS]
    assert encode_ids(texts) == [encode_id(text) for text in texts]


def test_attempts_that_end_together_are_alike() -> None:
    runs = [a_run(number, payload=b"%d" % number) for number in range(3)]
    changes = [completed(replace(run, result=b"%d" % number)) for number, run in enumerate(runs)]
    assert are_alike(changes)
    assert are_alike(changes[:1])


@pytest.mark.parametrize(
    "change",
    [
        {"state": State.FAILED}, {"worker": "w"}, {"lease_expires_at": 1}, {"finished_at": 1}, {"progress": b"1"},
        {"error": "e"}, {"disposition": Disposition.RAN}, {"start_by": 1}, {"token": 7},
    ],
    ids=str,
)  # fmt: skip
def test_what_differs_in_anything_else_is_not_alike(change: dict[str, object]) -> None:
    one, other = completed(a_run(1)), completed(a_run(2))
    other = replace(other, run=replace(other.run, **change))
    assert not are_alike([one, other])


@pytest.mark.parametrize("held", [True, False])
def test_what_expects_another_lease_is_not_alike(held: bool) -> None:
    one, other = completed(a_run(1)), completed(a_run(2), held=held)
    assert not are_alike([one, other])
    assert not are_alike([one, RunChange(completed(a_run(2)).run, 0, State.CANCELLING)])


def test_ends_that_are_as_claimed_are_cut_where_their_own_values_change() -> None:
    ends = [replace(completed(a_run(number, due_at=NOW - number)), as_claimed=True) for number in range(2 * KIND_MIN)]
    later = [replace(end, run=replace(end.run, started_at=NOW)) for end in ends[KIND_MIN:]]
    assert kinds_of_end(ends) == [ends]
    assert kinds_of_end([*ends[:KIND_MIN], *later]) == [ends[:KIND_MIN], later]


def test_ends_of_which_one_is_not_as_claimed_are_not_cut() -> None:
    ends = [replace(completed(a_run(number)), as_claimed=number > 0) for number in range(2 * KIND_MIN)]
    assert kinds_of_end(ends) == []


def test_ends_of_too_many_kinds_are_not_cut() -> None:
    changes = [replace(completed(a_run(number)), as_claimed=True) for number in range(2 * KIND_MIN - 1)]
    kinds = [replace(change, run=replace(change.run, started_at=number % 2)) for number, change in enumerate(changes)]
    assert kinds_of_end(kinds) == []


def test_each_disposition_that_a_run_may_have_has_a_number() -> None:
    derived = {Disposition.EXCLUDED, Disposition.DST_GAP, Disposition.LIMIT_REACHED}
    assert set(Disposition) - derived == DISPOSITION_NUMBERS.keys() - {None}
