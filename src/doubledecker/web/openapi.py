"""The OpenAPI document: what the API takes and answers, for people and for tests."""

from doubledecker import __version__


def document() -> dict[str, object]:
    """The whole document."""
    return {"openapi": "3.1.0", "info": {"title": "Doubledecker", "version": __version__}, "paths": {}}
