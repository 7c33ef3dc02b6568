"""Everything that can go wrong, as a tree.

DoubledeckerError
├── Refused                  the caller asked for something it may not have; carries an HTTP status
│   ├── BadRequest           400  the input is wrong, and the message says what is allowed
│   ├── Unauthenticated      401  no token, or one we do not know
│   ├── Forbidden            403  a known token, but not its business
│   │   ├── TopicOwned       403  the topic belongs to another client
│   │   └── TopicReserved    403  the topic is one of the bus itself
│   ├── NotFound             404
│   ├── RequestTimedOut      408  the body came too slowly
│   ├── Conflict             409  the same idempotency key with another body
│   ├── Gone                 410  it was there, and is no more
│   ├── TooLarge             413
│   ├── UnknownMedia         415  a content type or an encoding that is not understood
│   ├── TooMany              429  a limit on how many things of a kind may be kept
│   │   └── QuotaExceeded    429  a client would have more of something than its share
│   ├── TooManyAtOnce        429  more under way at the same time than one client may have
│   ├── TooOften             429  more in a minute than one client may ask for
│   └── QueueFull            429  a queue that refuses rather than drops has no room
├── BusAway                  503  Redis did not answer; nothing is known to be written
│   ├── BusSilent            503  there was no connection to it, or no reply in time
│   └── MemoryFull           503  its memory is full; nothing was written
├── Overloaded               503  the process has no room for the request now
├── OutOfDescriptors         the process may open no further connection now
├── JournalFull              503  the journal is at its bound and set to refuse
├── RetryLater               a job asks to be run again after a delay
├── ReceiverUnreachable      nobody could be connected to where a callback leads
│   └── ReceiverRefused      the dial guard refuses to connect there
├── AnswerBroken             a receiver was connected to, and gave no HTTP answer
├── ScriptBroken             a Lua file's header and body disagree
├── ServerUnfit              the Redis server lacks something the bus depends on
├── DataOwned                another process already runs on this data directory
├── RowsRefused              rows that Spark wrote were not all accepted
├── OrderChanged             a repeated Spark write has other rows than it had before
├── WritesLost               the server lost rows of a Spark task that it had confirmed
├── JournalTrimmed           what was asked for is no longer in the journal
├── ArchiveTaken             another archive than ours keeps this bus
├── LakeUnfit                the lake cannot be opened or written
├── LakeMoved                files of the lake were deleted while they were read
├── ReadTooLarge             a read touches more than is read without Spark
├── SparkUnfit               Spark is not installed, or does not start
│   └── JavaUnfit            no Java that Spark can use
└── SettingInvalid           a setting does not parse or is out of range
"""

from typing import Self

from doubledecker.pickling import Portable


class DoubledeckerError(Portable):
    """The root: catching it catches everything this product raises on purpose."""


class Refused(DoubledeckerError):
    """A request that is answered with a 4xx and changes nothing."""

    status = 400
    title = "Bad request"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def bare(self) -> Self:
        """The error as a value to keep: its traceback would keep the frames that keep it, in a cycle."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class BadRequest(Refused):
    """The input is wrong."""


class Unauthenticated(Refused):
    """No token, or one we do not know; `stale` asks a Digest client to try again with the new nonce."""

    status = 401
    title = "Unauthorized"

    def __init__(self, detail: str, *, stale: bool = False) -> None:
        super().__init__(detail)
        self.stale = stale


class Forbidden(Refused):
    """A known token that may not do this."""

    status = 403
    title = "Forbidden"


class TopicOwned(Forbidden):
    """The topic belongs to another client, whose public id the message names."""

    def __init__(self, topic: str, owner: str) -> None:
        super().__init__(f"topic {topic!r} belongs to another client, {owner!r}")
        self.topic, self.owner = topic, owner


class TopicReserved(Forbidden):
    """The topic's name is kept for events of the bus itself."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} is reserved: names that begin with 'doubledecker.' are for the bus's own events; "
            "choose another name"
        )
        self.topic = topic


class NotFound(Refused):
    """There is no such thing."""

    status = 404
    title = "Not found"


class RequestTimedOut(Refused):
    """The body came too slowly."""

    status = 408
    title = "Request timeout"


class Conflict(Refused):
    """It contradicts an earlier request."""

    status = 409
    title = "Conflict"


class Gone(Refused):
    """It was there, and is no more."""

    status = 410
    title = "Gone"


class TooLarge(Refused):
    """More bytes or items than one request may carry."""

    status = 413
    title = "Too large"


class UnknownMedia(Refused):
    """A content type or encoding that is not understood; `accepted` is the encoding that is, where that was wrong."""

    status = 415
    title = "Unsupported media type"

    def __init__(self, detail: str, *, accepted: str = "") -> None:
        super().__init__(detail)
        self.accepted = accepted


class TooMany(Refused):
    """More things of a kind than may be kept."""

    status = 429
    title = "Too many"


class QuotaExceeded(TooMany):
    """A client would have more of something than its quota allows; names the bound, its value and its setting."""

    title = "Quota exceeded"

    def __init__(self, bound: str, most: int, wanted: int, *, noun: str, remedy: str, retry_after_s: int = 0) -> None:
        setting = f"DOUBLEDECKER_{bound.upper()}"
        super().__init__(f"that would make {wanted} {noun}, and at most {most} are allowed ({setting}); {remedy}")
        self.bound = bound
        self.most = most
        self.wanted = wanted
        # When there is room again, for bounds that time alone relieves; else 0.
        self.retry_after_s = retry_after_s


class TooManyAtOnce(Refused):
    """More under way at the same time than one client may have; it may try again once some of it is done."""

    status = 429
    title = "Too many at once"


class TooOften(Refused):
    """More in a minute than one client may ask for; says in how many seconds it may again."""

    status = 429
    title = "Too often"

    def __init__(self, what: str, *, retry_after_s: int) -> None:
        super().__init__(f"{what}; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    """A queue that refuses rather than drops has no room for the event."""

    status = 429
    title = "Queue full"


class BusAway(DoubledeckerError):
    """Redis did not answer; what was asked may or may not have been written.

    The message is for operators, and may name addresses and lines of scripts; clients of the bus get `detail`.
    """

    detail = "Redis refused a command; the log of the bus says which"

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or self.detail


class BusSilent(BusAway):
    """No connection, or no reply in time: the server itself is away, not only unable to do this."""

    detail = "Redis does not answer"


class MemoryFull(BusAway):
    """The server's memory is full, and what was asked would need more of it; nothing was written."""

    detail = "memory is full, so nothing was written; it is freed as receivers and consumers take events"

    def __init__(self) -> None:
        super().__init__(self.detail)


class Overloaded(DoubledeckerError):
    """The process has no room for the request now; nothing of it was done."""


class OutOfDescriptors(DoubledeckerError):
    """The process, or its machine, may open no further connection now; nobody was called."""


class JournalFull(DoubledeckerError):
    """The journal is at its bound, and by the settings it refuses rather than trims."""

    def __init__(self) -> None:
        super().__init__("the journal is full, and its archive has yet to read what it holds")


class RetryLater(DoubledeckerError):
    """Raised by a job to be run again after `delay_ms`."""

    def __init__(self, delay_ms: int) -> None:
        super().__init__(f"again in {delay_ms} ms")
        self.delay_ms = delay_ms


class ReceiverUnreachable(DoubledeckerError):
    """Nobody could be connected to where a callback leads: no address, nobody there, or a certificate that is wrong."""


class ReceiverRefused(ReceiverUnreachable):
    """A host may not be called, or has no address: the client that registered it does not learn which."""


class AnswerBroken(DoubledeckerError):
    """A receiver was connected to, and what came back is no HTTP answer, or nothing."""


class ScriptBroken(DoubledeckerError):
    """A Lua file whose header and body disagree."""


class ServerUnfit(DoubledeckerError):
    """The Redis server lacks something the bus depends on."""


class DataOwned(DoubledeckerError):
    """Another process already runs on this data directory."""


class RowsRefused(DoubledeckerError):
    """Rows that Spark wrote were not all accepted; those that were are published."""


class OrderChanged(DoubledeckerError):
    """A repeated Spark write has other rows, fewer or more of them, or another order, than it had before."""


class WritesLost(DoubledeckerError):
    """The server has fewer rows of a Spark task than it had confirmed."""


class JournalTrimmed(DoubledeckerError):
    """What was asked for is no longer in the journal."""


class ArchiveTaken(DoubledeckerError):
    """Another archive than ours keeps this bus, and only one may allow trimming."""


class LakeUnfit(DoubledeckerError):
    """The lake cannot be opened or written."""


class LakeMoved(DoubledeckerError):
    """Files of a version of the lake were deleted while they were read; a newer version has what is left."""


class ReadTooLarge(DoubledeckerError):
    """A read touches more files, or takes longer, than is read without Spark."""


class SparkUnfit(DoubledeckerError):
    """Spark is not installed, or does not start."""


class JavaUnfit(SparkUnfit):
    """There is no Java that Spark can use."""


class SettingInvalid(DoubledeckerError):
    """A setting that does not parse or is out of range."""
