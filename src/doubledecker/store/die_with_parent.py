"""A launcher that makes any child process of ours die when we do, even when we die of SIGKILL.

A parent starts `wrapped(command)` in place of `command`. This file is then run as a script: it ties itself
to the parent and becomes the command. It is run with `-I -S`, so it imports only the standard library.

On Linux the kernel does the rest: the process keeps its id through `exec`, so signals and the exit code
need no help. Two laws of prctl(2) to know: the "parent" is the thread that started the child, so start
children from a thread that lives as long as the process, the main one; and the child's own children are not
included. On systems without prctl this process stays, watches its parent, and passes signals and the exit
code on. SIGKILL cannot be passed on: who means to send it starts the child in a session, and kills the group.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
GLANCE_S = 0.2  # without prctl: a child outlives its parent by this much, at five system calls a second
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
PARENT_GONE = "the parent died before its child began"
NOT_FOUND_STATUS = 127  # what a shell answers for a command it cannot start


def wrapped(command: Sequence[str], *, on_parent_death: int = signal.SIGTERM) -> list[str]:
    """The argv that starts `command` so that it ends when this process, which must start it itself, dies."""
    watched = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(on_parent_death))]
    return [*watched, "--", *command]


def main(arguments: Sequence[str]) -> None:
    """Become, or watch over, the command in `PARENT_PID SIGNAL -- command…`; does not return."""
    parent_pid, on_parent_death = int(arguments[0]), int(arguments[1])
    command = arguments[3:]
    if _kernel_holds(on_parent_death):
        # A parent that died before the prctl sends no signal any more.
        if os.getppid() != parent_pid:
            sys.exit(PARENT_GONE)
        _become(command)
    watch(command, parent_pid=parent_pid, on_parent_death=on_parent_death)


def watch(command: Sequence[str], *, parent_pid: int, on_parent_death: int) -> None:
    """Run the command as a child and end as it ends, for systems without prctl; does not return."""
    # Blocked until there is a child to pass them on to: a signal in between would kill us and spare it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child_pid = os.fork()
    if child_pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _become(command)
    # A terminal signals the whole group: the child gets it directly, and must not get it again from us.
    # A session's leader may not leave its group; it has no terminal either.
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    _pass_signals_on(child_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _end_as(_outcome(child_pid, parent_pid=parent_pid, on_parent_death=on_parent_death))


def _kernel_holds(on_parent_death: int) -> bool:
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    return prctl is not None and prctl(PR_SET_PDEATHSIG, on_parent_death, 0, 0, 0) == 0


def _become(command: Sequence[str]) -> None:
    # Python ignores these two, and what is ignored stays ignored through exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606  no shell is what we want
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND_STATUS)


def _pass_signals_on(child_pid: int) -> None:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child_pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)


def _outcome(child_pid: int, *, parent_pid: int, on_parent_death: int) -> int:
    is_told = False
    while True:
        ended_pid, status = os.waitpid(child_pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        if not is_told and os.getppid() != parent_pid:
            os.kill(child_pid, on_parent_death)
            is_told = True
        time.sleep(GLANCE_S)


def _end_as(exit_code: int) -> None:
    """Exit with the child's code, or die of the signal that it died of."""
    if exit_code < 0:
        if -exit_code not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
