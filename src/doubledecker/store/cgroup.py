"""Control groups of Linux: the files that bound what this process, or its container, may use."""

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")


def files(hierarchies: Mapping[str, tuple[str, str]], root: Path = ROOT) -> Iterator[Path]:
    """The files of a limit, for our group and all that it is in.

    `hierarchies` gives the folder of a hierarchy and the name of its file, by the name of the controller; that is empty
    in version 2.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not a Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in set(controllers.split(",")) & hierarchies.keys():
            folder, file = hierarchies[name]
            yield from (place / file for place in _upwards(root / folder, path))


def _upwards(top: Path, path: str) -> list[Path]:
    """The group and all that it is in. In a container the path may be that of the host; then only the top is there."""
    group = top / path.lstrip("/")
    return [place for place in (group, *group.parents) if place.is_relative_to(top)]
