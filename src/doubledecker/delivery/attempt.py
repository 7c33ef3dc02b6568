"""One attempt at a receiver: post a batch, and return how it went. It never raises for what a receiver does.

When this process cannot open a connection at all, that is no receiver's fault: then it raises OutOfDescriptors.

An attempt goes through a chain of stages, which bounds how long it takes: `Deadline | Timeout`. Whether a receiver
may be called at all is decided in Redis, for all processes (lua/receiver_ring.lua). An answer counts by its status; a
2xx in JSON is kept, as a receiver may fail single events with it (delivery/http.py).
"""

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from doubledecker import clock
from doubledecker.delivery import headers as request_headers
from doubledecker.delivery import http
from doubledecker.delivery.egress import Egress
from doubledecker.delivery.formats import FormattedRequest
from doubledecker.delivery.hosts import Hosts
from doubledecker.errors import AnswerBroken, BadRequest, ReceiverUnreachable
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.egress_proxy import EgressProxy
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid
from doubledecker.stages import Deadline, Timeout
from doubledecker.stages.errors import TimedOut

_OK = range(200, 300)
# Of a number in a header; Python refuses to read thousands.
_DIGITS_MAX = 20
_PLAIN: Mapping[str, str] = {}
# Reading a long answer may add to the attempt; the whole of it is cut here.
_DEADLINE_MARGIN_S = 5.0


@dataclass(frozen=True)
class DialLimits:
    """How long an attempt and its connecting may take, whether certificates are verified, whom to call, and how."""

    connect_s: float = 2.0
    attempt_s: float = 20.0
    ssl_verify: bool = True
    guard: DialGuard = field(default_factory=DialGuard)
    proxy: EgressProxy | None = None


class Dialer:
    """Posts batches over kept-alive connections; close it when done."""

    def __init__(self, limits: DialLimits) -> None:
        self._chain = (Deadline(limits.attempt_s + _DEADLINE_MARGIN_S) | Timeout(limits.attempt_s)).bind()
        way = Hosts(limits.guard) if limits.proxy is None else Egress(limits.proxy, limits.guard)
        self._http = http.HttpClient(way, connect_s=limits.connect_s, ssl_verify=limits.ssl_verify)

    async def attempt(
        self,
        receiver: Subscriber,
        request: FormattedRequest,
        headers: Mapping[str, str] = _PLAIN,
        message: str = "",
        kept_bytes: int = 0,
    ) -> Outcome:
        """Post a request to a receiver; `headers` go along.

        `message` is the id that a signed one is known by, a new one if empty. `kept_bytes` keeps so much of a 2xx,
        whatever it is.
        """
        try:
            return await self._chain.call(self._post, receiver, request, headers, message, kept_bytes)
        except TimedOut as late:
            return Outcome(
                OutcomeKind.TIMED_OUT, round(late.after_s * 1000), detail=f"no answer within {late.after_s:g} s"
            )

    async def close(self) -> None:
        await self._chain.close()
        await self._http.close()

    async def _post(
        self, receiver: Subscriber, request: FormattedRequest, headers: Mapping[str, str], message: str, kept_bytes: int
    ) -> Outcome:
        started_s, body = time.monotonic(), request.body

        def took_ms() -> int:
            return round((time.monotonic() - started_s) * 1000)

        try:
            lines = request_headers.own(receiver.uuid, receiver.headers, request.content_type)
            lines += request_headers.lines({**request.headers, **headers} if request.headers else headers)
            if receiver.signing is not None:
                # Here, so that each attempt has a time of its own.
                lines += await request_headers.signature(
                    receiver.signing, message=message or uid(), body=body, now_ms=clock.now_ms()
                )
            to = http.endpoint(receiver.callback)
            answer = await self._http.post(to, lines, body, kept_bytes, client=receiver.client)
        except BadRequest as error:
            return Outcome(OutcomeKind.UNREACHABLE, took_ms(), detail=f"refused by the bus: {error}")
        except ReceiverUnreachable as error:
            return Outcome(OutcomeKind.UNREACHABLE, took_ms(), detail=str(error))
        except (AnswerBroken, ValueError) as error:
            return Outcome(OutcomeKind.BROKEN, took_ms(), detail=str(error))
        if answer.status in _OK:
            return Outcome(
                OutcomeKind.DELIVERED, took_ms(), answer.status, answer=answer.body, answer_headers=answer.headers
            )
        return Outcome(
            OutcomeKind.REFUSED,
            took_ms(),
            answer.status,
            _retry_after(answer.retry_after),
            answer.reason,
            answer.body,
            answer.headers,
        )


def _retry_after(value: str | None) -> int | None:
    """Milliseconds, from a number of seconds or a date; None for what is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(int(value.strip()[:_DIGITS_MAX]), 10**9) * 1000
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0, round(at.timestamp() * 1000) - clock.now_ms())
