"""Publish three events, with nothing but the standard library.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/publish.py
"""

import base64
import json
import os
import urllib.request

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
        "Idempotency-Key": "example-1",
    },
)
with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - the same
    print("accepted:", *json.load(response)["ids"], sep="\n  ")
