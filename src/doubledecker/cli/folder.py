"""The data folder of `doubledecker up`: the root key, the address of the embedded server, the children's logs.

    root.key     made once, when no key is set; readable by its owner alone
    redis.url    the server that a running `up` uses
    bus.url      where its HTTP API does
    demo         there since a demo ran on this data
    sources.toml what the pipeline consumes; the user's, like spark.conf
    lake/        the pipeline's tables
    logs/        what the processes print, but for those of `up --log`

Besides these it holds what store/embedded.py names.
"""

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from doubledecker import client
from doubledecker.assembly import settings as reading
from doubledecker.assembly import spark_conf
from doubledecker.assembly.settings import Settings
from doubledecker.errors import BusAway, LakeUnfit, Refused, SettingInvalid
from doubledecker.store import machine

# That of `up`, and that of `make demo`.
_FOLDERS = (Path(".data"), Path(".demo"))
ROOT_KEY = "root.key"
REDIS_URL = "redis.url"
BUS_URL = "bus.url"
DEMO = "demo"
SOURCES = "sources.toml"
LAKE = "lake"
# A folder with one of these has been a data folder before.
_MARKS = (ROOT_KEY, "valkey.lock")
# What users put there before the first start; elsewhere things may have the same names, so these alone prove nothing.
_PREPARED = (SOURCES, spark_conf.FILE, LAKE)


def prepare(folder: Path) -> None:
    """Make it, for us alone, also when it was there; raises SettingInvalid when that is not possible."""
    try:
        is_closed = machine.keep_private(folder, marks=_MARKS, prepared=_PREPARED)
    except OSError as error:
        raise SettingInvalid(f"cannot keep data in {folder}: {error.strerror}; pass another --data") from error
    if not is_closed:
        click.echo(f"Others can enter {folder}, where all data is; close it with `chmod 700 {folder}`", err=True)


def make_root_key(folder: Path) -> str:
    """The key kept in this folder, made now when there is none; two who make it at once get the same."""
    path = folder / ROOT_KEY
    if not path.exists():
        # Written aside and linked when whole: a crash leaves no half key, and a second maker keeps the first one's.
        descriptor, draft = tempfile.mkstemp(prefix=ROOT_KEY, dir=folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(24) + "\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
        Path(draft).unlink()
    return read_root_key(folder)


def read_root_key(folder: Path, *, remedy: str = "") -> str:
    """The key kept in this folder; raises SettingInvalid when there is none, with what else may help first."""
    path = folder / ROOT_KEY
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise SettingInvalid(
            f"no root key: {path}: {error.strerror}; {remedy}set DOUBLEDECKER_ROOT_KEY, or pass the --data of "
            "`doubledecker up`"
        ) from error
    if not key:
        raise SettingInvalid(f"{path} is empty; remove it, and the next `doubledecker up` makes a new key")
    return key


@contextlib.contextmanager
def announced(folder: Path, name: str, url: str) -> Iterator[None]:
    """Say where something listens, for as long as the block runs."""
    path = folder / name
    # A URL of Redis may hold a password.
    path.touch(mode=0o600)
    path.write_text(url + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def default() -> Path:
    """The folder of a command that names none: `.data`, or that of the demo when only there a bus runs."""
    return next((each for each in _FOLDERS if (each / REDIS_URL).exists()), _FOLDERS[0])


def find_bus(folder: Path | None) -> str | None:
    """The address of the bus that runs on a folder; None when none runs on the default one, and none was named."""
    return _announced(folder, BUS_URL)


def find(settings: Settings, folder: Path | None, *, is_url_set: bool) -> Settings:
    """Settings that lead to the bus of a folder if one is named, to the set URL, or to that of the default folder."""
    if folder is None and is_url_set:
        return settings
    url = _announced(folder, REDIS_URL)
    return replace(settings, redis_url=url) if url else settings


def locate(folder: Path | None, lake: str | None) -> tuple[Settings, str]:
    """Settings that lead to the bus of a folder, or of the environment, and where its lake is."""
    given = reading.read(os.environ)
    root = lake or given.lake or str((folder or default()) / LAKE)
    found = find(given, folder, is_url_set=given.redis_url != Settings.redis_url)
    found = replace(found, spark_conf=spark_conf.read(folder or default(), found.spark_conf))
    # Resolved: Spark compares the lake's path with those of its files, which are.
    return found, root if "://" in root else str(Path(root).resolve())


def check_readable(root: str) -> None:
    """Raise LakeUnfit unless a lake is where it can be read, before anything looks for keys to an object store."""
    if "://" in root:
        raise LakeUnfit(
            f"the lake {root} can only be landed in: `events`, `report`, `replay` and `erase` read a folder, "
            "or a file system that is mounted as one; pass its path with --lake"
        )


def has_lake(root: str) -> bool:
    """Whether a lake's folder is there; raises LakeUnfit when it is none, or we may not look into it."""
    check_readable(root)
    try:
        # Listing it is one right, and entering it another: without either, its tables seem not to be there.
        os.scandir(root).close()
        Path(root, os.curdir).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        whose = "pass a --lake that you may read, or ask its owner"
        raise LakeUnfit(f"cannot read the lake {root}: {error.strerror}; {whose}") from error
    return True


def _announced(folder: Path | None, name: str) -> str | None:
    """What a running `up` has written to a folder; raises BusAway when none runs on one that was named."""
    try:
        return ((folder or default()) / name).read_text().strip()
    except OSError as error:
        if folder is None:
            return None
        raise BusAway(f"no bus runs on {folder}; start one with `doubledecker up --data {folder}`") from error


# A command's way to a running bus: the client as the caller, and its errors as lines with what to do next.

DEFAULT_URL = "http://127.0.0.1:17890"


@dataclass(frozen=True)
class Address:
    """Where a bus is, and the secret that says who asks."""

    url: str
    secret: str


def address_of(bus: str | None, data: Path | None, secret: str | None) -> Address:
    """The bus that is named, or that of the folder; with the caller's key, or the root key."""
    return _address_of(bus, data, secret, remedy="pass a client's --token (or set BUS_TOKEN), ")


def _address_of(bus: str | None, data: Path | None, secret: str | None, *, remedy: str = "") -> Address:
    where = bus or find_bus(data) or DEFAULT_URL
    key = secret or reading.read(os.environ).root_key or read_root_key(data or default(), remedy=remedy)
    return Address(where, key)


@contextlib.contextmanager
def connected(bus: str | None, data: Path | None, secret: str | None) -> Iterator["client.Bus"]:
    """The client at that bus. It asks once, so that a command reports at once that no bus is there."""
    with _client_at(address_of(bus, data, secret)) as remote:
        yield remote


@contextlib.contextmanager
def connected_as_root(bus: str | None, data: Path | None, secret: str | None) -> Iterator["client.Bus"]:
    """The same for what root and admins may do."""
    with _client_at(_address_of(bus, data, secret)) as remote:
        yield remote


def away(error: BusAway, *, options: str = "--data") -> BusAway:
    """A Redis that cannot be used, as a command that reads it says so."""
    return BusAway(f"cannot reach the bus: {error}; start one with `doubledecker up`, or pass its {options}")


@contextlib.contextmanager
def _client_at(address: Address) -> Iterator["client.Bus"]:
    with explained(address.url), client.Bus(address.url, address.secret, patience_s=0) as remote:
        yield remote


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Raise the client's errors as those of a command."""
    try:
        yield
    except client.Unauthenticated as error:
        if "expired" in error.detail:
            raise Refused(error.detail) from error
        raise Refused(f"the bus at {url} does not know this key; pass the right one, or another --bus") from error
    except client.Refused as error:
        raise Refused(_in_commands(error.detail)) from error
    except client.NotABus as error:
        raise BusAway(f"{error}; check --bus") from error
    except client.BusAway as error:
        way = (
            "start one with `doubledecker up`, or pass --bus"
            if error.status is None
            else "try again, or look at its log"
        )
        raise BusAway(f"{error}; {way}") from error
    except client.AddressInvalid as error:
        raise click.UsageError(f"--bus is {url!r}; it must be a URL like {DEFAULT_URL}") from error
    except client.ClientError as error:
        raise Refused(str(error)) from error


# What errors of the bus tell clients to ask over HTTP, and the command that asks it.
_COMMANDS = (
    (r"POST /api_tokens\b", "`doubledecker token create NAME`"),
    (r"GET /api_tokens\b", "`doubledecker token list`"),
    (r"GET /subscribers\b", "`doubledecker receiver list`"),
    (r"GET …/dead/jobs\b", "`doubledecker dead jobs`"),
    (r"POST /subscription\b", "`doubledecker subscribe`"),
    (r"PUT /queues/([a-z0-9_.-]+)", r"`doubledecker queue register \1`"),
)


def _in_commands(detail: str) -> str:
    for call, command in _COMMANDS:
        detail = re.sub(call, command, detail)
    return detail
