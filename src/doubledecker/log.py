"""Structured logs: one line a unit of work, on stderr, as JSON or as text for a terminal."""

import logging
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import structlog


def configure(*, level: str, as_json: bool, process: str | None = None) -> None:
    """Set up logging for this process; called once, by the command that starts it. Each line has its name, if given."""
    import structlog  # noqa: PLC0415 - see _Lazy

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
