"""A listener for logs: it hears when a breaker opens and when it has closed, and is silent of the probes between."""

from collections.abc import Callable

from doubledecker.stages.context import Notice


class Transitions:
    """Calls `opened` and `closed` in turn; for a chain with one breaker: `chain.bind(listener=Transitions(…))`."""

    def __init__(self, *, opened: Callable[[], None], closed: Callable[[], None]) -> None:
        self._opened = opened
        self._closed = closed
        self._is_open = False

    def __call__(self, notice: Notice) -> None:
        if notice.what in {"open", "forced open"} and not self._is_open:
            self._is_open = True
            self._opened()
        elif notice.what in {"closed", "forced closed"} and self._is_open:
            self._is_open = False
            self._closed()
