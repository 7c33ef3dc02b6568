"""A certificate of one's own making, for servers on loopback that speak TLS."""

import asyncio
import ssl
from pathlib import Path


async def a_certificate(directory: Path) -> ssl.SSLContext:
    """The context of a server whose certificate, for `localhost`, nobody vouches for."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    made = await asyncio.create_subprocess_exec(
        *command, "-keyout", key, "-out", certificate, stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
