"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, days: int = 2) -> tuple[Path, Path]:
    """A certificate for localhost and 127.0.0.1 that signs itself, and its key, made by openssl."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert), "-days", str(days)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return cert, key
