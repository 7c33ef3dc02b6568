"""A topic as it is listed: who owns it, and how many events it had."""

from typing import Annotated

from msgspec import Meta

from doubledecker.model.event import TopicName
from doubledecker.model.schema import Count, Shape
from doubledecker.model.token import TokenName


class TopicView(Shape):
    """A topic, and how many events it had."""

    name: TopicName
    publisher: Annotated[TokenName, Meta(description="The name of its owner's token")]
    publisher_id: Annotated[TokenName, Meta(description="The id of its owner's token; names need not be unique")]
    events: Count
