"""Reading what a pull brought: a message whose event cannot be decoded costs the consumer that message alone."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from doubledecker.client.errors import BusAway, Refused
from doubledecker.client.message import Back, Leased, Message, MessageSource, Undecoded, read_event

_log = logging.getLogger("doubledecker.client")


async def readable(source: MessageSource, take: Callable[[], Awaitable[Sequence[Leased]]]) -> list[Message]:
    """The messages that `take` brings. Those that cannot be decoded are rejected, as they would fail each time.

    It takes again when all were rejected: to whoever pulls, no message at all means that none is waiting.
    """
    while True:
        messages = [Message(m.id, m.attempt, m.tenant, read_event(m.event), m.lease_until) for m in await take()]
        bad = [message for message in messages if isinstance(message.event.data, Undecoded)]
        if not bad:
            return messages
        are_rejected = await _reject(source, bad)
        if len(bad) < len(messages) or not are_rejected:
            return [message for message in messages if not isinstance(message.event.data, Undecoded)]


async def _reject(source: MessageSource, messages: Sequence[Message]) -> bool:
    """Send each to the dead letters with its reason; says whether the bus took them.

    Those that it did not take come again when their leases end.
    """
    by_reason: dict[str, list[Back]] = {}
    for message in messages:
        event = message.event
        why = event.data.why
        _log.warning(
            "message.undecodable queue=%s message=%s event=%s error=%s", source.name, message.id, event.id, why
        )
        by_reason.setdefault(f"data cannot be decoded: {why}", []).append(Back(message.id, message.attempt))
    try:
        for why, backs in by_reason.items():
            await source.reject(backs, why=why)
    except (BusAway, Refused) as error:
        _log.warning("settling.refused queue=%s messages=%d error=%s", source.name, len(messages), error)
        return False
    return True
