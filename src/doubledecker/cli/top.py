"""`doubledecker top`: the live view of any bus, read straight from Redis as `status` reads it.

On a terminal it is drawn anew each second; piped, or as JSON, it is one snapshot of two looks a second apart, which
rates and latencies need.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.cli import folder, live, status, words
from doubledecker.cli.live import Board
from doubledecker.errors import BusAway

_FOOT = "q or Ctrl-C ends"
_STDIN = 0
_SHARES = (50, 95, 99)


def top(*, url: str | None, data: Path | None, as_json: bool) -> None:
    """Show a bus until `q`, or once."""
    settings = status.find(url, data)
    board = Board(_shown(settings))
    console = Console()
    try:
        if as_json or not console.is_terminal or console.is_dumb_terminal:
            asyncio.run(_look_twice(board, settings))
            _print(board, as_json=as_json)
        else:
            asyncio.run(_watch(board, settings, console))
    except BusAway as error:
        raise folder.away(error, options="--data or --url") from error


def _shown(settings: Settings) -> str:
    """The address of its Redis, without a password."""
    scheme, _, rest = settings.redis_url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


async def _look_twice(board: Board, settings: Settings) -> None:
    async with build.open_bus(settings, patience_s=0) as bus:
        await live.look(board, bus)
        await asyncio.sleep(live.LOOK_S)
        await live.look(board, bus)


async def _watch(board: Board, settings: Settings, console: Console) -> None:
    """Draw until a key or a signal ends it; a server that goes away is shown, one that was never there is an error."""
    async with build.open_bus(settings, patience_s=0) as bus:
        await live.look(board, bus)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    following = asyncio.create_task(live.follow(board, settings))
    try:
        with _keys(stop), Live(console=console, screen=True, auto_refresh=False) as shown:
            while not stop.is_set():
                width, height = console.size
                screen = live.render(board, width=width, height=height, now_ms=clock.now_ms(), foot=_FOOT)
                shown.update(screen, refresh=True)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(live.LOOK_S):
                        await stop.wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@contextlib.contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Take keys one by one while the block runs; `q` stops."""
    if not sys.stdin.isatty():
        yield
        return
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(_STDIN)

    def take() -> None:
        if b"q" in os.read(_STDIN, 64).lower():
            stop.set()

    tty.setcbreak(_STDIN)
    loop.add_reader(_STDIN, take)
    try:
        yield
    finally:
        loop.remove_reader(_STDIN)
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


def _print(board: Board, *, as_json: bool) -> None:
    view, trail = board.trail.last, board.trail
    assert view is not None, "looked at before"
    rates = {name: round(trail.rate(measure), 1) for name, measure in _RATES.items()}
    latencies = {f"p{share}": trail.latency_ms(share / 100) for share in _SHARES}
    if as_json:
        # Beyond the last bucket of the histogram is no number of JSON.
        shown = {name: None if ms is None or ms == float("inf") else round(ms, 1) for name, ms in latencies.items()}
        bus = {**status.as_json_of(view), **{f"{name}_per_s": rate for name, rate in rates.items()}}
        queues = [_queue_as_json(each) for each in board.queues]
        processes = dict(board.alive)
        click.echo(json.dumps({**bus, "latency_ms": shown, "queues": queues, "processes": processes}))
        return
    rows = [[f"{name} a second", words.rate(rate)] for name, rate in rates.items()]
    rows += [[f"latency {name}", words.age(ms)] for name, ms in latencies.items()]
    words.show(["bus", ""], [*rows, *status.totals(view)])
    click.echo()
    words.show(status.SUBSCRIBER_TITLES, [status.subscriber_row(each, view.at) for each in view.subscribers])
    click.echo()
    words.show(["queue", "waiting", "in flight", "delayed", "dead", "tenants"], [_queue_row(q) for q in board.queues])
    click.echo()
    words.show(["process", "running"], [[kind, str(count)] for kind, count in sorted(board.alive.items())])


_RATES = {"published": status.published, "delivered": status.delivered}


def _queue_row(each: live.QueueLine) -> list[str]:
    seen = each.view
    tenants = ", ".join(f"{tenant.tenant} {tenant.waiting:,}" for tenant in each.tenants)
    return [seen.queue.name, *(f"{n:,}" for n in (seen.waiting, seen.in_flight, seen.delayed, seen.dead)), tenants]


def _queue_as_json(each: live.QueueLine) -> dict[str, object]:
    seen = each.view
    counts = {"waiting": seen.waiting, "in_flight": seen.in_flight, "delayed": seen.delayed, "dead": seen.dead}
    tenants = [{"tenant": tenant.tenant, "waiting": tenant.waiting, "share": tenant.share} for tenant in each.tenants]
    return {"queue": seen.queue.name, **counts, "tenants": tenants}
