"""The log of a Delta table, commit by commit: read and appended to without loading what the table holds.

delta-rs loads all of a table to commit to it: with 200 000 files that takes 0.6 s of processor time, each time. What
Delta asks of a writer is less: a file named for the next version, that is there whole or not at all, and that nobody
else has made. On a local disk this is a hard link, as in delta-rs itself.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

LOG = "_delta_log"
Action = Mapping[str, Any]


@dataclass(frozen=True)
class Commit:
    """What one commit did: files added and removed, marks set; whether columns, properties or protocol changed."""

    version: int
    added: tuple[Action, ...]
    removed: frozenset[str]
    marks: Mapping[str, int]
    is_altering: bool


def read(uri: str, version: int) -> Commit | None:
    """The commit of a version; None when there is none, or none any more."""
    try:
        with system_of(uri).open_input_file(_path(version)) as file:
            actions = [json.loads(line) for line in file.read().splitlines() if line]
    except FileNotFoundError:
        return None
    return Commit(
        version,
        tuple(action["add"] for action in actions if "add" in action),
        frozenset(action["remove"]["path"] for action in actions if "remove" in action),
        {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action},
        is_altering=any("metaData" in action or "protocol" in action for action in actions),
    )


def exists(uri: str, version: int) -> bool:
    """Whether the commit of a version is there; clean-up removes old ones, and never the newest."""
    [told] = system_of(uri).get_file_info([_path(version)])
    return bool(told.type == fs.FileType.File)


def append(folder: str, version: int, actions: Iterable[Action]) -> bool:
    """Commit a version of a table on a local disk, and wait until it is safe there; False if somebody has made it.

    False also if the version before is gone: then the caller's view is older than the log, and there may be newer
    versions of which this one would not be part.
    """
    log = Path(folder) / LOG
    draft = log / f".{uuid4()}.tmp"
    with draft.open("x") as file:
        file.writelines(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        file.flush()
        os.fsync(file.fileno())
    try:
        if not exists(folder, version - 1):
            return False
        os.link(draft, Path(folder) / _path(version))
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    sync(log)
    return True


def sync_version(folder: str, version: int) -> None:
    """Wait until the commit of a version is on the disk."""
    sync(Path(folder) / _path(version))
    sync(Path(folder) / LOG)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpointed(uri: str) -> int:
    """The version of the last checkpoint; -1 when there is none."""
    try:
        with system_of(uri).open_input_file(f"{LOG}/_last_checkpoint") as file:
            return int(json.loads(file.read())["version"])
    except FileNotFoundError:
        return -1


def remove_drafts(folder: str, *, older_than_s: int) -> None:
    """Delete what appends that died left behind in the log."""
    for draft in (Path(folder) / LOG).glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > older_than_s:
                draft.unlink()


def is_local(uri: str) -> bool:
    return "://" not in uri


def system_of(uri: str) -> fs.FileSystem:
    """Where a table is: a folder, or anything that Delta knows how to reach."""
    if is_local(uri):
        return fs.SubTreeFileSystem(uri, fs.LocalFileSystem())
    return fs.PyFileSystem(DeltaStorageHandler(uri))


def _path(version: int) -> str:
    return f"{LOG}/{version:020}.json"
