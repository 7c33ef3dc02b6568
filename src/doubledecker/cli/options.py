"""Options that several commands share."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import click

from doubledecker.assembly.launch import PROCESSES_MAX, Member

if TYPE_CHECKING:
    from doubledecker.client import TokenScopes

_F = TypeVar("_F", bound=Callable[..., object])

FOLDER = click.Path(file_okay=False, path_type=Path)
# Not DOUBLEDECKER_…: those are settings of the bus, and an unknown one is an error.
at_bus = click.option(
    "--bus", envvar="BUS_URL", metavar="URL", help="Where the bus is  [env: BUS_URL; default: of .data or .demo]"
)
_at_any_bus = click.option(
    "--bus", envvar="BUS_URL", metavar="URL", help="Where the bus is  [env: BUS_URL; default: that of --data]"
)
_in_any_folder = click.option(
    "--data", type=FOLDER, help="Folder of a running `doubledecker up`  [default: .data or .demo, where one runs]"
)
with_secret = click.option(
    "--token", "secret", envvar="BUS_TOKEN", metavar="SECRET", help="Who asks  [env: BUS_TOKEN; default: root]"
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
is_sure = click.option("--yes", is_flag=True, help="Do not ask")


@dataclass(frozen=True)
class Consent:
    """Whether something may be destroyed: who is not sure is asked, and a dry run only says what would be asked."""

    is_sure: bool
    is_dry: bool

    def is_given(self, question: str) -> bool:
        """Ask, if need be; a no ends the command."""
        if self.is_dry:
            click.echo(f"{question} Not now: this is a dry run", err=True)
            return False
        if not self.is_sure:
            click.confirm(question, abort=True, err=True)
        return True


def with_consent(command: Callable[..., None]) -> Callable[..., None]:
    """`--yes` and `--dry-run`; the command gets `consent`."""

    @is_sure
    @click.option("--dry-run", is_flag=True, help="Only say what it would do")
    @functools.wraps(command)
    def run(*args: object, yes: bool, dry_run: bool, **kwargs: object) -> None:
        command(*args, consent=Consent(yes, dry_run), **kwargs)

    return run


receiver = click.option(
    "--receiver",
    help="A subscription's id or CLIENT/NAME, or @ and a queue  [default: the caller's own]",
)


def _json(_context: click.Context, parameter: click.Parameter, given: str | TextIO | None) -> object:
    """What is given as JSON, as it is typed or in a file; raises a usage error when it is none."""
    if given is None:
        return None
    try:
        return json.loads(given if isinstance(given, str) else given.read())
    except ValueError as error:
        raise click.UsageError(f"{parameter.opts[0]} is not JSON: {error}") from error


retry = click.option(
    "--retry",
    metavar="JSON",
    callback=_json,
    help="When it is tried again: delays in ms, as '[1000, 60000]', or '{\"cap_ms\": 60000}'",
)


def _object(context: click.Context, parameter: click.Parameter, given: str | None) -> object:
    found = _json(context, parameter, given)
    if given is not None and not isinstance(found, dict):
        raise click.UsageError(
            f'{parameter.opts[0]} is {given[:80]}; it must be a JSON object, like \'{{"key": ["a"]}}\''
        )
    return found


event_filter = click.option(
    "--filter",
    metavar="JSON",
    callback=_object,
    help='Which of the events it gets, like \'{"data": {"total": [{"numeric": [">", 100]}]}}\'',
)
# Not typed: other users of the machine see what is, and they may be secrets.
headers = click.option(
    "--headers",
    metavar="FILE",
    type=click.File(),
    callback=_json,
    help="Headers that deliveries carry, as a JSON object in a file; - reads standard input",
)

# Written out: the model takes longer to import than a command takes to show its help.
receiver_format = click.option(
    "--format",
    "format",
    type=click.Choice(["routemaster", "json", "cloudevents-batch", "cloudevents-binary"]),
    help="How events are posted; cloudevents-binary needs --max 1",
)


def _member(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Member | None:
    if text is None:
        return None
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count)):
        raise click.BadParameter(f"{text!r} is not like 1/2")
    return Member(int(number), int(count))


def processes(setting: str) -> Callable[[_F], _F]:
    """How many processes of a command to run; a supervisor passes to each of them which one it is."""
    text = f"How many processes share the work, 0 for one a core  [default: {setting} or 1]"
    asked = click.option("--processes", type=click.IntRange(0, PROCESSES_MAX), help=text)
    member = click.option("--member", callback=_member, hidden=True)
    ready_fd = click.option("--ready-fd", type=int, hidden=True)
    return lambda command: asked(member(ready_fd(command)))


def overlap(text: str) -> Callable[[_F], _F]:
    """For how long a secret that is replaced is good."""
    return click.option(
        "--overlap-s", type=click.IntRange(0, 30 * 86_400), default=86_400, show_default=True, help=text
    )


def as_root(command: _F) -> _F:
    """Where to ask as root: by address, or by the folder that has the key."""
    return _at_any_bus(_in_any_folder(command))


def as_admin(command: _F) -> _F:
    """The same, or as an admin. Not from BUS_TOKEN, which is a client's for all other commands."""
    with_admins = click.option("--token", "secret", metavar="SECRET", help="Who asks, an admin  [default: root]")
    return as_root(with_admins(command))


def as_caller(command: _F) -> _F:
    """Where to ask, and as whom: by address and token, or as root of the bus of a folder."""
    return as_root(with_secret(command))


# Written out, as the formats are; docs/tokens.md says what each opens.
_ACTIONS = "publish, subscribe, consume, stream, search, replay, manage, admin, read-only"


@dataclass(frozen=True)
class TokenAsked:
    """What the options say of a token."""

    actions: tuple[str, ...]
    topics: tuple[str, ...]
    tenants: tuple[str, ...]
    description: str | None
    expires_in_s: int | None

    @property
    def scopes(self) -> "TokenScopes | None":
        """The limits; None when no option names one."""
        from doubledecker.client import TokenScopes  # noqa: PLC0415 - aiohttp is slow to import

        limits = TokenScopes(self.actions or None, self.topics or None, self.tenants or None)
        return None if limits == TokenScopes() else limits


def with_scopes(command: Callable[..., None]) -> Callable[..., None]:
    """What a token may do, and how long it lasts; the command gets `asked`."""

    @click.option(
        "--action", "actions", multiple=True, metavar="ACTION", help=f"Let it do this alone; repeatable: {_ACTIONS}"
    )
    @click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic, or a glob; repeatable")
    @click.option("--tenant", "tenants", multiple=True, metavar="TENANT", help="Only this tenant; repeatable")
    @click.option("--expires-in", "expires_in_s", type=int, metavar="SECONDS", help="When it ends, from now")
    @click.option("--description", metavar="TEXT", help="What it is for")
    @functools.wraps(command)
    def run(
        *args: object,
        actions: tuple[str, ...],
        topics: tuple[str, ...],
        tenants: tuple[str, ...],
        expires_in_s: int | None,
        description: str | None,
        **kwargs: object,
    ) -> None:
        command(*args, asked=TokenAsked(actions, topics, tenants, description, expires_in_s), **kwargs)

    return run
