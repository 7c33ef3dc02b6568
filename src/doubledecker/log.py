"""Structured logs: one line a unit of work, on stderr, as JSON or as text for a terminal."""

import logging
import sys

import structlog


def configure(*, level: str, as_json: bool) -> None:
    """Set up logging for this process; called once, by the command that starts it."""
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


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of one part of the product, e.g. `worker`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
