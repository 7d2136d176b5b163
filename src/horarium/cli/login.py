"""`horarium login`, `logout`, `whoami`: in one's own name, with the tokens of an OpenID Connect issuer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from horarium.cli.output import labels_text, print_fields, print_json, say
from horarium.cli.shell import Server, json_option, on_server, url_option
from horarium.errors import HorariumError, InvalidSetting, NotFound

if TYPE_CHECKING:
    from horarium.client.sign_in import ClientAtIssuer, Discovery, Tokens

WAIT_SECONDS = 300.0


@click.command(
    help="""Sign in at the issuer that the server trusts, in a browser; later commands then act in your name.

The issuer sends the browser back to http://localhost:5556/callback, which it must know as an address of the client.
In a terminal without a browser, --device shows a code to enter elsewhere. Tokens lie in your configuration folder, for
you alone to read, and are refreshed when they end. Issuer and client are those that the server names, if left out.

\b
Examples:
  horarium login --url https://jobs.example.com
  horarium login --device
  horarium login --issuer https://id.example.com --client-id horarium
"""
)
@click.option("--issuer", metavar="URL", help="The OpenID Connect issuer; left out: the server's.")
@click.option("--client-id", metavar="ID", help="The client at the issuer; left out: the server's.")
@click.option(
    "--client-secret",
    envvar="HORARIUM_OIDC_CLIENT_SECRET",
    metavar="TEXT",
    help="Its secret, if it has one (HORARIUM_OIDC_CLIENT_SECRET).",
)
@click.option("--device", is_flag=True, help="Show a code to enter on another device, and wait.")
@click.option("--scope", metavar="TEXT", help="What to ask for; left out: openid offline_access.")
@click.option("--audience", metavar="TEXT", help="What the token is for; left out: the server's oidc_audience.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=5556, show_default=True, help="Where the browser comes back to."
)
@click.option("--no-browser", is_flag=True, help="Only print the address of the page.")
@url_option
@json_option
def login(
    issuer: str | None,
    client_id: str | None,
    client_secret: str | None,
    device: bool,
    scope: str | None,
    audience: str | None,
    port: int,
    no_browser: bool,
    url: str,
    as_json: bool,
) -> None:
    from horarium.cli.signed_in import SignedIn, keep
    from horarium.client.api import Client
    from horarium.client.sign_in import SCOPE_DEFAULT, ClientAtIssuer, discover

    place = {} if issuer and client_id and audience else _place(url, needed=issuer is None or client_id is None)
    asking = ClientAtIssuer(
        issuer=issuer or str(next(iter(place.get("authorization_servers", [])), "")),
        client_id=client_id or place.get("horarium_client_id") or "",
        client_secret=client_secret,
        scope=scope or SCOPE_DEFAULT,
        resource=audience or place.get("horarium_audience"),
    )
    if not asking.client_id:
        raise InvalidSetting(
            "client-id: give --client-id; the server names none (setting oidc_client_id)", field="client_id"
        )
    found = discover(asking.issuer)
    goes = f"The token will be good for {asking.resource or asking.client_id}, and is given to {url}."
    tokens = _by_device(asking, found, goes) if device else _by_browser(asking, found, goes, port, no_browser)
    with Client(url, tokens.access_token, attempts_max=3) as client:
        me = client.me()
    path = keep(url, SignedIn(client=asking, issuer=found, tokens=tokens))
    if as_json:
        print_json({**me, "url": url, "kept_in": str(path)})
    else:
        say(f"Signed in to {url} as {me['name']} ({_roles(me)}).")


def _place(url: str, *, needed: bool) -> dict[str, Any]:
    """The server's ways to sign in."""
    from horarium.client.api import Client

    with Client(url, attempts_max=3) as client:
        try:
            return _belongs(client.sign_in(), url)
        except NotFound:
            if needed:
                raise InvalidSetting(
                    f"{url} trusts no issuer (setting oidc_issuer); use a key: --api-key KEY", field="issuer"
                ) from None
        except HorariumError:
            if needed:
                raise
    return {}


def _belongs(place: dict[str, Any], url: str) -> dict[str, Any]:
    """The place, if it is that of the server that was asked (RFC 9728, 3.3): another could pass on what a third one
    says, and be given a token for that. Raises InvalidSetting."""
    resource = str(place.get("resource", ""))
    if _same_server(resource, url):
        return place
    raise InvalidSetting(
        f"the server at {url} calls itself {resource[:200]!r}, and a token for that one is not for this one; sign in "
        "there (--url), or have its `public_url` be this address",
        field="url",
    )


def _same_server(resource: str, url: str) -> bool:
    """Whether both name one server. Where a proxy ends TLS, the server does not know of it."""
    named, asked = urlsplit(resource), urlsplit(url)
    if (named.scheme, asked.scheme) not in {("http", "http"), ("https", "https"), ("http", "https")}:
        return False
    ports = {None, 80, 443} if asked.port in {None, 80, 443} else {asked.port}
    path = asked.path.rstrip("/")
    return named.hostname == asked.hostname and named.port in ports and named.path.rstrip("/") == path


def _by_device(asking: ClientAtIssuer, found: Discovery, goes: str) -> Tokens:
    from horarium.client.sign_in import ask_for_device, wait_for_device

    device = ask_for_device(asking, found)
    say(goes, err=True)
    say(f"Open {device.verification_uri} and enter the code {device.user_code}", err=True)
    if device.verification_uri_complete:
        say(f"or open {device.verification_uri_complete}", err=True)
    return wait_for_device(asking, found, device)


def _by_browser(asking: ClientAtIssuer, found: Discovery, goes: str, port: int, no_browser: bool) -> Tokens:
    import webbrowser

    from horarium.client.sign_in import CodeFlow, Listener

    flow = CodeFlow(asking, found, port)
    listener = Listener(flow.state, port)
    try:
        say(goes, err=True)
        say(f"Open this page to sign in: {flow.url}", err=True)
        if not no_browser:
            webbrowser.open(flow.url)
        return flow.tokens(listener.wait(WAIT_SECONDS))
    finally:
        listener.close()


@click.command(help="Forget the sign-in at a server, and have its issuer forget it.\n\n\b\nExample:\n  horarium logout")
@url_option
@json_option
def logout(url: str, as_json: bool) -> None:
    from horarium.cli.signed_in import forget
    from horarium.client.sign_in import revoke

    found = forget(url)
    revoked = False
    if found is not None and found.issuer.revocation_endpoint and found.tokens.refresh_token:
        try:
            revoked = revoke(found.client, found.issuer.revocation_endpoint, found.tokens.refresh_token)
        except HorariumError as error:
            say(f"The issuer was not told: {error.message}", err=True)
    if as_json:
        print_json({"url": url, "was_signed_in": found is not None, "revoked": revoked})
    else:
        say(f"Signed out of {url}." if found is not None else f"No one was signed in to {url}.")


@click.command(help="Show as whom the server knows you, and what you may do.\n\n\b\nExample:\n  horarium whoami --json")
@on_server
def whoami(server: Server) -> None:
    me = server.client.me()
    shown = {
        **{name: me[name] for name in ("name", "subject", "kind")},
        "roles": _roles(me),
        "scopes": ", ".join(me["scopes"]),
        "queues": "all" if me["queues"] is None else ", ".join(me["queues"]),
        "labels": " or ".join(map(labels_text, me.get("labels") or ())),
    }
    server.tell(me, lambda: print_fields(shown.items()))


def _roles(me: dict[str, Any]) -> str:
    return ", ".join(me["roles"]) or ", ".join(me["scopes"]) or "may do nothing"
