"""The log of a Delta table, commit by commit: read and appended to without loading what the table holds.

delta-rs loads all of a table to commit to it: with 200 000 files that takes 0.6 s of processor time, each time. What
Delta asks of a writer is less: a file named for the next version, that is there whole or not at all, and that nobody
else has made. On a local disk this is a hard link, as in delta-rs itself: a file system without them holds no lake.
"""

import contextlib
import errno
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

from doubledecker.errors import LakeUnfit

LOG = "_delta_log"
# What file systems answer that have no hard links.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
Action = Mapping[str, Any]
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Commit:
    """What one commit did: files added and removed, marks set; whether columns, properties or protocol changed."""

    version: int
    stamp: Stamp | None
    added: tuple[Action, ...]
    removed: frozenset[str]
    marks: Mapping[str, int]
    is_altering: bool


def read(uri: str, version: int) -> Commit | None:
    """The commit of a version; None when there is none, or none any more."""
    marked = stamp(uri, version)
    try:
        with system_of(uri).open_input_file(_path(version)) as file:
            actions = [json.loads(line) for line in file.read().splitlines() if line]
    except FileNotFoundError:
        return None
    return Commit(
        version,
        marked,
        tuple(action["add"] for action in actions if "add" in action),
        frozenset(action["remove"]["path"] for action in actions if "remove" in action),
        {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action},
        is_altering=any("metaData" in action or "protocol" in action for action in actions),
    )


def stamp(uri: str, version: int) -> Stamp | None:
    """Inode, time and size of the commit of a version; None when there is none. Clean-up never removes the newest.

    A table that was deleted and made anew has the same versions as the former, with other stamps.
    """
    if is_local(uri):
        try:
            found = (Path(uri) / _path(version)).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
    [info] = system_of(uri).get_file_info([_path(version)])
    return (0, info.mtime_ns, info.size) if info.type == fs.FileType.File else None


def check_links(folder: str) -> None:
    """Raise LakeUnfit when the file system of a folder has no hard links: nothing could be committed there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    draft = Path(folder) / f".{uuid4()}.tmp"
    linked = draft.with_suffix(".link")
    draft.touch()
    try:
        _link(draft, linked)
    finally:
        draft.unlink()
        linked.unlink(missing_ok=True)


def append(folder: str, version: int, actions: Iterable[Action], *, after: Stamp | None = None) -> bool:
    """Commit a version of a table on a local disk, and wait until it is safe there; False if somebody has made it.

    False also if the version before is gone, or is not the one with the stamp `after`: then the caller's view is older
    than the log, and there may be newer versions of which this one would not be part.
    """
    log = Path(folder) / LOG
    draft = log / f".{uuid4()}.tmp"
    try:
        with draft.open("x") as file:
            file.writelines(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
            file.flush()
            os.fsync(file.fileno())
        former = stamp(folder, version - 1)
        if former is None or after not in {None, former}:
            return False
        _link(draft, Path(folder) / _path(version))
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync(log)
    return True


def _link(draft: Path, name: Path) -> None:
    try:
        os.link(draft, name)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise LakeUnfit(
                f"the file system of {name.parent} has no hard links ({error.strerror}), and the lake needs them; "
                "set DOUBLEDECKER_LAKE to a folder on another, such as ext4, XFS, Btrfs, APFS or NFS"
            ) from error
        raise


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
