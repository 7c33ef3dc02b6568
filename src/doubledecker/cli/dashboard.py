"""The link that signs in to the dashboard: printed by `up` when the bus is ready, and by `doubledecker dashboard`."""

import asyncio
import secrets
from pathlib import Path

import click

from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.cli import folder, status
from doubledecker.errors import BusAway
from doubledecker.store import sessions
from doubledecker.store.sessions import CODE_S

PATH = "/dashboard"
_MINUTE_S = 60


def dashboard(*, url: str | None, data: Path | None, bus: str | None) -> None:
    """Print a link that signs root in, once; `bus` is where web is reached, if not where the folder says."""
    settings = status.find(url, data)
    try:
        link = asyncio.run(make_link(settings, bus or folder.find_bus(data) or folder.DEFAULT_URL))
    except BusAway as error:
        raise folder.away(error, options="--data or --url") from error
    click.echo(link)
    click.echo(f"It signs in as root, once, within {CODE_S // _MINUTE_S} minutes", err=True)


async def make_link(settings: Settings, url: str) -> str:
    """A link to a bus whose Redis has the code in it from now on."""
    code = secrets.token_urlsafe(16)
    async with build.open_bus(settings, patience_s=0) as bus:
        await sessions.keep_code(bus.partitions.home, code)
    return f"{url}/login?code={code}"
