"""The faults of content that msgspec refused: every fault, with its place and the nearest known name.

msgspec stops at the first fault and does not say which names it would have known. Valid content never comes here: the
walk below runs only after a refusal, over the same types, so that the two can't disagree about validity. The API and
the library both answer with the faults found here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import FieldInfo

from horarium.clock import INSTANT_MAX, Instant, to_instant
from horarium.errors import CallerError, InvalidRequest
from horarium.triggers.words import nearest, quote, say_patterns

FAULTS_MAX = 20
"""Faults listed in one answer."""
TRIGGER_IN_WORDS = (
    'expected an object, such as {"type": "phrase", "text": "every day at 9am"} or '
    '{"type": "cron", "expression": "0 9 * * *"}; the command has --when and --cron'
)
DIGITS_MAX = 4_000
"""Digits of a whole number that are read; Python itself stops a little later."""


class Fault(Struct, frozen=True):
    """One fault of the input: its place, and the expected form."""

    field: str
    message: str


def find_faults(value: Any, kind: Any, *, strict: bool = True, path: str = "") -> list[Fault]:
    """The faults of a value that should be a `kind`; at most 20, and none if it is one. `path`: where the value is."""
    return list(islice(_walk(value, kind, path, strict), FAULTS_MAX))


def converted(value: Any, kind: Any, path: str = "", refusal: type[CallerError] = InvalidRequest) -> Any:
    """Plain data as a value of that kind. Raises the refusal, which names each wrong field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        faults = find_faults(value, kind, path=path) or [fault_of(error)]
        raise refusal(say_faults(faults), field=faults[0].field or None) from None


def instant_of(moment: datetime, field: str, refusal: type[CallerError] = InvalidRequest) -> Instant:
    """The instant that was given. Raises the refusal for one that can't be kept."""
    instant = to_instant(moment)
    if not 0 <= instant <= INSTANT_MAX:
        raise refusal(f"{field}: {moment.isoformat()} lies outside of the years 1970 to 2200", field=field)
    return instant


def check_size(field: str, text: bytes | None, limit: int) -> None:
    """Raises InvalidRequest for text that is too long to be kept."""
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {limit:,} are kept", field=field)


def unknown_names(given: Iterable[str], known: Sequence[str], path: str = "", what: str = "field") -> Iterator[Fault]:
    """A fault for each name that is not known, with the nearest one that is."""
    for name in given:
        if name not in known:
            near = nearest(name, known) or f"; known: {', '.join(known)}"
            yield Fault(_join(path, _said(name)), f"there is no such {what}{near}")


def say_faults(faults: Sequence[Fault]) -> str:
    """All of them in one message."""
    return "; ".join(f"{fault.field}: {fault.message}" if fault.field else fault.message for fault in faults)


def fault_of(error: msgspec.ValidationError) -> Fault:
    """msgspec's message (`Expected ... - at `$.path``) as a fault."""
    text, _, place = str(error).partition(" - at `$")
    return Fault(place.rstrip("`").lstrip("."), _plain(text))


def numbers_too_long(body: bytes) -> list[Fault]:
    """The whole numbers of a JSON text that have too many digits to be read, each with its place: msgspec knows the
    place of none. None of them where the text is not JSON besides."""
    try:
        value = json.loads(body, parse_int=_parse)
    except (ValueError, RecursionError):
        return []
    return list(islice(_long_numbers(value, ""), FAULTS_MAX))


class _Long(str):
    """The digits of a number that is not read."""


def _parse(digits: str) -> int | _Long:
    return _Long(digits) if len(digits) > DIGITS_MAX else int(digits)


def _long_numbers(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, _Long):
        yield Fault(path, f"a number of {len(value.lstrip('-')):,} digits; at most {DIGITS_MAX:,} are read")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _long_numbers(item, _join(path, _said(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _long_numbers(item, f"{path}[{index}]")


def _walk(value: Any, kind: Any, path: str, strict: bool) -> Iterator[Fault]:
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(inner) is dict and isinstance(value, Mapping):
        found = [fault for name, item in value.items() for fault in _walk_entry(name, item, inner, path, strict)]
        yield from found or _own_fault(value, kind, path, strict)
        return
    if get_origin(inner) in (list, tuple, Sequence) and isinstance(value, list | tuple):
        each = get_args(inner)[0]
        found = [fault for at, item in enumerate(value) for fault in _walk(item, each, f"{path}[{at}]", strict)]
        yield from found or _own_fault(value, kind, path, strict)
        return
    struct = _struct_for(value, inner)
    if struct is None or not isinstance(value, dict):
        yield from _own_fault(value, kind, path, strict)
        return
    yield from _walk_struct(value, struct, path, strict)


def _walk_entry(name: Any, item: Any, kind: Any, path: str, strict: bool) -> Iterator[Fault]:
    key, kind = get_args(kind)
    if _is_enum(key):
        found = [] if name in [each.value for each in key] else list(_own_fault(name, key, path, strict))
    else:
        found = list(_own_fault(name, key, _join(path, quote(name)), strict))
    return iter(found) if found else _walk(item, kind, _join(path, _said(name)), strict)


def _said(name: Any) -> str:
    return name if isinstance(name, str) and name.isidentifier() else quote(name)


def _walk_struct(value: dict[str, Any], struct: type[Struct], path: str, strict: bool) -> Iterator[Fault]:
    fields = fields_of(struct)
    tag = struct.__struct_config__.tag_field
    known = [*fields, tag] if tag else list(fields)
    yield from unknown_names(value, known, path)
    for name, field in fields.items():
        if name == "trigger" and isinstance(value.get(name), str) and get_origin(field.type) is dict:
            yield Fault(_join(path, name), TRIGGER_IN_WORDS)
        elif name in value:
            yield from _walk(value[name], field.type, _join(path, name), strict)
        elif field.required:
            yield Fault(_join(path, name), "is missing; it must be given")


@cache
def fields_of(struct: type[Struct]) -> dict[str, FieldInfo]:
    """By the names on the wire. To find out their types costs more than all the rest."""
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def _own_fault(value: Any, kind: Any, path: str, strict: bool) -> Iterator[Fault]:
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        said = _choices(value, kind) or _plain(text) + _example(value, kind)
        yield Fault(_join(path, place.rstrip("`").lstrip(".")), said)


def _example(value: Any, kind: Any) -> str:
    """An object that would do, where one was expected: its first default that says something, or what it must have."""
    struct = None if isinstance(value, dict) else _struct_for(value, kind)
    if struct is None:
        return ""
    fields = fields_of(struct)
    if required := [name for name, field in fields.items() if field.required]:
        return f"; give an object with {', '.join(required)}"
    told = ({name: each.default} for name, each in fields.items() if isinstance(each.default, int | float | str))
    example = next(told, None)
    return "" if example is None else f"; give an object, such as {json.dumps(example)}"


def _plain(text: str) -> str:
    return say_patterns(text[:1].lower() + text[1:].replace("`", ""))


def _choices(value: Any, kind: Any) -> str:
    """The allowed values, where that is a short list."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    given_kinds = [each for each in get_args(kind) if each is not UnsetType]
    if get_origin(kind) in (Union, UnionType) and len(given_kinds) == 1:
        (kind,) = given_kinds
    tags = _tags(kind)
    if tags and isinstance(value, dict):
        field, names = next(iter(tags.values())).__struct_config__.tag_field, [str(tag) for tag in tags]
        if field not in value:
            return f"`{field}` is missing; expected one of {', '.join(names)}"
        given = value[field]
    elif _is_enum(kind):
        names, given = [str(choice.value) for choice in kind], value
    elif get_origin(kind) is Literal:
        names, given = [str(choice) for choice in get_args(kind)], value
    else:
        return ""
    hint = nearest(given, names) if isinstance(given, str) else ""
    return f"expected one of {', '.join(names)}, not {quote(given)}{hint}"


def _struct_for(value: Any, kind: Any) -> type[Struct] | None:
    """The struct that this value should be, if it should be one."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    if get_origin(kind) not in (Union, UnionType):
        return None
    tags = _tags(kind)
    if tags:
        field = next(iter(tags.values())).__struct_config__.tag_field
        given = value.get(field) if isinstance(value, dict) else None
        return tags.get(given) if isinstance(given, str) else None
    structs = [each for each in get_args(kind) if isinstance(each, type) and issubclass(each, Struct)]
    return structs[0] if len(structs) == 1 else None


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _tags(kind: Any) -> dict[Any, type[Struct]]:
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    structs = [each for each in members if isinstance(each, type) and issubclass(each, Struct)]
    return {each.__struct_config__.tag: each for each in structs if each.__struct_config__.tag is not None}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else path + name
