"""The routes of replays and erasures: asking for them, looking how they fare, cancelling; the pipeline works."""

from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.model import audit
from doubledecker.model import erasure as erasing
from doubledecker.model import pipeline_job as views
from doubledecker.model import replay as replaying
from doubledecker.model.token import Caller
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS
from doubledecker.web import auditing, shapes
from doubledecker.web import body as bodies
from doubledecker.web.body import BodyLimits


class PipelineJobRoutes:
    """Answers everything about replays, which are their owner's and root's, and about erasures, which are root's."""

    def __init__(self, jobs: PipelineJobs, limits: BodyLimits) -> None:
        self._jobs = jobs
        self._limits = limits

    async def ask_replay(self, request: Request, caller: Caller) -> Response:
        """Send past events again, to one target alone."""
        asked = replaying.parse(await self._body(request))
        job = await self._jobs.ask_replay(asked, caller)
        auditing.learn(request, target=job.id, detail=audit.given(asked), is_change=not asked.dry_run)
        return shapes.json(views.replay(job), status=202)

    async def list_replays(self, _request: Request, caller: Caller) -> Response:
        """A client's own replays, or all of them for root; the newest first."""
        return shapes.json([views.replay(each) for each in await self._jobs.list_(REPLAYS, caller)])

    async def show_replay(self, request: Request, caller: Caller) -> Response:
        """How a replay fares."""
        return shapes.json(views.replay(await self._jobs.read(REPLAYS, request.path_params["id"], caller)))

    async def cancel_replay(self, request: Request, caller: Caller) -> Response:
        """Cancel a replay; what is sent stays sent."""
        return shapes.json(views.replay(await self._jobs.cancel(REPLAYS, request.path_params["id"], caller)))

    async def ask_erasure(self, request: Request, caller: Caller) -> Response:
        """Remove events from the lake for good, as root."""
        asked = erasing.parse(await self._body(request))
        job = await self._jobs.ask_erasure(asked, caller)
        auditing.learn(request, target=job.id, detail=audit.given(asked), is_change=not asked.dry_run)
        return shapes.json(views.erasure(job), status=202)

    async def list_erasures(self, _request: Request, caller: Caller) -> Response:
        """All erasures, for root; the newest first."""
        return shapes.json([views.erasure(each) for each in await self._jobs.list_(ERASURES, caller)])

    async def show_erasure(self, request: Request, caller: Caller) -> Response:
        """How an erasure fares, for root."""
        return shapes.json(views.erasure(await self._jobs.read(ERASURES, request.path_params["id"], caller)))

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)
