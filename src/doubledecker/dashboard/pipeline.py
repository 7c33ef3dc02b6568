"""The pages of the pipeline: its steps, and what it is asked for: replays and erasures.

A replay or an erasure is counted first, by a job that changes nothing. The page of that job says how many events it is
about, and has the form that asks for the real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.pages import HOME, Visit, part
from doubledecker.errors import BadRequest, Conflict
from doubledecker.model.scopes import ADMIN, REPLAY
from doubledecker.model.step import StepReport
from doubledecker.store import journal
from doubledecker.store.journal import Lag

PIPELINE = f"{HOME}/pipeline"
# Jobs of each kind that the page lists, the newest first.
_JOBS_MAX = 50
_TARGETS = ("to_subscriber", "to_queue", "to_topic")
_CHOICES = ("from", "to", "topic", "tenant", "where")
_RATE_DIGITS_MAX = 9


@dataclass(frozen=True)
class StepRow:
    """A step as it reported last, and how far it is behind; None where it reads no journal of its own."""

    name: str
    step: StepReport
    lag: Lag | None


class PipelinePages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """The process and its steps, and the caller's replays; erasures are an admin's."""
        state = await self._bus.pipeline()
        began = {name: state.steps[name].from_ms if name in state.steps else 0 for name in journal.ALL}
        lags = {name: await journal.read_lag(self._bus.partitions, name, from_ms=began[name]) for name in journal.ALL}
        replays = await visit.get("/replays") if visit.may(REPLAY) else []
        erasures = await visit.get("/erasures") if visit.may(ADMIN) else []
        return {
            "run": state.run,
            "is_alive": state.run is not None and state.run.is_alive(visit.now_ms),
            "rows": [StepRow(name, step, lags.get(name)) for name, step in state.steps.items()],
            "replays": replays[:_JOBS_MAX],
            "erasures": erasures[:_JOBS_MAX],
            "may_replay": visit.can(REPLAY),
            "may_erase": visit.can(ADMIN),
        }

    async def ask_replay(self, visit: Visit) -> Mapping[str, object]:
        """The form of a replay."""
        return {"given": visit.given(*_TARGETS, *_CHOICES, "rate"), "may_filter": visit.caller.is_root}

    async def count_replay(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Have the events of a replay counted."""
        kind = form.get("target", "")
        if kind not in _TARGETS:
            raise BadRequest("name what it goes to: a subscriber, a queue or a topic")
        body = _given(form, _CHOICES) | {kind: form.get("name", "").strip(), "dry_run": True}
        if rate := form.get("rate", "").strip():
            body["rate"] = _whole(rate)
        job = await visit.send("POST", "/replays", body)
        return f"{PIPELINE}/replays/{part(job['id'])}"

    async def look_at_replay(self, visit: Visit) -> Mapping[str, object]:
        """How a replay fares, or what one would send."""
        job = await visit.get(f"/replays/{part(visit.path['id'])}")
        return {"job": job, "target": _target(job), "days": _days(job["counts"])}

    async def replay(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Start the replay that was counted, or cancel one."""
        at = f"/replays/{part(visit.path['id'])}"
        if form.get("do") == "cancel":
            await visit.send("DELETE", at)
            return PIPELINE
        job = await visit.get(at)
        _check_counted(job)
        kept = {name: job[name] for name in (*_CHOICES, "rate") if job[name]}
        begun = await visit.send("POST", "/replays", kept | {name: job[name] for name in _TARGETS if name in job})
        return f"{PIPELINE}/replays/{part(begun['id'])}"

    async def ask_erasure(self, visit: Visit) -> Mapping[str, object]:
        """The form of an erasure."""
        return {"given": visit.given("tenant", "key", "topic")}

    async def count_erasure(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Have the events of an erasure counted."""
        body = _given(form, ("tenant", "key", "topic")) | {"dry_run": True}
        job = await visit.send("POST", "/erasures", body)
        return f"{PIPELINE}/erasures/{part(job['id'])}"

    async def look_at_erasure(self, visit: Visit) -> Mapping[str, object]:
        """How an erasure fares, or what one would remove."""
        job = await visit.get(f"/erasures/{part(visit.path['id'])}")
        return {"job": job, "named": job["tenant"] or job["key"], "days": _days(job["counts"])}

    async def erase(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Ask for the erasure that was counted, if its tenant or key was typed."""
        job = await visit.get(f"/erasures/{part(visit.path['id'])}")
        _check_counted(job)
        if form.get("typed", "") != (job["tenant"] or job["key"]):
            raise BadRequest(
                f"{form.get('typed', '')[:80]!r} was typed; to erase for good, type the tenant or key as it is shown"
            )
        begun = await visit.send("POST", "/erasures", _given(job, ("tenant", "key", "topic")))
        return f"{PIPELINE}/erasures/{part(begun['id'])}"


def _given(form: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: str(form[name]).strip() for name in names if str(form.get(name) or "").strip()}


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _RATE_DIGITS_MAX):
        raise BadRequest(f"the rate is {text[:80]!r}; it must be a whole number of events a second, like 1000")
    return int(text)


def _target(job: Mapping[str, str]) -> str:
    return next(f"{name.removeprefix('to_')} {job[name]}" for name in _TARGETS if name in job)


def _check_counted(job: Mapping[str, Any]) -> None:
    """Raise Conflict unless the job has counted what the next is about."""
    if not (job["dry_run"] and job["state"] == "done"):
        raise Conflict(f"job {job['id']!r} has counted nothing, or not yet: it is {job['state']}")


def _days(counts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a job is about, by topic and day, the most first."""
    return sorted(counts, key=lambda each: -int(each["events"]))[:_JOBS_MAX]
