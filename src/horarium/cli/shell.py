"""The common part of all commands: lazy loading, `--json`, how errors are said and which status they end with."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
from click.exceptions import Exit

from horarium.errors import HorariumError, InvalidSetting

if TYPE_CHECKING:
    from horarium.cli.output import Column


SERVER = ("url", "api_key", "as_json")


def with_options(options: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options to a function that becomes a command, in their order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def group(title: str, options: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options to a function that becomes a command, as one section of its help."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        before = {parameter.name for parameter in parameters(command)}
        command = with_options(options)(command)
        names = [parameter.name for parameter in parameters(command) if parameter.name not in before]
        groups: dict[str, str] = getattr(command, "__horarium_groups__", {})
        command.__horarium_groups__ = {**groups, **{str(name): title for name in names}}  # type: ignore[attr-defined]
        return command

    return add


def parameters(command: Callable[..., Any]) -> list[click.Parameter]:
    """The parameters that options have added to a function."""
    return list(getattr(command, "__click_params__", []))


class Grouped(click.Command):
    """A command whose options are shown by group, in the order in which they were declared."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._groups: dict[str, str] = getattr(how.get("callback"), "__horarium_groups__", {})

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if not isinstance(parameter, click.Option):
                continue
            record = parameter.get_help_record(context)
            if record is not None:
                sections.setdefault(self._title(parameter), []).append(record)
        for title in sorted(sections, key=lambda title: title == "Server and output"):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def _title(self, parameter: click.Parameter) -> str:
        name = str(parameter.name)
        is_shared = name in SERVER or "--help" in parameter.opts
        return self._groups.get(name, "Server and output" if is_shared else "Options")


FAILED, USAGE, INTERRUPTED = 1, 2, 130
HELP_COLUMNS_MAX, SUMMARY_CHARS_MAX = 110, 200

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")


START_SECONDS, START_PAUSE = 3.0, 0.1
LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY_HINT = " Here: --api-key KEY, HORARIUM_API_KEY, or `horarium login`"
COME_FIRST = ("--json", "--url", "--api-key")
"""Flags that may stand before the command."""


class Lazy(click.Group):
    """A group whose errors end in one sentence. `commands`: the place of those that are imported when they are called,
    and what each does."""

    def __init__(
        self,
        *,
        commands: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Iterable[str]] | None = None,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self._elsewhere = commands or {}
        self._sections = sections

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self._elsewhere, *self.commands]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._elsewhere:
            return self.commands.get(name)
        module, _, attribute = self._elsewhere[name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, args)
        except click.UsageError:
            raise click.UsageError(_no_command(args[0], self.list_commands(context)), context) from None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in (self._sections or {"Commands": self.list_commands(context)}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in names])

    def _summary(self, name: str) -> str:
        """The table's, or the first sentence of its help."""
        if name in self._elsewhere:
            return self._elsewhere[name][1]
        return self.commands[name].get_short_help_str(SUMMARY_CHARS_MAX)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **how: Any) -> NoReturn:
        given = _in_order(list(sys.argv[1:] if args is None else args))
        how["standalone_mode"] = False
        how.setdefault("prog_name", "horarium")
        how.setdefault("max_content_width", HELP_COLUMNS_MAX)
        sys.exit(_status(lambda: super(Lazy, self).main(given, *rest, **how), "--json" in given))


def _in_order(args: list[str]) -> list[str]:
    """`horarium help job add` as `horarium job add --help`, and `horarium --url URL job list` with its flags at the
    end."""
    if args[:1] == ["help"]:
        return [*args[1:], "--help"]
    begin = 0
    while begin < len(args) and (name := args[begin].partition("=")[0]) in COME_FIRST:
        begin += 1 if name == "--json" or "=" in args[begin] else 2
    flags, rest = args[:begin], args[begin:]
    at = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:at], *flags, *rest[at:]] if rest else args


def _status(command: Callable[[], Any], as_json: bool) -> int:
    """Run a command; its exit status."""
    try:
        answer = command()
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        return _say(_usage(error), "usage", USAGE, as_json)
    except click.ClickException as error:
        return _say(error.format_message(), "failed", FAILED, as_json)
    except InvalidSetting as error:
        return _say(error.message, error.code, USAGE, as_json, error.field)
    except HorariumError as error:
        hint = KEY_HINT if error.code == "unauthorized" and not as_json else ""
        return _say(error.message + hint, error.code, FAILED, as_json, error.field)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; nothing more can be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _say(message: str, code: str, status: int, as_json: bool, field: str | None = None) -> int:
    from horarium.cli.output import say

    if as_json:
        problem = {"type": f"urn:horarium:problem:{code}", "title": code, "detail": message, "code": code}
        text = json.dumps(problem if field is None else {**problem, "field": field})
    else:
        text = f"Error: {message}"
    say(text, err=True)
    return status


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip()
    if error.ctx is None:
        return message
    end = "" if message.endswith(("?", ".")) else "."
    return f"{message}{end} Try: {error.ctx.command_path} --help"


def _no_command(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"There is no command {name!r}; {hint}"


def version_option() -> click.Option:
    """`--version`."""

    def show(context: click.Context, option: click.Parameter, given: bool) -> None:
        if given and not context.resilient_parsing:
            from horarium.model.version import version

            click.echo(f"horarium {version()}")
            context.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version."
    )


class Server:
    """The server that a command asks, and how the command answers."""

    def __init__(self, url: str, api_key: str | None, as_json: bool) -> None:
        self._place = url, api_key
        self.as_json = as_json

    @cached_property
    def client(self) -> Any:
        """A client of it, until the command ends."""
        return click.get_current_context().with_resource(connect(*self._place))

    def tell(self, answer: Any, text: str | Callable[[], object]) -> None:
        """One answer, for programs or for people: a text, or what prints it."""
        from horarium.cli.output import print_json, say

        if self.as_json:
            print_json(answer)
        elif callable(text):
            text()
        else:
            say(text)

    def tell_all(
        self, answers: Iterable[Any], columns: Sequence[Column], none: str, shown: Iterable[Any] | None = None
    ) -> None:
        """A list, for programs, or for people in rows; `none` says what to do where there are none. `shown`: what
        people see instead of the answers."""
        from horarium.cli.output import print_json_list, print_table

        if self.as_json:
            print_json_list(answers)
        else:
            print_table(columns, answers if shown is None else shown, none)


def on_server(command: Callable[..., T], flag: str = "--url") -> Callable[..., T]:
    """A command that asks a server: with the options for it. `flag`: names the server."""

    @wraps(command)
    def called(url: str, api_key: str | None, as_json: bool, **given: Any) -> T:
        return command(Server(url, api_key, as_json), **given)

    return server_options(called, flag)


def json_option(command: Function) -> Function:
    """`--json`, as every command has it."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too, on stderr.")(command)


def server_options(command: Function, flag: str = "--url") -> Function:
    """Which server to talk to, and `--json`."""
    command = json_option(command)
    command = click.option(
        "--api-key", envvar="HORARIUM_API_KEY", metavar="KEY", help="Key of the API (HORARIUM_API_KEY)."
    )(command)
    return url_option(command, flag)


def url_option(command: Function, flag: str = "--url") -> Function:
    return click.option(
        flag,
        "url",
        envvar="HORARIUM_URL",
        default="http://127.0.0.1:8080",
        show_default=True,
        metavar="URL",
        help="The server (HORARIUM_URL).",
    )(command)


def _await_start(url: str) -> None:
    """A server on this machine that is being started (`horarium serve &`) is waited for, as long as it refuses."""
    import socket
    import time
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return
    until = time.monotonic() + START_SECONDS
    while host in LOOPBACK:
        try:
            socket.create_connection((host, port), timeout=START_SECONDS).close()
        except ConnectionRefusedError:
            if time.monotonic() < until:
                time.sleep(START_PAUSE)
                continue
        except OSError:
            pass
        return


def connect(url: str, api_key: str | None) -> Any:
    """A client of that server: with this key, or in the name of who is signed in there."""
    from horarium.cli.signed_in import access_token
    from horarium.client.api import Client

    _await_start(url)
    return Client(url, api_key or access_token(url), attempts_max=3)
