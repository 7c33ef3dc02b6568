"""The consumer's side of the lease keeper: starts its process, and sends it the leases to extend."""

import asyncio
import mmap
import os
import subprocess
import tempfile
from collections.abc import Collection, Sequence

import msgspec

from doubledecker.client.errors import HeartbeatFailed
from doubledecker.client.lease_keeper_process import MARK, READY, Pair
from doubledecker.client.message import Message, Pulse

_START_S_MAX = 20.0
_END_S_MAX = 5.0
# How often we look whether it lives; also, what did not fit into the pipe is sent then.
_LOOK_S = 0.2

_encode = msgspec.json.Encoder().encode


class Heartbeat:
    """A running heartbeat; it ends with us, however we end."""

    def __init__(self, pulse: Pulse, *, lease_ms: int, work_s_max: float) -> None:
        self._command = list(pulse.command)
        self._terms = {**pulse.greeting, "lease_ms": lease_ms, "work_s_max": work_s_max}
        self._process: subprocess.Popen[bytes] | None = None
        self._unsaid = bytearray()
        # Numbers in order of arrival, by message and attempt: a message that was lost may come again.
        self._held: dict[Pair, int] = {}
        self._look: asyncio.TimerHandle | None = None
        self._begun = 0
        # Memory that both processes see: the mark is right at every moment, also when we are killed, and costs no call.
        self._mark_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with us
        self._mark_file.truncate(MARK.size)
        self._mark = mmap.mmap(self._mark_file.fileno(), MARK.size)

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
            raise HeartbeatFailed(f"`{' '.join(self._command)}` does not start; its output is on stderr")
        self._look_again()

    def add(self, messages: Sequence[Message]) -> None:
        """Report messages that came in hand; done when this returns, before any handler can hold us up."""
        words: list[tuple[str, int, int]] = []
        for message in messages:
            words.append((message.id, message.attempt, message.number))
            self._held[message.id, message.attempt] = message.number
        self._say(b"+" + _encode(words) + b"\n")

    def begin(self, number: int) -> None:
        """Mark that the handler of this message, and of all that arrived before it, is called."""
        if number > self._begun:
            self._begun = number
            MARK.pack_into(self._mark, 0, number)

    def remove(self, pairs: Collection[Pair]) -> None:
        """Report messages that are settled."""
        for pair in pairs:
            self._held.pop(pair, None)
        self._say(b"-" + _encode(pairs) + b"\n")

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
            self._mark.close()
            self._mark_file.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, and send it everything."""
        # A group of its own: what a terminal signals is for us, and this has to outlive our last words.
        mark = self._mark_file.fileno()
        self._process = process = subprocess.Popen(  # noqa: S603 - our own command
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            bufsize=0,
            pass_fds=(mark,),
        )
        assert process.stdin is not None
        # Whatever state it is in, it must not hold us up.
        os.set_blocking(process.stdin.fileno(), False)
        words = [(*pair, number) for pair, number in self._held.items()]
        self._unsaid = bytearray()
        greeting = _encode({**self._terms, "mark": mark}) + b"\n"
        self._say(greeting + (b"+" + _encode(words) + b"\n" if words else b""))
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
