"""Where requests may go: what is refused when a job is defined, and what the guard refuses at delivery."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import pytest

from horarium.delivery.addresses import Guard, Reach, RefusedAddress, check_url, parse_url, reach
from horarium.errors import InvalidJob
from horarium.model import URL_CHARS_MAX

REFUSED = [
    "http://127.0.0.1",
    "http://127.0.0.1:8080/x",
    "http://0",
    "http://0.0.0.0",
    "http://2130706433",
    "http://0x7f000001",
    "http://0x7f.1",
    "http://0X7F.1",
    "http://017700000001",
    "http://0177.0.0.1",
    "http://127.1",
    "http://127.0.0.1.",
    "http://[::1]",
    "http://[::]",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:169.254.169.254]",
    "http://[::127.0.0.1]",
    "http://[64:ff9b::7f00:1]",
    "http://[64:ff9b:1::1]",
    "http://[2002:7f00:1::]",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "http://[fe80::1]",
    "http://[fe80::1%25eth0]",
    "http://[fd00:ec2::254]",
    "http://[fc00::1]",
    "http://[fec0::1]",
    "http://[ff02::1]",
    "http://localhost",
    "http://localhost.",
    "http://LOCALHOST:80",
    "http://a.localhost",
    "http://10.0.0.1",
    "http://172.16.0.1",
    "http://192.168.1.1",
    "http://100.64.0.1",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.100.100.200",
    "http://168.63.129.16",
    "http://192.0.0.192",
    "http://198.18.0.1",
    "http://224.0.0.1",
    "http://240.0.0.1",
    "http://255.255.255.255",
    "http://127。0。0。1",
    "http://１２７.0.0.1",
    "http://①②⑦.0.0.1",
    "http://a@127.0.0.1",
    "http://user:pw@example.com",
    "http://good.example#@127.0.0.1",
    "http://good.example\\@127.0.0.1",
    "http://good.example/a b",
    "http://good.example/\r\nX: y",
    "http://good.example/\t",
    " http://good.example",
    "http://good.exa\u200bmple",
    "http://good.example/\x00",
    "http://good.example/\ud800",
    "file:///etc/passwd",
    "gopher://example.com",
    "ftp://example.com",
    "javascript:alert(1)",
    "//example.com",
    "example.com",
    "http:example.com",
    "http:///x",
    "http://",
    "https://?x",
    "http://example.com:0",
    "http://example.com:65536",
    "http://example.com:x",
    "http://exa%6dple.com",
    "http://{{job.name}}.example.com",
    "http://a..b",
    "http://" + "a" * 64 + ".com",
    "http://" + "a." * 127 + "com",
    "http://1.2.3.4.5",
    "http://256.1.1.1",
    "http://08.1.1.1",
    "http://0x7_f.1",
    "http://01_1.1",
    "http://[::1",
    "http://[1.2.3.4]",
    "http://\u2100.example",
    "http://example.com/" + "x" * URL_CHARS_MAX,
]


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_is_refused_at_definition(url: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        check_url(url, False)
    assert caught.value.field == "target.url"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.com", "example.com", 443, "/"),
        ("http://Example.COM.:8080/a?b=c", "example.com", 8080, "/a?b=c"),
        ("http://example.com?b", "example.com", 80, "/?b"),
        ("https://hooks_1.example.com/x", "hooks_1.example.com", 443, "/x"),
        ("https://bücher.example/ü", "xn--bcher-kva.example", 443, "/ü"),
        ("https://example。com/", "example.com", 443, "/"),
        ("http://134744072/", "8.8.8.8", 80, "/"),
        ("http://[2606:4700:0::1111]/", "2606:4700::1111", 80, "/"),
        ("HTTP://example.com/{{run.id}}", "example.com", 80, "/{{run.id}}"),
        ("http://example.com//a@b", "example.com", 80, "//a@b"),
    ],
)
def test_a_url_is_read_as_it_will_be_sent(url: str, host: str, port: int, path: str) -> None:
    check_url(url, False)
    endpoint = parse_url(url)
    assert (endpoint.host, endpoint.port, endpoint.path) == (host, port, path)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1", "http://localhost", "http://10.1.2.3", "http://[::1]", "http://0x7f.1"]
)
def test_private_targets_pass_where_they_are_allowed(url: str) -> None:
    check_url(url, True)


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254", "http://0", "http://[fd00:ec2::254]", "http://[::ffff:169.254.1.1]", "http://224.0.0.1"],
)
def test_metadata_and_nobody_s_addresses_are_never_allowed(url: str) -> None:
    with pytest.raises(InvalidJob, match="never"):
        check_url(url, True)


def test_the_refusal_names_the_address_and_the_setting() -> None:
    with pytest.raises(InvalidJob, match=r"127\.0\.0\.1 is not a public address; .*--allow-private-targets"):
        check_url("http://2130706433/?token=canary", False)


@pytest.mark.parametrize(
    "url", ["http://u:canary@example.com", "ftp://example.com/?canary", "http://example.com/ canary"]
)
def test_an_error_never_repeats_the_url(url: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        check_url(url, False, field="target.cancel_url")
    assert "canary" not in str(caught.value)
    assert caught.value.field == "target.cancel_url"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.8.8.8", Reach.PUBLIC),
        ("172.32.0.1", Reach.PUBLIC),
        ("100.128.0.1", Reach.PUBLIC),
        ("2606:4700::1111", Reach.PUBLIC),
        ("::ffff:8.8.8.8", Reach.PRIVATE),
        ("64:ff9b::808:808", Reach.PRIVATE),
        ("2002:808:808::", Reach.PRIVATE),
        ("2002:a9fe:a9fe::", Reach.NEVER),
        ("2001:db8::1", Reach.PRIVATE),
        ("3fff::1", Reach.PRIVATE),
        ("4000::1", Reach.PRIVATE),
        ("fe80::1%eth0", Reach.NEVER),
    ],
)
def test_an_address_is_judged_by_its_block(text: str, expected: Reach) -> None:
    assert reach(ip_address(text)) is expected


def answering(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    remaining = list(answers)

    async def lookup(host: str, port: int) -> Sequence[str]:
        return remaining.pop(0)

    return lookup


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    guard = Guard(allow_private=False, lookup=answering(["8.8.8.8", "10.0.0.1"]))
    with pytest.raises(RefusedAddress, match=r"10\.0\.0\.1 \(of mixed\.example\)"):
        await guard.resolve(parse_url("http://mixed.example"))


async def test_a_name_that_changes_its_address_is_judged_each_time() -> None:
    guard = Guard(allow_private=False, lookup=answering(["8.8.8.8"], ["127.0.0.1"]))
    assert [found[4] for found in await guard.resolve(parse_url("http://rebinding.example"))] == [("8.8.8.8", 80)]
    with pytest.raises(RefusedAddress):
        await guard.resolve(parse_url("http://rebinding.example"))


async def test_a_name_without_an_address_can_t_be_resolved() -> None:
    with pytest.raises(OSError, match="no address"):
        await Guard(allow_private=True, lookup=answering([])).resolve(parse_url("http://empty.example"))


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1"])
def test_no_socket_is_opened_for_a_refused_address(address: str) -> None:
    guard = Guard(allow_private=False, lookup=answering())
    with pytest.raises(RefusedAddress):
        guard.open_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 80)))
