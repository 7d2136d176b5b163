"""A minimal receiver of Horarium's requests: checks the signature, prints one line for each. Standard library only.

    python examples/receiver.py --port 9000 --secret whsec_...

Without `--secret` nothing is checked. Answers 204; 401 to a signature that does not hold; 413 to a body over 1 MiB. A
repeated `webhook-id` is answered but marked: work that must happen once is skipped there.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import time
from base64 import b64decode, b64encode
from collections import OrderedDict
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

BODY_BYTES_MAX = 1024 * 1024
TOLERANCE_SECONDS = 300
IDS_KEPT = 10_000


def genuine(secret: str, headers: Message, body: bytes, now: float) -> bool:
    """Whether one of the signatures is ours and the request is not older than five minutes."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit() and abs(now - int(timestamp[:12])) <= TOLERANCE_SECONDS):
        return False
    signed = f"{message_id}.{timestamp}.".encode() + body
    given = headers.get("webhook-signature", "").encode().split()
    for key in secret.split():
        digest = hmac.new(b64decode(key.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        if any(hmac.compare_digest(b"v1," + b64encode(digest), signature) for signature in given):
            return True
    return False


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    secret: str | None = None
    seen: ClassVar[OrderedDict[str, None]] = OrderedDict()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            return self.answer(413)
        body = self.rfile.read(int(length))
        if self.secret is not None and not genuine(self.secret, self.headers, body, time.time()):
            return self.answer(401)
        self.report(body)
        return self.answer(204)

    do_PUT = do_PATCH = do_GET = do_DELETE = do_POST  # noqa: N815 (the base class's names)

    def report(self, body: bytes) -> None:
        run = self.headers.get("webhook-id", "?")
        again = " (again)" if run in self.seen else ""
        self.seen[run] = None
        while len(self.seen) > IDS_KEPT:
            self.seen.popitem(last=False)
        names = ("Horarium-Job", "Horarium-Fire-At", "Horarium-Attempt")
        job, fire_at, attempt = (self.headers.get(name, "-") for name in names)
        print(f"{job}  fire_at={fire_at}  attempt={attempt}  run={run}{again}  {body[:200]!r}", flush=True)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """One line for each run is enough."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the requests that Horarium sends.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--secret", default=os.environ.get("HORARIUM_SIGNING_SECRET"))
    options = parser.parse_args()
    Receiver.secret = options.secret or None
    server = ThreadingHTTPServer((options.host, options.port), Receiver)
    print(f"listening on http://{options.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
