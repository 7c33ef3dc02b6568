"""The net under the slots: no handler can end a slot, but should one end all the same, no consumer lingers."""

import asyncio

from doubledecker.client.errors import ClientError


class Net:
    """Under the slots: hears of one that died, which would hold its messages and handle no more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._torn = asyncio.Event()
        self._error: BaseException | None = None

    def tear(self, error: BaseException) -> None:
        self._error = self._error or error
        self._torn.set()

    async def torn(self) -> bool:
        """Wait until a slot dies."""
        return await self._torn.wait()

    def check(self) -> None:
        """Raise what a slot died of, if one did."""
        if self._error is not None:
            raise ClientError(f"a slot of queue {self._name!r} died of {type(self._error).__name__}") from self._error
