"""Linking: bound copies of stages, each with the next one inside it."""

from collections.abc import Iterable
from dataclasses import dataclass

from doubledecker.stages.context import Context
from doubledecker.stages.naming import in_words
from doubledecker.stages.stage import Inner, Stage


@dataclass(frozen=True)
class Linked:
    """The bound stages, outermost first, and the way in."""

    run: Inner
    stages: tuple[Stage, ...]

    def all(self) -> Iterable[Stage]:
        """Every bound stage, those of branches after the stage that branches."""
        for stage in self.stages:
            yield stage
            for branch in stage.linked_branches():
                yield from branch.all()


def link(stages: tuple[Stage, ...], inner: Inner, context: Context, *, prefix: str = "") -> Linked:
    """Bind each stage with the next one inside it; the last one calls `inner`."""
    names = [context.name(prefix + named(stage)) for stage in stages]
    bound: list[Stage] = []
    run = inner
    for stage, name in zip(reversed(stages), reversed(names), strict=True):
        one = _copied(stage)
        one.bind(run, context, name)
        run = one.run
        bound.append(one)
    return Linked(run, tuple(reversed(bound)))


def _copied(stage: Stage) -> Stage:
    """As `copy.copy`, which gives the copy a dictionary of its own: Python reads attributes faster without one."""
    one = object.__new__(type(stage))
    for name, value in vars(stage).items():
        setattr(one, name, value)
    return one


def named(stage: Stage) -> str:
    """Its own name, or that of its class in small letters: SingleFlight is `single_flight`."""
    return stage.name or in_words(type(stage))
