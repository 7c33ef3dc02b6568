"""Topics: who owns one and who else may publish on it, what a client may say of it, and how it is shown."""

from collections.abc import Container
from typing import Annotated

import msgspec
from msgspec import Meta

from doubledecker.errors import BadRequest
from doubledecker.model import schema
from doubledecker.model.event import TopicName
from doubledecker.model.schema import Count, Shape, up_to
from doubledecker.model.token import TokenName

# Every process keeps those of the topics that it publishes on, and a listing has those of all.
PUBLISHERS_MAX = 100
DESCRIPTION_LENGTH_MAX = 500


class TopicRights(msgspec.Struct, frozen=True, gc=False):
    """Who owns a topic, empty for nobody, and who may publish on it besides."""

    owner: str
    publishers: frozenset[str] = frozenset()

    def allow(self, client: str) -> bool:
        """Whether a client may publish."""
        return client == self.owner or client in self.publishers


NOBODYS = TopicRights("")


class TopicWanted(msgspec.Struct, forbid_unknown_fields=True):
    """What is absent or null keeps its former value; of a new topic that is nobody, and no description."""

    publishers: (
        Annotated[
            list[str],
            up_to(PUBLISHERS_MAX, "The token ids of the clients that may publish besides its owner, who always may"),
        ]
        | None
    ) = None
    description: (
        Annotated[str, Meta(description="What it is for", extra_json_schema={"maxLength": DESCRIPTION_LENGTH_MAX})]
        | None
    ) = None


class TopicView(Shape):
    """A topic: whose it is, who may publish on it, and how many events it had."""

    name: TopicName
    publisher: Annotated[TokenName, Meta(description="The name of its owner's token")]
    publisher_id: Annotated[str, Meta(description="The id of its owner's token; names need not be unique")]
    events: Annotated[Count, Meta(description="null for a token that is limited to some tenants")] | None
    description: str
    publishers: Annotated[
        list[str], Meta(description="The token ids of the clients that may publish besides its owner")
    ]


_WANTED = msgspec.json.Decoder(TopicWanted)


def parse(body: bytes) -> TopicWanted:
    """What is asked for; raises BadRequest with what was seen and what is allowed."""
    asked = schema.decode(
        _WANTED, body, what='a topic, like {"publishers": ["shop-1a2b3c4d"], "description": "Orders"}'
    )
    if asked.publishers is not None and len(asked.publishers) > PUBLISHERS_MAX:
        raise BadRequest(f"{len(asked.publishers)} publishers; at most {PUBLISHERS_MAX} are allowed")
    length = len(asked.description or "")
    if length > DESCRIPTION_LENGTH_MAX:
        raise BadRequest(f"the description has {length} characters; at most {DESCRIPTION_LENGTH_MAX} are allowed")
    return asked


def check_publishers(asked: TopicWanted, known: Container[str]) -> None:
    """Raise BadRequest for a publisher that is not among the known clients."""
    for id_ in asked.publishers or ():
        if id_ not in known:
            raise BadRequest(f"publishers has {id_[:80]!r}; no client has that id, GET /api_tokens lists them")
