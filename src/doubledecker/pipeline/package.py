"""Our own code as one file, for executors that do not have it, or have another version of it.

What it rests on, Spark's Python packages included, must be installed on the nodes.
"""

import zipfile
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGES = ("doubledecker", "pyspark_doubledecker")
ZIP, MAIN = "doubledecker.zip", "doubledecker_pipeline.py"
_MAIN_TEXT = '''"""What spark-submit starts: the command line of Doubledecker."""

from doubledecker.cli import main

main()
'''


def write_zip(folder: Path) -> Path:
    """Write all our code, and what lies beside it, to `doubledecker.zip` in a folder."""
    path = folder / ZIP
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            _add(archive, resources.files(package), package)
    return path


def write_main(folder: Path) -> Path:
    """Write the program that spark-submit asks for."""
    path = folder / MAIN
    path.write_text(_MAIN_TEXT)
    return path


def _add(archive: zipfile.ZipFile, entry: Traversable, name: str) -> None:
    if entry.is_dir():
        for inner in sorted(entry.iterdir(), key=lambda each: each.name):
            if inner.name != "__pycache__":
                _add(archive, inner, f"{name}/{inner.name}")
    else:
        archive.writestr(name, entry.read_bytes())
