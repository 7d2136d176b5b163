"""Whole numbers that were written with a fraction of zero.

JSON has one kind of number, and JSON Schema calls `75.0` an integer; some clients write every number so. A decoder
that is strict about `int` refuses it. What belongs to a payload is left as it was sent: only fields that are whole
numbers by their type are looked at.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from msgspec import Struct

from horarium.wire.faults import fields_of


def whole_numbers(value: Any, kind: Any) -> Any:
    """The value, with `75.0` as 75 wherever `kind` has a whole number."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and has_whole(kind) else value
    if isinstance(value, list):
        items = next((get_args(each)[0] for each in _choices(kind) if get_origin(each) is list), None)
        return value if items is None else [whole_numbers(each, items) for each in value]
    if isinstance(value, dict):
        struct = _struct(value, _choices(kind))
        fields = {} if struct is None else fields_of(struct)
        types = {name: fields[name].type for name in value if name in fields}
        return {name: whole_numbers(each, types.get(name, Any)) for name, each in value.items()} if types else value
    return value


def has_whole(kind: Any) -> bool:
    """Whether a number of this type must be a whole one."""
    return int in _choices(kind) and float not in _choices(kind)


def _struct(value: dict[str, Any], choices: tuple[Any, ...]) -> type[Struct] | None:
    """The struct that an object is meant to be."""
    structs = [each for each in choices if isinstance(each, type) and issubclass(each, Struct)]
    for struct in structs:
        config = struct.__struct_config__
        if config.tag_field is None or value.get(config.tag_field) == config.tag:
            return struct
    return None


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have, without annotations."""
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(choice for each in get_args(kind) for choice in _choices(each))
    return cast(tuple[Any, ...], (kind,))
