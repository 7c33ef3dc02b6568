"""How the pipeline is: what its process and each of its steps reported last, as kept in Redis."""

import msgspec

# Four missed beats, so that a busy machine does not look like a dead one.
SILENT_MS_MAX = 10_000


class StepReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step reported last; `state` is starting, working, waiting, failing or stopped.

    `from_ms` is the time that it had reached when its process began, so that catching up can be shown as a share.
    """

    state: str
    at: int
    from_ms: int = 0
    rows: int = 0
    rows_last: int = 0
    took_ms: int = 0
    table_rows: int = 0
    table_bytes: int = 0
    table_files: int = 0
    refused: int = 0
    failures: int = 0
    retry_at: int = 0
    error: str = ""

    @property
    def rows_per_s(self) -> float:
        """How fast the last round was."""
        return self.rows_last * 1000 / self.took_ms if self.took_ms else 0.0


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the process reported last; `state` is starting, running or stopped."""

    state: str
    at: int
    began_at: int
    master: str = ""
    lake: str = ""

    def is_alive(self, now_ms: int) -> bool:
        return self.state != "stopped" and now_ms - self.at <= SILENT_MS_MAX
