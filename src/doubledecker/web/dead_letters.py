"""The routes of dead letters, of subscribers and of queues: found, looked at, redriven, purged. Counts come first."""

import re
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta, Raw
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import Action, LetterOwner
from doubledecker.bus.letter_jobs import LetterJobs
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest, NotFound
from doubledecker.model import event, moment, schema
from doubledecker.model.dead_letter import REASONS, DeadLetter, LetterFilter, LetterPlace, no_status
from doubledecker.model.event import Tenant, TopicName
from doubledecker.model.outcome import STATUSES
from doubledecker.model.reserved import is_within
from doubledecker.model.schema import Count, DryRun, Shape, between, one_of, up_to
from doubledecker.model.token import Caller
from doubledecker.store.letter_jobs import LetterJob
from doubledecker.store.partitions import Partitions
from doubledecker.web import auditing, queries, shapes
from doubledecker.web import body as bodies
from doubledecker.web.body import BodyLimits
from doubledecker.web.queue_contents import LIST_BYTES_MAX
from doubledecker.web.receivers import ReceiverFinder
from doubledecker.web.turns import ClientLocks

RATE_MIN, RATE_MAX = 0.01, 10_000
_STATUS = re.compile(r"[0-9]{1,3}")
_PARAMETERS = ("topic", "tenant", "reason", "status", "from", "to", "event", "limit", "after")
_AT = Annotated[Count, Meta(description="In milliseconds since 1970")]


class DeadLetterAnswer(Shape):
    """An event that its receiver was given up for."""

    id: str
    topic: str
    tenant: Tenant
    attempts: Count
    reason: Annotated[str, Meta(description="`attempts`, `age`, `rejected` or `lease`")]
    status: Annotated[Count, Meta(description="Of the last answer; 0 when there was none")]
    why: Annotated[str, Meta(description="The reason in a line")]
    answer_headers: Annotated[list[str], Meta(description="Of the last answer")]
    answer: Annotated[str, Meta(description="The beginning of the last answer")]
    accepted_at: Annotated[Count, Meta(description="When its batch was made; 0 for a message of a queue")]
    died_at: _AT
    batch: Annotated[str, Meta(description="Empty for a message of a queue")]
    redriven: Annotated[Count, Meta(description="How often it was redriven before")]
    event: Annotated[Raw, Meta(description="The event, as it is delivered", extra_json_schema={"type": "object"})]


class DeadLetters(Shape):
    count: Annotated[Count, Meta(description="How many there are that the request means")]
    messages: list[DeadLetterAnswer]
    after: Annotated[str, Meta(description="What `after` is for the next page; null when there is none")] | None


class SettledLetters(Shape):
    count: Annotated[Count, Meta(description="How many there were that the request meant")]
    messages: Annotated[Count, Meta(description="How many were redriven or purged, or with dry_run would be")]
    dry_run: bool
    until: Annotated[str, Meta(description="Before this they had died; as `to` it leaves out those that die later")]


class LetterJobAnswer(Shape):
    """A job in the background, and how far it has come."""

    id: str
    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue")]
    action: Annotated[str, one_of(["redrive", "purge"])]
    state: Annotated[str, one_of(["running", "done", "cancelled", "gone"])]
    count: Annotated[Count, Meta(description="How many letters it meant when it was asked for")]
    done: Annotated[Count, Meta(description="How many of them it has redriven or purged")]
    rate_per_s: float
    asked_at: _AT
    ended_at: Annotated[Count, Meta(description="null while it runs")] | None


class ChosenBody(msgspec.Struct, forbid_unknown_fields=True):
    """All dead letters, or those with all of these values, or of some by id those; with a rate by a job."""

    ids: Annotated[list[str], up_to(queries.LIST_MAX)] | None = None
    topic: TopicName | None = None
    tenant: str | int | None = None
    reason: Annotated[str, one_of(REASONS)] | None = None
    status: Annotated[int, between(0, STATUSES[-1])] | None = None
    begin: Annotated[str, Meta(description="Only those that died from then on, in ISO 8601")] | None = msgspec.field(
        default=None, name="from"
    )
    to: Annotated[str, Meta(description="Only those that died before then")] | None = None
    rate_per_s: Annotated[float, between(RATE_MIN, RATE_MAX, "So many a second, by a job in the background")] | None = (
        None
    )
    dry_run: DryRun = False

    @property
    def filter(self) -> LetterFilter:
        """Which letters are meant."""
        return LetterFilter(
            self.topic,
            event.tenant_text(self.tenant),
            self.reason,
            self.status,
            queries.at_ms(self.begin, name="from"),
            queries.at_ms(self.to, name="to"),
        )


_CHOSEN = msgspec.json.Decoder(ChosenBody)


class DeadLetterRoutes:
    """Answers what is asked about the dead letters of a receiver; one read a client at a time."""

    def __init__(
        self,
        finder: ReceiverFinder,
        partitions: Partitions,
        live: LiveRegistry,
        limits: BodyLimits,
        reads: ClientLocks,
        pacer: Pacer,
    ) -> None:
        self._finder = finder
        self._partitions = partitions
        self._live = live
        self._jobs = LetterJobs(partitions, live)
        self._limits = limits
        self._reads = reads
        self._pacer = pacer

    async def list_(self, request: Request, caller: Caller) -> Response:
        """Dead letters, the oldest first."""
        owner = await self._owner(request, caller)
        query = request.query_params
        chosen, most, after = parse(query), queries.limit(query.get("limit")), query.get("after")
        chosen = self._within(chosen, caller)
        place = None if after is None else LetterPlace.parse(after)
        async with self._reads.of(caller.share):
            page = await dead_letters.page(
                self._partitions, owner, chosen, most=most, bytes_max=LIST_BYTES_MAX, after=place
            )
            count = await dead_letters.count(self._partitions, owner, chosen)
        event_id = query.get("event")
        # Of what the page has: ids of events are no index, and a page costs what it costs without this.
        rows = [
            _shown(letter)
            for letter in page.letters
            if event_id in {None, letter.event_id} and is_within(caller.scopes, letter.topic, letter.tenant)
        ]
        return shapes.json(DeadLetters(count, rows, None if page.after is None else str(page.after)))

    async def show(self, request: Request, caller: Caller) -> Response:
        """One dead letter."""
        owner, id_ = await self._owner(request, caller), request.path_params["id"]
        for letter in await dead_letters.find(self._partitions, owner, [id_]):
            if is_within(caller.scopes, letter.topic, letter.tenant):
                return shapes.json(_shown(letter))
        raise NotFound(f"there is no dead letter {id_[:80]!r}")

    async def redrive(self, request: Request, caller: Caller) -> Response:
        """Have dead letters delivered again with new attempts, or count them."""
        return await self._settle(request, caller, "redrive")

    async def purge(self, request: Request, caller: Caller) -> Response:
        """Destroy dead letters, or count them."""
        return await self._settle(request, caller, "purge")

    async def list_jobs(self, request: Request, caller: Caller) -> Response:
        """The jobs that redrive or purge these dead letters, or did, the newest first."""
        known = await self._jobs.of(await self._owner(request, caller))
        done = await self._jobs.done([job.id for job in known])
        return shapes.json([_job(job, done[job.id]) for job in known])

    async def show_job(self, request: Request, caller: Caller) -> Response:
        """How far a job has come."""
        return await self._shown_job(
            await self._jobs.find(await self._owner(request, caller), request.path_params["id"])
        )

    async def cancel_job(self, request: Request, caller: Caller) -> Response:
        """End a job; what it has done stays done."""
        owner = await self._owner(request, caller)
        auditing.learn(request, detail=f"job {request.path_params['id']}")
        return await self._shown_job(await self._jobs.cancel(owner, request.path_params["id"]))

    async def _settle(self, request: Request, caller: Caller, action: Action) -> Response:
        asked = choose(await bodies.read(request.scope, request.receive, self._limits))
        owner = await self._owner(request, caller)
        async with self._reads.of(caller.share):
            now_ms = await dead_letters.latest_ms(self._partitions)
            end_ms = now_ms + 1 if asked.filter.to_ms is None else min(asked.filter.to_ms, now_ms + 1)
            until = moment.to_text(moment.from_ms(end_ms))
            chosen = self._within(asked.filter, caller)
            if asked.ids is not None:
                return _answered(request, await self._settle_named(owner, action, chosen, asked, until=until))
            if asked.rate_per_s is not None and not asked.dry_run:
                job = await self._jobs.begin(owner, action, chosen, rate_per_s=asked.rate_per_s)
                auditing.learn(request, count=job.count, detail=f"job {job.id}")
                return await self._shown_job(job, status=202)
            meant = replace(chosen, to_ms=end_ms)
            count = await dead_letters.count(self._partitions, owner, meant)
            if asked.dry_run:
                return _answered(request, SettledLetters(count, count, dry_run=True, until=until))
            most = min(count, dead_letters.SETTLED_MAX)
            await dead_letters.admit(self._pacer, owner, action, most)
            done = await dead_letters.settle(
                self._partitions, self._live, owner, action, meant, most=most, until_ms=now_ms
            )
        return _answered(request, SettledLetters(count, done, dry_run=False, until=until))

    async def _settle_named(
        self, owner: LetterOwner, action: Action, chosen: LetterFilter, asked: ChosenBody, *, until: str
    ) -> SettledLetters:
        found = await dead_letters.meant(self._partitions, owner, asked.ids or [], chosen)
        if asked.dry_run:
            return SettledLetters(len(found), len(found), dry_run=True, until=until)
        await dead_letters.admit(self._pacer, owner, action, len(found))
        done = await dead_letters.settle_named(self._partitions, self._live, owner, action, found)
        return SettledLetters(len(found), done, dry_run=False, until=until)

    async def _shown_job(self, job: LetterJob, *, status: int = 200) -> Response:
        done = await self._jobs.done([job.id])
        return shapes.json(_job(job, done[job.id]), status=status)

    def _within(self, chosen: LetterFilter, caller: Caller) -> LetterFilter:
        """Those that died since the caller is limited as it is; raises Forbidden for a topic or tenant beyond that."""
        if not caller.scopes.limits_events:
            return chosen
        caller.scopes.check_topics([] if chosen.topic is None else [chosen.topic], to="see")
        caller.scopes.check_tenants([] if chosen.tenant is None else [chosen.tenant], to="see")
        known = self._live.snapshot.tokens.get(caller.id)
        return replace(chosen, from_ms=max(chosen.from_ms or 0, known.limited_at if known else 0))

    async def _owner(self, request: Request, caller: Caller) -> LetterOwner:
        chosen = await self._finder.find(request, caller)
        # A queue has dead letters with or without a callback.
        if chosen.queue is not None:
            return LetterOwner(chosen.queue.receiver, chosen.queue)
        return LetterOwner(chosen.pushed)


def _answered(request: Request, settled: SettledLetters) -> Response:
    auditing.learn(request, count=settled.messages, is_change=not settled.dry_run)
    return shapes.json(settled)


def parse(query: QueryParams) -> LetterFilter:
    """What a query asks for; raises BadRequest with what is allowed."""
    queries.check_names(query, _PARAMETERS)
    status = query.get("status")
    if status is not None and not _STATUS.fullmatch(status):
        raise no_status(status)
    chosen = LetterFilter(
        query.get("topic"),
        query.get("tenant"),
        query.get("reason"),
        None if status is None else int(status),
        queries.at_ms(query.get("from"), name="from"),
        queries.at_ms(query.get("to"), name="to"),
    )
    chosen.check()
    return chosen


def choose(body: bytes) -> ChosenBody:
    """Which dead letters are meant; an empty body means all."""
    asked = schema.decode(_CHOSEN, body or b"{}", what="a choice of dead letters")
    schema.check(asked)
    if asked.ids is not None and len(asked.ids) > queries.LIST_MAX:
        raise BadRequest(f"{len(asked.ids)} ids; at most {queries.LIST_MAX} in one request")
    if asked.ids is not None and asked.rate_per_s is not None:
        raise BadRequest("ids and rate_per_s are given; a rate is for letters that are chosen by their values")
    asked.filter.check()
    return asked


def _shown(letter: DeadLetter) -> DeadLetterAnswer:
    return DeadLetterAnswer(
        id=letter.id,
        topic=letter.topic,
        tenant=letter.tenant,
        attempts=letter.attempts,
        reason=letter.reason,
        status=letter.status,
        why=letter.detail,
        answer_headers=list(letter.answer_headers),
        answer=letter.answer,
        accepted_at=letter.accepted_at,
        died_at=letter.died_at,
        batch=letter.batch,
        redriven=letter.redriven,
        event=Raw(letter.event),
    )


def _job(job: LetterJob, done: int) -> LetterJobAnswer:
    return LetterJobAnswer(
        id=job.id,
        receiver=job.receiver,
        action=job.action,
        state=job.state,
        count=job.count,
        done=done,
        rate_per_s=job.rate_per_s,
        asked_at=job.asked_at,
        ended_at=job.ended_at or None,
    )
