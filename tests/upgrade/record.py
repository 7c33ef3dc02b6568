"""Record calls as a release makes them to its own data: what a process of it would write that outlived an upgrade.

Run it with the release whose calls are to be kept, from the root of its tree, on its dump:

    .venv/bin/python tests/upgrade/record.py tests/upgrade/0.1.0.tar.gz tests/upgrade/0.1.0.calls.json

A call is the text of a script, its keys, and its arguments in Base64.
"""

import asyncio
import base64
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.event import EventKind
from doubledecker.store import events, jobs, registry
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions

EVENT = b'{"topic":"orders","type":"paid","t":1794830026000,"data":"of an old process","id":"of-an-old-process"}'


async def record(data: Path) -> dict[str, object]:
    server = await EmbeddedServer.start(data)
    partitions = await Partitions.connect(server.url, namespace="rm:", count=1)
    live = LiveRegistry(partitions)
    await live.refresh()
    owner = next(iter(await registry.claim_topics(partitions.home, ["orders"], publisher="")))
    kind = EventKind("orders", "paid", "default")
    await live.learn([kind])
    slots = list(await jobs.beats(partitions.home))
    calls: dict[str, object] = {}
    run = Partition.run

    async def recorded(self: Partition, script, *rest, **values):
        count, *words = script.layout(values, rest, prefix=self.prefix, shift_ms=0)
        arguments = [word if isinstance(word, bytes) else str(word).encode() for word in words[count:]]
        calls[script.name] = {
            "text": script.text,
            "keys": words[:count],
            "arguments": [base64.b64encode(word).decode() for word in arguments],
        }
        return await run(self, script, *rest, **values)

    Partition.run = recorded
    offer = RoutedEvent(live.snapshot.route(kind), EVENT, owner)
    await events.publish(partitions.home, [offer], version=live.snapshot.version, limits=PublishLimits())
    await jobs.take(partitions.home, {"retry": slots[:2], "main": slots[:8]}, process="old")
    await registry.refresh(partitions.home, live.snapshot)
    await partitions.close()
    await server.stop()
    return calls


def main(dump: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(dump) as archive:
            archive.extractall(folder, filter="data")
        calls = asyncio.run(record(Path(folder) / "data"))
    target.write_text(json.dumps(calls, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
