"""Where settings come from: a YAML 1.2 file, `HORARIUM_*` variables, flags; later ones win over the defaults and over
each other. A name that is not in the table is an error, never ignored: a misspelt setting must not count as
set. Any secret can be read from a file, so that it need not be in a process list or an environment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from horarium.delivery.secrets import ENV_PREFIX_DEFAULT
from horarium.errors import InvalidSetting
from horarium.server.config import ENV_PREFIX, MASK, Setting, Settings, table
from horarium.server.documents import key_lines, read_yaml

ENV_OF_OTHERS = ("HORARIUM_URL", "HORARIUM_API_KEY", "HORARIUM_CONFIG")
"""Variables with the prefix that are not settings of a server: those of the client, and the file's name."""
ENV_OF_COMMANDS = (
    "HORARIUM_RUN", "HORARIUM_JOB", "HORARIUM_QUEUE", "HORARIUM_ATTEMPT", "HORARIUM_FIRE_AT",
    "HORARIUM_IDEMPOTENCY_KEY",
)  # fmt: skip
"""What a command finds out about its run from; it may call `horarium` itself."""
NO_SETTINGS = frozenset({*ENV_OF_OTHERS, *ENV_OF_COMMANDS})
ENV_PREFIX_OF_TESTS = "HORARIUM_TEST_"
FILE_BYTES_MAX = 1024 * 1024
SECRET_BYTES_MAX = 64 * 1024
Given = Iterator[tuple[Setting, str, Any, str]]
"""Setting, the name it is given under, the value, and where it was found."""


def load_settings(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: str | Path | None = None
) -> Settings:
    """The settings from all sources. `flags`: by name; None counts as not given. Raises InvalidSetting, which names the
    setting, its source, the given value and the expected one."""
    values: dict[str, Any] = {}
    given = [_from_file(Path(file))] if file is not None else []
    given += [_from_env(env or {}), _from_flags(flags or {})]
    for source in given:
        values |= _read(source)
    return Settings(**values)


def _read(source: Given) -> dict[str, Any]:
    """The checked values of one source."""
    values: dict[str, Any] = {}
    for setting, name, raw, place in source:
        if setting.name in values:
            twice = f"{setting.name} and {setting.file_name} are both given in one place; give one of them"
            raise InvalidSetting(twice, field=setting.name)
        if name == setting.file_name:
            raw, place = _secret(setting, raw, place), f"{raw} (named in {place})"
        values[setting.name] = _convert(setting, raw, place)
    return values


def _secret(setting: Setting, raw: Any, place: str) -> str:
    """The secret that a file holds."""
    if not isinstance(raw, str):
        raise InvalidSetting(f"{setting.file_name}: {raw!r} given in {place}; expected the name of a file")
    try:
        data = Path(raw).read_bytes()[: SECRET_BYTES_MAX + 1]
        text = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = f"{setting.file_name}: {raw!r} given in {place} can't be read: {why}"
        raise InvalidSetting(message, field=setting.file_name) from None
    if not text or len(data) > SECRET_BYTES_MAX:
        why = f"is longer than {SECRET_BYTES_MAX:,} bytes" if text else "is empty"
        raise InvalidSetting(f"{setting.file_name}: {raw!r} given in {place} {why}", field=setting.file_name)
    return ",".join(text.split()) if setting.is_list else text


def _by_name() -> dict[str, Setting]:
    """Each setting under its names: its own, and that of the file which may hold it."""
    own = {setting.name: setting for setting in table()}
    return own | {setting.file_name: setting for setting in table() if setting.file_name}


def _from_file(path: Path) -> Given:
    text = _file_text(path)
    documents = read_yaml(text, str(path), InvalidSetting)
    if not documents:
        return
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise InvalidSetting(f"{path}: expected one mapping of settings, such as `port: 8080`")
    lines = key_lines(text)
    by_name = _by_name()
    for name, raw in documents[0].items():
        place = f"{path}:{lines.get(str(name), 1)}"
        if name not in by_name:
            raise _unknown(str(name), place, list(by_name))
        yield by_name[name], name, raw, place


def _file_text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidSetting(f"config: {path} is longer than {FILE_BYTES_MAX:,} bytes", field="config")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"config: {path} can't be read: {why}", field="config") from None


def _from_env(env: Mapping[str, str]) -> Given:
    by_env = {ENV_PREFIX + name.upper(): (name, setting) for name, setting in _by_name().items()}
    secrets = ENV_PREFIX_DEFAULT, env.get("HORARIUM_SECRETS_ENV_PREFIX") or ENV_PREFIX_DEFAULT
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in NO_SETTINGS or name.startswith(ENV_PREFIX_OF_TESTS):
            continue
        if name not in by_env:
            if name.startswith(secrets):
                continue
            raise _unknown(name, "the environment", [*by_env, *ENV_OF_OTHERS])
        own_name, setting = by_env[name]
        if not env[name].strip():
            raise InvalidSetting(f"{name} is set but empty; give {setting.expected}, or unset it", field=name)
        yield setting, own_name, env[name], name


def _from_flags(flags: Mapping[str, Any]) -> Given:
    by_name = _by_name()
    for name, raw in flags.items():
        if name not in by_name:
            raise _unknown(name, "the flags", list(by_name))
        if raw is None or raw == ():
            continue
        if by_name[name].is_list and not _split(raw):
            # `--api-key "$KEY"` with KEY unset must not open a server that was meant to be locked.
            raise InvalidSetting(
                f"{by_name[name].flag} is given but empty; give {by_name[name].expected}, or leave it out", field=name
            )
        setting = by_name[name]
        yield setting, name, raw, setting.flag if name == setting.name else setting.file_flag


def _unknown(name: str, place: str, known: list[str]) -> InvalidSetting:
    from difflib import get_close_matches

    near = get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return InvalidSetting(f"there is no setting {name!r} (in {place}); {hint}", field=name)


def _convert(setting: Setting, raw: Any, place: str) -> Any:
    plain = _split(raw) if setting.is_list else raw
    try:
        value = msgspec.convert(plain, setting.type, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise _refused(setting, raw, place) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(setting, raw, place)
    return tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value


def _split(raw: Any) -> Any:
    """A text, or each text of a list, parted at its commas; a mapping (also as JSON) as `NAME=VALUE`."""
    if isinstance(raw, dict):
        return [_pair(name, value) for name, value in raw.items()]
    if isinstance(raw, str):
        if raw.lstrip().startswith("{"):
            with suppress(msgspec.DecodeError):
                return _split(msgspec.json.decode(raw))
        return [part.strip() for part in raw.split(",") if part.strip()]
    if isinstance(raw, list | tuple) and all(isinstance(part, str) for part in raw):
        return [part for text in raw for part in _split(text)]
    return raw


def _pair(name: Any, value: Any) -> Any:
    """A role, also one that is bound to labels, in one text; what is neither stays as it is, and is refused."""
    if (
        isinstance(value, dict)
        and value.keys() == {"role", "labels"}
        and isinstance(value["labels"], dict)
        and value["labels"]
    ):
        return ";".join([f"{name}={value['role']}", *(f"{label}={text}" for label, text in value["labels"].items())])
    return f"{name}={value}" if isinstance(value, str) else value


def _refused(setting: Setting, raw: Any, place: str) -> InvalidSetting:
    given = MASK if setting.secret == "all" else repr(setting.shown(raw))
    return InvalidSetting(f"{setting.name}: {given} given in {place}; expected {setting.expected}", field=setting.name)
