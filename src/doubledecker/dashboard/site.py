"""All pages of the dashboard, and how a page becomes HTML.

Blocks of a template whose names begin with `live_` are sent anew, when they have changed, to those who watch the page.
Everything is escaped: names, event data and answers of receivers are anyone's.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import jinja2

from doubledecker.dashboard import assets, drawing, figures, new_receivers
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.clients import CLIENTS, ClientPages
from doubledecker.dashboard.dead_letters import DEAD, DeadLetterPages
from doubledecker.dashboard.event_search import EventSearch, Ground
from doubledecker.dashboard.events import EVENTS, EventPages
from doubledecker.dashboard.new_receivers import NEW
from doubledecker.dashboard.overview import OverviewPage
from doubledecker.dashboard.pages import HOME, DashboardPage, Visit, part
from doubledecker.dashboard.pipeline import PIPELINE, PipelinePages
from doubledecker.dashboard.queue_actions import QUEUES, QueueActions
from doubledecker.dashboard.receiver_actions import STATES, SUBSCRIBERS, ReceiverActions
from doubledecker.dashboard.receivers import QueuePages, SubscriberPages
from doubledecker.dashboard.system import SystemPage, TrailPage
from doubledecker.dashboard.topics import TOPICS, TopicPages
from doubledecker.model.scopes import ADMIN, ANY, LOOKING, MANAGE, REPLAY, SEARCH, SEEING_QUEUES, STREAM, SUBSCRIBING

LIVE = "live_"
_ASK = "ask.html"


class _Rest(TypedDict):
    needs: Sequence[str]
    is_live: bool


def pages(bus: BusView, ground: Ground) -> list[DashboardPage]:
    """All of them, in the order of the navigation."""
    subscribers, queues = SubscriberPages(bus), QueuePages(bus)
    of_receivers, of_queues = SUBSCRIBERS, QUEUES
    receiving = (*SUBSCRIBING, *SEEING_QUEUES)
    one, queue = subscribers.look_at_one, queues.look_at_one
    return [
        DashboardPage(HOME, "Overview", "overview.html", OverviewPage(bus).look, "Overview"),
        DashboardPage(of_receivers, "Subscribers", "subscribers.html", subscribers.look, "Subscribers", receiving),
        DashboardPage(f"{of_receivers}/{{receiver}}", "Subscriber", "subscriber.html", one, needs=receiving),
        *_on_receivers(ReceiverActions(bus)),
        DashboardPage(of_queues, "Queues", "queues.html", queues.look, "Queues", SEEING_QUEUES),
        DashboardPage(f"{of_queues}/{{queue}}", "Queue", "queue.html", queue, needs=SEEING_QUEUES),
        *_on_queues(QueueActions()),
        *_of_topics(TopicPages(bus)),
        *_new(),
        *_of_dead_letters(DeadLetterPages(bus)),
        *_of_events(EventPages(bus, EventSearch(bus, ground))),
        *_of_pipeline(PipelinePages(bus)),
        *_of_clients(ClientPages(bus)),
        DashboardPage(f"{HOME}/system", "System", "system.html", SystemPage(bus).look, "System"),
        DashboardPage(f"{HOME}/audit", "Audit", "audit.html", TrailPage().look, "Audit", is_live=False),
    ]


def _of_pipeline(pages: PipelinePages) -> list[DashboardPage]:
    replay, erasure = f"{PIPELINE}/replays/{{id}}", f"{PIPELINE}/erasures/{{id}}"
    replaying: _Rest = {"needs": (REPLAY,), "is_live": False}
    erasing: _Rest = {"needs": (ADMIN,), "is_live": False}
    of_replay, of_erasure = pages.look_at_replay, pages.look_at_erasure
    ask, ask_erasure, counts = pages.ask_replay, pages.ask_erasure, pages.count_replay
    return [
        DashboardPage(PIPELINE, "Pipeline", "pipeline.html", pages.look, "Pipeline"),
        DashboardPage(f"{PIPELINE}/replay", "Replay events", "replay_ask.html", ask, act=counts, **replaying),
        DashboardPage(replay, "Replay", "replay.html", of_replay, needs=(REPLAY,), act=pages.replay),
        DashboardPage(f"{PIPELINE}/erase", "Erase", "erase_ask.html", ask_erasure, act=pages.count_erasure, **erasing),
        DashboardPage(erasure, "Erasure", "erasure.html", of_erasure, needs=(ADMIN,), act=pages.erase),
    ]


def _of_events(events: EventPages) -> list[DashboardPage]:
    one = f"{EVENTS}/{{event}}"
    seeing: _Rest = {"needs": (SEARCH, STREAM), "is_live": False}
    resend, search = events.ask_resend, events.search
    return [
        DashboardPage(EVENTS, "Events", "events.html", events.look, "Events", **seeing),
        DashboardPage(one, "Event", "event.html", events.look_at_one, **seeing),
        DashboardPage(
            f"{one}/resend", "Send again", "resend.html", resend, "", (REPLAY,), events.resend, is_live=False
        ),
        DashboardPage(f"{HOME}/search", "Search", "search.html", search, is_live=False),
    ]


def _on_receivers(actions: ReceiverActions) -> list[DashboardPage]:
    one = f"{SUBSCRIBERS}/{{receiver}}"
    rest: _Rest = {"needs": (MANAGE,), "is_live": False}
    ending: _Rest = {"needs": SUBSCRIBING, "is_live": False}
    return [
        *(
            DashboardPage(f"{one}/{each.path}", each.path.capitalize(), _ASK, each.ask, act=each.act, **rest)
            for each in STATES
        ),
        DashboardPage(f"{one}/test", "Test", _ASK, actions.ask_test, act=actions.test, **rest),
        DashboardPage(
            f"{one}/rotate",
            "Rotate the secret",
            _ASK,
            actions.ask_rotate,
            act=actions.rotate,
            keeps_form=True,
            **rest,
        ),
        DashboardPage(f"{one}/end", "End the subscription", _ASK, actions.ask_end, act=actions.end, **ending),
    ]


def _on_queues(actions: QueueActions) -> list[DashboardPage]:
    one = f"{QUEUES}/{{queue}}"
    seen: _Rest = {"needs": SEEING_QUEUES, "is_live": False}
    rest: _Rest = {"needs": (MANAGE,), "is_live": False}
    ask_rule, rule = actions.ask_rule, actions.rule
    return [
        DashboardPage(f"{one}/tenant", "Tenant", "tenant.html", actions.look_at_tenant, **seen),
        DashboardPage(f"{one}/rule", "Rule of a tenant", _ASK, ask_rule, act=rule, keeps_form=True, **rest),
        DashboardPage(f"{one}/purge", "Purge", _ASK, actions.ask_purge, act=actions.purge, **rest),
        DashboardPage(f"{one}/delete", "Delete the queue", _ASK, actions.ask_delete, act=actions.delete, **rest),
    ]


def _of_topics(topics: TopicPages) -> list[DashboardPage]:
    one, seen = f"{TOPICS}/{{topic}}", _Rest(needs=ANY, is_live=False)
    rest: _Rest = {"needs": (MANAGE,), "is_live": False}
    return [
        DashboardPage(TOPICS, "Topics", "topics.html", topics.look, "Topics", **seen),
        DashboardPage(one, "Topic", "topic.html", topics.look_at_one, **seen),
        DashboardPage(f"{one}/edit", "Edit", _ASK, topics.ask_edit, act=topics.edit, keeps_form=True, **rest),
    ]


def _new() -> list[DashboardPage]:
    ask, create = new_receivers.ask_subscription, new_receivers.create_subscription
    rest: _Rest = {"needs": SUBSCRIBING, "is_live": False}
    ask_queue, create_queue = new_receivers.ask_queue, new_receivers.create_queue
    of_queue: _Rest = {"needs": (MANAGE,), "is_live": False}
    return [
        DashboardPage(f"{NEW}/subscription", "New subscription", "new.html", ask, act=create, keeps_form=True, **rest),
        DashboardPage(
            f"{NEW}/queue", "New queue", "new.html", ask_queue, act=create_queue, keeps_form=True, **of_queue
        ),
    ]


def _of_clients(clients: ClientPages) -> list[DashboardPage]:
    one, rest = f"{CLIENTS}/{{id}}", _Rest(needs=(ADMIN,), is_live=False)
    ask_new, create = clients.ask_new, clients.create
    ask_rotate, rotate = clients.ask_rotate, clients.rotate
    return [
        DashboardPage(CLIENTS, "Clients", "clients.html", clients.look, "Clients", **rest),
        DashboardPage(f"{NEW}/client", "New client", _ASK, ask_new, act=create, keeps_form=True, **rest),
        DashboardPage(f"{one}/rotate", "Rotate the token", _ASK, ask_rotate, act=rotate, keeps_form=True, **rest),
        DashboardPage(f"{one}/revoke", "Revoke the client", _ASK, clients.ask_revoke, act=clients.revoke, **rest),
    ]


def _of_dead_letters(letters: DeadLetterPages) -> list[DashboardPage]:
    one, ask, cancel = f"{DEAD}/{{receiver}}", "dead_ask.html", "dead_cancel.html"
    rest: _Rest = {"needs": (MANAGE,), "is_live": False}
    seen: _Rest = {"needs": LOOKING, "is_live": False}
    return [
        DashboardPage(DEAD, "Dead letters", "dead_letters.html", letters.look, "Dead letters", LOOKING),
        DashboardPage(one, "Dead letters", "dead_receiver.html", letters.look_at_receiver, needs=LOOKING),
        DashboardPage(f"{one}/{{id}}", "Dead letter", "dead_letter.html", letters.look_at_letter, **seen),
        DashboardPage(f"{one}/redrive", "Redrive", ask, letters.ask_redrive, act=letters.redrive, **rest),
        DashboardPage(f"{one}/purge", "Purge", ask, letters.ask_purge, act=letters.purge, **rest),
        DashboardPage(f"{one}/jobs/{{id}}", "Cancel the job", cancel, letters.ask_cancel, act=letters.cancel, **rest),
    ]


class Renderer:
    """Turns a page and what it shows into HTML."""

    def __init__(self, pages: Sequence[DashboardPage], version: str) -> None:
        self._environment = jinja2.Environment(
            autoescape=True,
            loader=jinja2.PackageLoader("doubledecker.dashboard"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        names = ("count", "rate", "duration", "size", "short", "moment", "percent")
        self._environment.filters.update({name: getattr(figures, name) for name in names})
        self._environment.filters["part"] = part
        self._environment.globals.update(
            asset=assets.url, bar=drawing.bar, sparkline=drawing.sparkline, navigation=pages, version=version, home=HOME
        )
        # An import of a template does not reach its blocks when they are rendered alone.
        self._environment.globals["parts"] = self._environment.get_template("parts.html").module

    def whole(self, page: DashboardPage, visit: Visit, shown: Mapping[str, object]) -> bytes:
        """The page."""
        return self._render(page.template, title=page.title, page=page, visit=visit, **shown)

    def blocks(self, page: DashboardPage, visit: Visit, shown: Mapping[str, object]) -> dict[str, str]:
        """Its live parts by the ids of the elements that they fill."""
        template = self._environment.get_template(page.template)
        context = template.new_context({"title": page.title, "page": page, "visit": visit, **shown})
        return {name: "".join(make(context)) for name, make in template.blocks.items() if name.startswith(LIVE)}

    def bare(self, template: str, title: str, **shown: object) -> bytes:
        """A page for signing in, or about what went wrong."""
        return self._render(template, title=title, page=None, **shown)

    def _render(self, template: str, **shown: object) -> bytes:
        return self._environment.get_template(template).render(shown).encode()
