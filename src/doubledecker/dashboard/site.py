"""All pages of the dashboard, and how a page becomes HTML.

Blocks of a template whose names begin with `live_` are sent anew, when they have changed, to whoever watches the page.
Everything is escaped: names, event data and answers of receivers are anyone's.
"""

from collections.abc import Mapping, Sequence

import jinja2

from doubledecker.dashboard import assets, drawing, figures
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.overview import OverviewPage
from doubledecker.dashboard.pages import HOME, DashboardPage, Visit
from doubledecker.dashboard.receivers import QueuePages, SubscriberPages
from doubledecker.dashboard.system import SystemPage
from doubledecker.model.scopes import SEEING_QUEUES, SUBSCRIBING

LIVE = "live_"


def pages(bus: BusView) -> list[DashboardPage]:
    """All of them, in the order of the navigation."""
    subscribers, queues = SubscriberPages(bus), QueuePages(bus)
    of_receivers, of_queues = f"{HOME}/subscribers", f"{HOME}/queues"
    receiving = (*SUBSCRIBING, *SEEING_QUEUES)
    one, queue = subscribers.look_at_one, queues.look_at_one
    return [
        DashboardPage(HOME, "Overview", "overview.html", OverviewPage(bus).look, "Overview"),
        DashboardPage(of_receivers, "Subscribers", "subscribers.html", subscribers.look, "Subscribers", receiving),
        DashboardPage(f"{of_receivers}/{{receiver}}", "Subscriber", "subscriber.html", one, needs=receiving),
        DashboardPage(of_queues, "Queues", "queues.html", queues.look, "Queues", SEEING_QUEUES),
        DashboardPage(f"{of_queues}/{{queue}}", "Queue", "queue.html", queue, needs=SEEING_QUEUES),
        DashboardPage(f"{HOME}/system", "System", "system.html", SystemPage(bus).look, "System"),
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
        """A page for whoever is not signed in, or for what went wrong."""
        return self._render(template, title=title, page=None, **shown)

    def _render(self, template: str, **shown: object) -> bytes:
        return self._environment.get_template(template).render(shown).encode()
