"""The consumer's side of the heartbeat: starts the process of client/beating.py and tells it what is in hand."""

import asyncio
import os
import subprocess
from collections.abc import Collection, Sequence

import msgspec

from doubledecker.client.beating import READY
from doubledecker.client.errors import HeartbeatFailed
from doubledecker.client.message import Message, Pulse

_START_S_MAX = 20.0
_END_S_MAX = 5.0
# How often we look whether it lives; also, what did not fit into the pipe is told then.
_LOOK_S = 0.2

_encode = msgspec.json.Encoder().encode


class Heartbeat:
    """A running heartbeat; it ends with us, however we end."""

    def __init__(self, pulse: Pulse, *, lease_ms: int, work_s_max: float) -> None:
        self._command = list(pulse.command)
        self._greeting = _encode({**pulse.greeting, "lease_ms": lease_ms, "work_s_max": work_s_max}) + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._unsaid = bytearray()
        self._held: dict[str, int] = {}
        self._look: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the process, and wait until it is ready."""
        process = self._spawn()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_S_MAX):
                word = await asyncio.to_thread(process.stdout.readline)
        except TimeoutError:
            word = b""
        if word != READY:
            await self.close()
            raise HeartbeatFailed(f"`{' '.join(self._command)}` does not start; what it said is on stderr")
        self._look_again()

    def add(self, messages: Sequence[Message]) -> None:
        """Tell of messages that came in hand; done when this returns, before any handler can hold us up."""
        words: list[str | int] = []
        for message in messages:
            words += (message.id, message.attempt)
            self._held[message.id] = message.attempt
        self._say(b"+" + _encode(words) + b"\n")

    def remove(self, ids: Collection[str]) -> None:
        """Tell of messages that are settled."""
        for id_ in ids:
            self._held.pop(id_, None)
        self._say(b"-" + _encode(ids) + b"\n")

    async def close(self) -> None:
        """End the process; what was not removed is given back by it."""
        process, self._process = self._process, None
        if self._look is not None:
            self._look.cancel()
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, _END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, and tell it everything."""
        # A group of its own: what a terminal signals is for us, and this has to outlive our last words.
        self._process = process = subprocess.Popen(  # noqa: S603 - our own command
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, bufsize=0
        )
        assert process.stdin is not None
        # Whatever state it is in, it must not hold us up.
        os.set_blocking(process.stdin.fileno(), False)
        words = [word for pair in self._held.items() for word in pair]
        self._unsaid = bytearray()
        self._say(self._greeting + (b"+" + _encode(words) + b"\n" if words else b""))
        return process

    def _say(self, line: bytes) -> None:
        """Write as much as the pipe takes; the rest goes with the next words."""
        self._unsaid += line
        if self._process is None or self._process.stdin is None:
            return
        try:
            while self._unsaid:
                del self._unsaid[: os.write(self._process.stdin.fileno(), self._unsaid)]
        except (BlockingIOError, BrokenPipeError):
            return  # it is read all the time, or replaced at the next look

    def _look_again(self) -> None:
        """Replace a process that died."""
        process = self._process
        if process is None:
            return
        if process.poll() is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            self._spawn()
        self._say(b"")
        self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)
