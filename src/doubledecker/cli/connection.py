"""A command's way to a running bus: the client as whoever asks, and its errors as lines that say what to do next."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

# Its names are imported when they are first used: the HTTP client is slow to import.
from doubledecker import client
from doubledecker.assembly import settings as reading
from doubledecker.cli import folder
from doubledecker.errors import BusAway, Refused

BUS_URL = "http://127.0.0.1:17890"


@dataclass(frozen=True)
class Address:
    """Where a bus is, and the secret that says who asks."""

    url: str
    secret: str


def find(bus: str | None, data: Path | None, secret: str | None = None) -> Address:
    """The bus that is named, or that of the folder; with the key of whoever asks, or the root key."""
    where = bus or folder.find_bus(data) or BUS_URL
    return Address(where, secret or reading.read(os.environ).root_key or folder.read_root_key(data or folder.DEFAULT))


@contextlib.contextmanager
def connected(bus: str | None, data: Path | None, secret: str | None = None) -> Iterator["client.Bus"]:
    """The client at that bus. It asks once: whoever typed a command is told at once that no bus is there."""
    address = find(bus, data, secret)
    with explained(address.url), client.Bus(address.url, address.secret, patience_s=0) as remote:
        yield remote


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Raise the client's errors as those of a command."""
    try:
        yield
    except client.Unauthenticated as error:
        raise Refused(f"the bus at {url} does not know this key; pass the right one, or another --bus") from error
    except client.Refused as error:
        raise Refused(error.detail) from error
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
        raise click.UsageError(f"--bus is {url!r}; it must be a URL like {BUS_URL}") from error
    except client.ClientError as error:
        raise Refused(str(error)) from error
