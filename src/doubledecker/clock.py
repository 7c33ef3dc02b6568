"""Wall time, in the one unit that is stored: integer milliseconds since the Unix epoch."""

import time


def now_ms() -> int:
    return time.time_ns() // 1_000_000
