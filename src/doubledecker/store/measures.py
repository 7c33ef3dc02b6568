"""The latest measures: the hash `measures` at home, a field a span. Who shows them needs neither Spark nor the lake."""

import msgspec

from doubledecker.model.summary import Summary
from doubledecker.store import line
from doubledecker.store.partitions import Partition

_decode = msgspec.json.Decoder(Summary).decode


async def tell(home: Partition, *summaries: Summary) -> None:
    """Replace what was said of each summary's span."""
    fields = [word for each in summaries for word in (each.span, msgspec.json.encode(each))]
    await home.write("HSET", home.key("measures"), *fields)


async def read(home: Partition) -> dict[str, Summary]:
    """What was said last, by span (`minute`, `hour`); empty when nothing has been measured on this bus."""
    kept = line.fields(await home.command("HGETALL", home.key("measures")))
    return {span: _decode(text) for span, text in kept.items()}
