"""What is written into forms, as the API takes it; what is empty is absent."""

from collections.abc import Mapping

import msgspec

from doubledecker.errors import BadRequest

_SHOWN = 80


def texts(form: Mapping[str, str], *names: str) -> dict[str, object]:
    """Fields that hold text."""
    return {name: text for name in names if (text := form.get(name, "").strip())}


def whole(form: Mapping[str, str], *names: str) -> dict[str, object]:
    """Fields that hold whole numbers."""
    return {name: _read(name, text, int, "a whole number, like 100") for name, text in texts(form, *names).items()}


def numbers(form: Mapping[str, str], *names: str) -> dict[str, object]:
    """Fields that hold numbers."""
    return {name: _read(name, text, float, "a number, like 2.5") for name, text in texts(form, *names).items()}


def objects(form: Mapping[str, str], *names: str) -> dict[str, object]:
    """Fields that hold a JSON object."""
    return {
        name: _read(name, text, dict, 'a JSON object, like {"topic": ["orders"]}')
        for name, text in texts(form, *names).items()
    }


def words(form: Mapping[str, str], name: str) -> list[str]:
    """What a field holds between spaces, commas and ends of lines."""
    return form.get(name, "").replace(",", " ").split()


def _read(name: str, text: object, type_: type[object], like: str) -> object:
    try:
        return msgspec.json.decode(str(text), type=type_)
    except msgspec.DecodeError as error:
        raise BadRequest(f"{name} is {str(text)[:_SHOWN]!r}; it must be {like} ({error})") from None
