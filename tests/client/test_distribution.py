"""The client is a distribution of its own: it runs without the bus's code, and the two own no file together."""

import asyncio
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from client.consuming import a_place
from conftest import Topology

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from doubledecker import client
for name in client.__all__:
    getattr(client, name)
with client.Bus(*sys.argv[3:]) as bus:
    print(bus.publish("orders", "create", data={"id": 1}))
print(*sorted(name for name in sys.modules if name.startswith("doubledecker")))
"""


def wheel(project: Path, folder: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=60)
    [path] = folder.iterdir()
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return wheel(ROOT / "client", tmp_path_factory.mktemp("client"))


def test_no_file_belongs_to_both(alone: zipfile.ZipFile, tmp_path: Path):
    whole = wheel(ROOT, tmp_path)

    assert set(alone.namelist()) & set(whole.namelist()) == set()
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "doubledecker").rglob("*.py")}
    assert source - set(alone.namelist()) - set(whole.namelist()) == set()
    assert "doubledecker/client/py.typed" in alone.namelist()


def test_both_have_one_version():
    [pinned] = [each for each in metadata.requires("doubledecker") or () if each.startswith("doubledecker-client")]

    assert pinned == f"doubledecker-client=={metadata.version('doubledecker-client')}"
    assert metadata.version("doubledecker") == metadata.version("doubledecker-client")


async def test_it_runs_without_the_bus(alone: zipfile.ZipFile, one: Topology, tmp_path: Path):
    (tmp_path / "needs").mkdir()
    alone.extractall(tmp_path / "client")
    for name in needs("doubledecker-client"):
        for top in {file.parts[0] for file in metadata.files(name) or () if file.parts[0] not in {"..", "__pycache__"}}:
            (tmp_path / "needs" / top).symlink_to(metadata.distribution(name).locate_file(top).__fspath__())
    (tmp_path / "program.py").write_text(PROGRAM)
    async with a_place("http", one) as place:
        # Isolated, and without site-packages: nothing of the environment is there but what it needs.
        command = [sys.executable, "-I", "-S", "program.py", "client", "needs", place.bus.url, place.http._calls.token]
        ended = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    assert ended.returncode == 0, ended.stderr
    _, modules = ended.stdout.splitlines()
    assert {name.split(".")[1] for name in modules.split() if "." in name} == {"client", "pickling"}


def needs(name: str) -> set[str]:
    """What a distribution needs, and what that needs, without extras and other systems' packages."""
    found: set[str] = set()
    for each in metadata.requires(name) or ():
        requirement, _, marker = each.partition(";")
        [short] = re.findall(r"^[\w.-]+", requirement)
        if "extra" not in marker and is_installed(short):
            found |= {short.lower().replace("_", "-")} | needs(short)
    return found


def is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
