"""Errors that survive pickling, as between processes and in Spark's tasks.

Python pickles an exception as its class and `args`, and makes it anew by calling the class with them: one whose
`__init__` takes anything else than what it passes on cannot be read again. Ours are made without calling `__init__`.
"""

from typing import Self


class Portable(Exception):
    """An exception that is the same after pickling, fields included."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revived, (type(self), self.args, self.__dict__.copy())

    @classmethod
    def revived(cls, args: tuple[object, ...], fields: dict[str, object]) -> Self:
        error = cls.__new__(cls, *args)
        # Not all classes take them in __new__: those that are an OSError too wait for __init__.
        error.args = args
        error.__dict__.update(fields)
        return error


def _revived(kind: type[Portable], args: tuple[object, ...], fields: dict[str, object]) -> Portable:
    return kind.revived(args, fields)
