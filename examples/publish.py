"""Publish three events, with nothing but the standard library.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/publish.py
"""

import base64
import json
import os
import sys
import urllib.error
import urllib.request
import uuid

EVENTS = [
    {"topic": "orders", "type": "create", "url": f"https://shop.example/orders/{n}", "tenant": "acme", "data": {"n": n}}
    for n in range(1, 4)
]

request = urllib.request.Request(  # noqa: S310 - the address is ours
    f"{os.environ['BUS']}/events",
    data=json.dumps(EVENTS).encode(),
    headers={
        "Authorization": "Basic " + base64.b64encode(f"{os.environ['TOKEN']}:x".encode()).decode(),
        "Content-Type": "application/json",
        # Sent again with the same key, for instance after a lost answer, nothing is published twice.
        "Idempotency-Key": uuid.uuid4().hex,
    },
)
try:
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - the same
        print("accepted:", *json.load(response)["ids"], sep="\n  ")
except urllib.error.HTTPError as refused:
    sys.exit(f"the bus refused: {json.load(refused)['detail']}")
except OSError as error:
    sys.exit(f"no bus at {os.environ['BUS']}: {error}")
