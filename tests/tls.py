"""Certificates of one's own making, for servers on loopback that speak TLS."""

import asyncio
import ssl
from pathlib import Path

_AUTHORITY = """
[ca]
default_ca = own
[own]
database = {directory}/index.txt
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


async def a_certificate(directory: Path, *, name: str = "localhost") -> ssl.SSLContext:
    """The context of a server whose certificate, `certificate.pem`, nobody vouches for."""
    await _openssl("req", "-x509", "-days", "2", *_wanted(directory, name), "-out", directory / "certificate.pem")
    return _context(directory)


async def an_expired_certificate(directory: Path) -> ssl.SSLContext:
    """The context of a server whose certificate, for `localhost`, was good for a day some years ago."""
    (directory / "index.txt").touch()
    (directory / "authority").write_text(_AUTHORITY.format(directory=directory))
    await _openssl("req", "-new", *_wanted(directory, "localhost"), "-out", directory / "request.pem")
    signed = ["ca", "-batch", "-selfsign", "-config", directory / "authority", "-in", directory / "request.pem"]
    signed += ["-keyfile", directory / "key.pem", "-out", directory / "certificate.pem", "-notext"]
    await _openssl(*signed, "-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    return _context(directory)


def _wanted(directory: Path, name: str) -> list[str | Path]:
    asked: list[str | Path] = ["-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
    return [*asked, "-addext", f"subjectAltName=DNS:{name}", "-keyout", directory / "key.pem"]


async def _openssl(*arguments: str | Path) -> None:
    made = await asyncio.create_subprocess_exec("openssl", *arguments, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0


def _context(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    return context
