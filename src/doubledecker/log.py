"""Structured logs: one line a unit of work, on stderr, as JSON or as text for a terminal."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    import structlog


def configure(*, level: str, as_json: bool, process: str | None = None) -> None:
    """Set up logging for this process; called once, by the command that starts it. Each line has its name, if given."""
    import structlog  # noqa: PLC0415 - see _Lazy

    _lines.is_on = logging.getLevelNamesMapping()[level.upper()] <= logging.INFO
    _lines.as_json, _lines.process = as_json, process
    if process is not None:
        structlog.contextvars.bind_contextvars(process=process)
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def line(part: str, event: str) -> Callable[..., None]:
    """What logs one kind of line very often, at level info: the same as a logger's, for a tenth of its cost.

    Lines of one turn of the event loop are written together.
    """
    return _lines.of(part, event)


class _Lines:
    """Lines that wait for the end of the loop's turn."""

    def __init__(self) -> None:
        self.is_on = True
        self.as_json = False
        self.process: str | None = None
        self._waiting: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def of(self, part: str, event: str) -> Callable[..., None]:
        def write(**fields: Any) -> None:
            if self.is_on:
                self._write({**({"process": self.process} if self.process else {}), "part": part, **fields}, event)

        return write

    def _write(self, fields: dict[str, Any], event: str) -> None:
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if self.as_json:
            text = _json({**fields, "event": event, "level": "info", "timestamp": at})
        else:
            pairs = " ".join([f"{name}={_shown(fields[name])}" for name in sorted(fields)])
            text = f"{at} [info     ] {event:<30} {pairs}"
        loop = asyncio.get_running_loop()
        # What waited on a loop that has ended is written with the first of the next.
        if not self._waiting or self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._flush)
        self._waiting.append(text)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        sys.stderr.write("\n".join(waiting) + "\n")
        sys.stderr.flush()


def _json(fields: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(fields).decode()
    except UnicodeEncodeError:
        # Something that a stranger sent, and that is no text.
        return json.dumps(fields)


# What structlog's console shows in quotes.
_QUOTED = frozenset(" \t=\r\n\"'")


def _shown(value: object) -> str:
    """A value as structlog's console shows it; what no terminal should get is shown in quotes, too."""
    return value if isinstance(value, str) and value.isprintable() and _QUOTED.isdisjoint(value) else repr(value)


_lines = _Lines()


def get(name: str) -> "structlog.typing.FilteringBoundLogger":
    """The logger of one part of the product, e.g. `worker`."""
    return cast("structlog.typing.FilteringBoundLogger", _Lazy(name))


class _Lazy:
    """A logger that imports structlog when it first logs: that takes 0.2 s, and most commands log nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _logger(self) -> Any:
        import structlog  # noqa: PLC0415 - it imports rich with all of its highlighters

        return structlog.get_logger(part=self._name)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._logger, verb)
