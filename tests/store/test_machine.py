"""How many cores there are to use: those of the machine, or what a container is allowed."""

import os
from pathlib import Path

import pytest

from doubledecker.store import machine

MACHINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("group", "quotas", "found"),
    [
        ("0::/app", {"app/cpu.max": "50000 100000"}, 1),
        ("0::/app", {"app/cpu.max": "100000 100000"}, 1),
        ("0::/app/web", {"app/cpu.max": "100000 100000", "app/web/cpu.max": "max 100000"}, 1),
        ("0::/of/the/host", {"cpu.max": "10000 100000"}, 1),
        ("0::/app", {"app/cpu.max": "max 100000"}, MACHINE),
        ("0::/app", {"app/cpu.max": f"{100_000 * (MACHINE + 1)} 100000"}, MACHINE),
        ("0::/", {}, MACHINE),
    ],
    ids=["half a core", "one", "a parent's", "in a container", "none", "more than there are", "no file"],
)
def test_the_least_of_machine_and_control_groups_holds(tmp_path: Path, group: str, quotas: dict[str, str], found: int):
    files = {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{name}": text for name, text in quotas.items()}}
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    assert machine.cores(tmp_path) == found


@pytest.mark.skipif(MACHINE < 2, reason="one core cannot be less than one and a half")
def test_a_part_of_a_core_counts_as_one(tmp_path: Path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")

    assert machine.cores(tmp_path) == 2
