"""Several processes of one command, supervised in the foreground: `doubledecker web --processes 4`.

The first process is started alone, and the others once it is ready. What keeps every process from starting, such as a
server that does not fit, is then said once, and ends the command with the exit code that one process would have. Later,
a process that dies is started again (cli/serve/keep.py), whatever the reason.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from doubledecker import log
from doubledecker.assembly.launch import Member
from doubledecker.cli.serve.keep import ChildLife, Command, Ended, Kept, Told

_log = log.get("supervisor")


def members(
    command: Command, count: int, *, told: Told, grace_s: float, log_of: Callable[[str], Path | None] = lambda _: None
) -> list[Kept]:
    """That many processes of one command, each with a name of its own."""
    kind = command.arguments[0]
    kept = []
    for number in range(1, count + 1):
        member = Member(number, count)
        name, words = member.name(kind), [*command.arguments, "--member", str(member)]
        life = ChildLife(replace(command, arguments=words, log=log_of(name), reports_readiness=True))
        kept.append(Kept(name, life, told=told, grace_s=grace_s, kind=kind))
    return kept


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a supervisor; a closed terminal does so too, unless that is ignored, as nohup has it."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def supervise(arguments: Sequence[str], count: int, *, grace_s: float) -> None:
    """Run that many processes of a command until SIGINT or SIGTERM; exits with the code of a start that failed."""
    sys.exit(asyncio.run(_Supervisor(Command(arguments, os.environ), count, grace_s=grace_s).run()))


class _Supervisor:
    """One run of a command with several processes."""

    def __init__(self, command: Command, count: int, *, grace_s: float) -> None:
        self._command = command.arguments[0]
        self._kept = members(command, count, told=self._note_end, grace_s=grace_s)
        self._stop = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Start all, keep them running until told to stop, then stop all; returns the exit code."""
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._stop_or_kill)
        _log.info("processes.started", command=self._command, processes=len(self._kept))
        try:
            await self._start(self._kept[:1])
            await self._start(self._kept[1:])
            if not self._stop.is_set():
                _log.info("processes.ready", command=self._command, processes=len(self._kept))
            await self._stop.wait()
        finally:
            await asyncio.gather(*(each.stop() for each in self._kept))
        _log.info("processes.stopped", command=self._command)
        return self._exit_code

    async def _start(self, some: Iterable[Kept]) -> None:
        """Start these and wait until they are ready, or until told to stop."""
        if self._stop.is_set():
            return
        ready = []
        for each in some:
            each.keep()
            ready.append(each.was_ready.wait())
        starting = asyncio.gather(*ready)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)

    def _note_end(self, ended: Ended) -> None:
        is_up = any(each.was_ready.is_set() for each in self._kept)
        if not is_up and ended.exit_code is not None and ended.exit_code > 0:
            # It has said why on stderr; the others would say the same.
            self._exit_code = ended.exit_code
            self._stop.set()
        elif ended.is_crash_loop:
            how, again_s = ended.how, ended.again_s
            _log.error("process.crash_looping", process=ended.name, how=how, deaths=ended.deaths, again_s=again_s)
        else:
            _log.warning("process.ended", process=ended.name, how=ended.how, again_s=ended.again_s)

    def _stop_or_kill(self) -> None:
        """The first signal stops in order; the next one kills."""
        if self._stop.is_set():
            for each in self._kept:
                each.kill()
        self._stop.set()
