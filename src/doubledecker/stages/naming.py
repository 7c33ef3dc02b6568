"""What a stage is called when nobody named it."""

import re


def in_words(kind: type) -> str:
    """The name of a class in small letters: SingleFlight is `single_flight`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
