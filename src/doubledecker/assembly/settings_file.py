"""A file of settings, `doubledecker.toml`, beside the environment, which wins.

What the file says is put into the environment of the process, so that everything that reads settings, and every process
that is started, finds it there.
"""

import tomllib
from collections.abc import MutableMapping
from pathlib import Path

from doubledecker.assembly import settings
from doubledecker.errors import SettingInvalid

# Names the file; without it the one in the working directory is read, if there is one.
VARIABLE = settings.PREFIX + "SETTINGS"
NAME = "doubledecker.toml"


def load(environment: MutableMapping[str, str], folder: Path) -> None:
    """Put what the file says into the environment, except what is set there already by any of its names."""
    path = folder / environment.get(VARIABLE, NAME)
    if VARIABLE not in environment and not path.is_file():
        return
    given = {settings.PREFIX + name.upper(): text for name, text in _read(path).items()}
    try:
        settings.read(given)
    except SettingInvalid as error:
        raise SettingInvalid(f"{path}: {error}") from error
    for name, text in given.items():
        if settings.variable(name.removeprefix(settings.PREFIX).lower(), environment) is None:
            environment[name] = text


def _read(path: Path) -> dict[str, str]:
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingInvalid(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{path} is not TOML: {error}") from error
    return {name: _text(path, name, value) for name, value in found.items()}


def _text(path: Path, name: str, value: object) -> str:
    """A value as its variable would have it; what a variable lists with commas may be an array."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise SettingInvalid(f"{path}: {name} is {value!r}; it must be text, a number, true or false, or an array of text")
