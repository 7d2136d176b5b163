"""From a run's args (JSON) to the arguments of a Python function, by the types that its parameters declare.

All that msgspec can make from JSON is taken: numbers, text, bool, None, datetime, date, time, timedelta, Decimal,
UUID, Enum, Literal, list, tuple, set, dict, unions, dataclasses, TypedDict, NamedTuple, attrs classes, Structs,
`Annotated[int, msgspec.Meta(ge=0)]`, and models of pydantic (2). A parameter without a type is given what the
JSON holds.

The run is given to the parameter that asks for it: declared as `RunContext`, or named `run` (without a type also
`ctx`, `context` or `_`); a function may do without.

The rule: args that a parameter needs must be there, args that no parameter takes are refused (unless the function has
`**others`), and types are checked, so that "5" is no int. Wrong args stay wrong: such a run is not tried again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, get_args

import msgspec
from msgspec import UNSET, UnsetType

from horarium.errors import InvalidJob, WrongArguments

Function = Callable[..., Any]

RUN_NAMES = ("run", "_run")
UNTYPED_RUN_NAMES = ("ctx", "context", "_")
"""These ask for the run where they are declared as nothing else."""

DEPTH_MAX = 50
"""How deep in a value numbers are looked at."""

_AT = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$")


def made_of(kind: Any, given: Any) -> Any:
    """The model of pydantic that plain data describe. Raises ValueError that names each fault."""
    if not hasattr(kind, "model_validate"):
        raise TypeError(f"expected `{getattr(kind, '__name__', kind)}`")
    try:
        return kind.model_validate(given)
    except ValueError as error:
        faults = error.errors() if hasattr(error, "errors") else []
        said = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in faults)
        raise ValueError("; ".join(said) or str(error)) from None


def plain_of(value: Any) -> Any:
    """A model of pydantic as plain data. Raises TypeError for what JSON can't hold."""
    if not hasattr(value, "model_dump"):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return value.model_dump(mode="json")


def json_of(value: Any, name: str) -> bytes:
    """As JSON text. Raises ValueError for what JSON can't hold."""
    try:
        text = msgspec.json.encode(value, enc_hook=plain_of)
        characters = text.decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"can't be written as JSON: {error}") from None
    if "null" in characters and (where := unwritable(value, name)) is not None:
        raise ValueError(f"can't be written as JSON: {where} is not a finite number")
    return text


def unwritable(value: Any, name: str, depth: int = 0) -> str | None:
    """Where the value holds a NaN or an infinity, which JSON does not have; None: nowhere that is looked at."""
    match value:
        case float():
            return None if isfinite(value) else name
        case Mapping():
            inner = ((f"{name}[{key!r}]", part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            inner = ((f"{name}[{index}]", part) for index, part in enumerate(value))
        case msgspec.Struct():
            inner = ((f"{name}.{field}", part) for field, part in msgspec.structs.asdict(value).items())
        case _:
            return None
    if depth >= DEPTH_MAX:
        return None
    return next((found for label, part in inner if (found := unwritable(part, label, depth + 1)) is not None), None)


class UnknownArgs(WrongArguments):
    """Args of names that the function does not know."""


class Arguments:
    """The parameters of one function beside the run. `by_position`: the run is the first of its arguments; `run_name`:
    the name of the parameter that is given the run (None: by position, or it asks for none). Raises InvalidJob for a
    function that can't be a handler."""

    __slots__ = ("_decoder", "_name", "_names", "_open", "_run", "_type", "by_position", "run_name")

    def __init__(self, name: str, function: Function) -> None:
        self._name = name
        parameters = _parameters(name, function)
        self._run = run = _asking(name, function, parameters)
        self.by_position = run is not None and run.kind in (run.POSITIONAL_ONLY, run.VAR_POSITIONAL)
        self.run_name = None if run is None or self.by_position else run.name
        others = [each for each in parameters if each is not self._run]
        self._open = any(each.kind is each.VAR_KEYWORD for each in others)
        fields = _fields(name, function, others)
        self._names = tuple(field for field, *_ in fields)
        self._type = msgspec.defstruct(
            "Args", fields, kw_only=True, forbid_unknown_fields=not self._open, module=__name__
        )
        try:
            self._decoder = msgspec.json.Decoder(self._type, dec_hook=made_of)
        except TypeError as error:
            raise InvalidJob(f"handler {name!r}: its arguments can't be made from JSON: {error}") from None

    @property
    def free(self) -> bool:
        """Whether the function takes nothing but the run, so that its args are its own business."""
        return self._run is not None and not self._names and not self._open

    @property
    def run(self) -> str | None:
        """The name of the parameter that is given the run."""
        return None if self._run is None else self._run.name

    def of(self, payload: bytes | None, args: Any) -> dict[str, Any]:
        """The keyword arguments for these args: `payload`, JSON text, or else `args`, plain values. Raises
        WrongArguments."""
        if self.free:
            return {}
        made = self._made(payload, args)
        taken = {name: value for name in self._names if (value := getattr(made, name)) is not UNSET}
        if self._open:
            given = msgspec.json.decode(payload) if payload is not None else args
            taken.update((name, value) for name, value in given.items() if name not in self._names)
        return taken

    def check(self, payload: bytes | None) -> None:
        """Raises WrongArguments if the function can't be called with these args, JSON text (None: with none)."""
        if not self.free:
            self._made(payload, {})

    def _made(self, payload: bytes | None, args: Any) -> Any:
        try:
            if payload is not None:
                return self._decoder.decode(payload)
            return msgspec.convert(args, self._type, dec_hook=made_of)
        except (msgspec.DecodeError, RecursionError) as error:
            kind = UnknownArgs if _UNKNOWN.match(str(error)) else WrongArguments
            raise kind(self._explain(str(error)), field="args") from None

    def _explain(self, error: str) -> str:
        """The message of msgspec, in the words of the caller's args."""
        at = _AT.match(error)
        if at is not None:
            what = at["what"]
            return f"argument {at['where']!r}: {what[:1].lower()}{what[1:]}"
        if missing := _MISSING.match(error):
            return f"argument {missing['name']!r} is missing"
        if unknown := _UNKNOWN.match(error):
            takes = ", ".join(self._names) or "none"
            return f"there is no argument {unknown['name']!r}; handler {self._name!r} takes {takes}"
        return f"args: {error[:1].lower()}{error[1:]}"


def _parameters(name: str, function: Function) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"handler {name!r}: its parameters can't be read: {error}") from None
    if parameters and parameters[0].name == "self" and inspect.isfunction(function):
        raise InvalidJob(f"handler {name!r}: it is a method without its object; give that of one, handler()(a.method)")
    return parameters


def _asking(name: str, function: Function, parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    """The parameter that is given the run. Raises InvalidJob for one of its name that is declared as something else."""
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        typed = parameter.annotation is not parameter.empty
        if "RunContext" in str(parameter.annotation) or (not typed and parameter.name in UNTYPED_RUN_NAMES):
            return parameter
        if parameter.name in RUN_NAMES:
            if (kind := _json_type(name, function, parameter)) is not None:
                raise InvalidJob(
                    f"handler {name!r}: its parameter {parameter.name!r} is given the run, and is declared as {kind}; "
                    "give it another name"
                )
            return parameter
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.VAR_POSITIONAL):
        return None
    return first if _json_type(name, function, first) is None else None


def _json_type(name: str, function: Function, parameter: inspect.Parameter) -> str | None:
    """The declared type of a parameter, if it is one that JSON gives, and so none that a run can be."""
    if parameter.annotation is parameter.empty:
        return None
    try:
        kind = _type_of(name, function, parameter)
        known = msgspec.inspect.type_info(kind)
    except Exception:  # imported for type checkers alone, perhaps: not for us to judge
        return None
    members = known.types if isinstance(known, msgspec.inspect.UnionType) else (known,)
    if any(isinstance(each, msgspec.inspect.AnyType | msgspec.inspect.CustomType) for each in members):
        return None
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _fields(
    name: str, function: Function, parameters: list[inspect.Parameter]
) -> list[tuple[str, Any] | tuple[str, Any, Any]]:
    """Each parameter as the field of a struct. One with a default may be left out, and keeps its own default."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        optional = parameter.default is not parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY:
            if optional:
                continue
            raise InvalidJob(f"handler {name!r}: parameter {parameter.name!r} can't be given by name; drop the `/`")
        kind = _type_of(name, function, parameter)
        if _is_foreign(kind):
            if optional:
                continue
            raise InvalidJob(f"handler {name!r}: parameter {parameter.name!r} is a {kind!r}, which JSON can't give")
        fields.append((parameter.name, kind | UnsetType, UNSET) if optional else (parameter.name, kind))
    return fields


def _type_of(name: str, function: Function, parameter: inspect.Parameter) -> Any:
    """The declared type; text (`from __future__ import annotations`) is read where the function was defined."""
    if parameter.annotation is parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    places = inspect.unwrap(getattr(function, "func", function))
    places = getattr(places, "__func__", places)
    if not hasattr(places, "__globals__"):
        places = type(places).__call__
    try:
        return eval(parameter.annotation, places.__globals__, _closure(places))
    except Exception as error:
        raise InvalidJob(
            f"handler {name!r}: the type {parameter.annotation!r} of parameter {parameter.name!r} can't be read "
            f"({error}); define or import it at the top of its module, outside of `if TYPE_CHECKING`"
        ) from None


def _closure(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells}


def _is_foreign(kind: Any) -> bool:
    """Whether this is a class of which nothing is known."""
    if hasattr(kind, "model_validate"):
        return False
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except Exception:
        return False
