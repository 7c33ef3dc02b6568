"""Reserved topics: those of the bus itself. No client publishes on them, and an event is seen by its audience alone.

The audience of an event is one client, the owner of what the event is about, and root. It is kept as the event's
publisher, `doubledecker.` and the owner's id, which no token can have: so the journal and the lake know it too.
"""

from doubledecker.model.scopes import Scopes
from doubledecker.model.token import ROOT_NAME

PREFIX = "doubledecker."
# Where the bus notifies of receivers that fail, recover, are disabled, or get a first dead letter.
RECEIVERS = "doubledecker.receivers"
# Of the event that is sent to test a receiver, and nowhere else.
TEST = "doubledecker.test"


def is_reserved(topic: str) -> bool:
    return topic.startswith(PREFIX)


def is_within(scopes: Scopes, topic: str, tenant: str) -> bool:
    """Whether a client with these scopes may get events of a topic and a tenant.

    On a reserved topic it may, whatever it is limited to: there it gets what concerns itself alone.
    """
    return is_reserved(topic) or scopes.has_events(topic, tenant)


def publisher_for(owner: str) -> str:
    """As whose event the bus publishes what concerns this client; `owner` may be empty for root."""
    return PREFIX + (owner or ROOT_NAME)


def audience(publisher: str) -> str:
    """The client, or root, who may see what this publisher has published on a reserved topic.

    That is the client itself for events from before the names were reserved.
    """
    return publisher.removeprefix(PREFIX)
