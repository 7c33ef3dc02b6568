"""Between a connection and its transport: reading that is held, and closing that leaves the answer time to arrive."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """uvicorn's flow control, which stops reading while a body is not taken; and we, while bytes are held back."""

    _is_full = False
    _is_held = False

    def pause_reading(self) -> None:
        self._is_full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_full = False
        if not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            if not self._is_full:
                super().resume_reading()


class LingeringTransport(asyncio.Transport):
    """What answers a request whose body is under way: to close at once would take the answer from the client."""

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._linger = linger

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._linger()
