"""Listen to events as they are published, and come back to where we were, with nothing but the standard library.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/listen.py '*:orders:*'
"""

import base64
import contextlib
import json
import os
import sys
import time
import urllib.parse
import urllib.request

PATTERN = sys.argv[1] if len(sys.argv) > 1 else "*"
# Heartbeats come every 15 seconds; a stream silent for longer is dead.
SILENCE_S = 40


def listen(last_id: str) -> str:
    """Print events until the stream ends; returns where to go on."""
    headers = {"Authorization": "Basic " + base64.b64encode(f"{os.environ['TOKEN']}:x".encode()).decode()}
    if last_id:
        headers["Last-Event-ID"] = last_id
    url = f"{os.environ['BUS']}/stream?" + urllib.parse.urlencode({"pattern": PATTERN})
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the address is ours
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_S) as stream:  # noqa: S310 - the same
            name, data = "", ""
            for line in stream:
                word, _, value = line.decode().rstrip("\n").partition(": ")
                if word == "id":
                    last_id = value
                elif word == "event":
                    name = value
                elif word == "data":
                    data = value
                elif word == "retry":
                    print("listening", flush=True)
                elif not word:  # an empty line ends an event
                    show(name, data)
                    name, data = "", ""
    except OSError as error:
        print("lost the stream:", error, file=sys.stderr)
    return last_id


def show(name: str, data: str) -> None:
    """Print an event, or what the bus says of the stream itself: a gap, or why it ends it."""
    if name:
        print(name, data, file=sys.stderr)
    elif data:
        event = json.loads(data)
        print(event.get("tenant", "default"), event["topic"], event["type"], event.get("url", ""), flush=True)


position = ""
with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it
    while True:
        position = listen(position)
        time.sleep(1)
