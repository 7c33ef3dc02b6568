"""Subscribe to a topic and print what arrives, verified by its signature, with nothing but the standard library.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/receive.py

Its callback is plain http on this machine: start the bus with DOUBLEDECKER_PRIVATE_CALLBACKS=true, or with its demo.
"""

import base64
import contextlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

TOLERANCE_S = 300  # an older request may be one that somebody has recorded


class Callback(BaseHTTPRequestHandler):
    """Takes batches; any 2xx answer means that we have them."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_verified(body):
            self.send_error(401)
            return
        for event in json.loads(body):
            print(event["topic"], event["type"], event.get("url", ""), flush=True)
        self.send_response(204)
        self.end_headers()

    def is_verified(self, body: bytes) -> bool:
        """Whether the bus sent this, and just now; other languages have it in docs/receivers.md."""
        id_, timestamp = self.headers.get("webhook-id", ""), self.headers.get("webhook-timestamp", "")
        if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
            return False
        digest = hmac.digest(key, f"{id_}.{timestamp}.".encode() + body, "sha256")
        expected = b"v1," + base64.b64encode(digest)
        signatures = self.headers.get("webhook-signature", "").encode().split(b" ")
        return any(hmac.compare_digest(expected, each) for each in signatures)

    def log_message(self, *_: object) -> None:
        """Quiet: the events are what we print."""


def ask(path: str, body: object) -> bytes:
    """Post to the bus as the client with our token."""
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["BUS"] + path, json.dumps(body).encode(), headers)  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        sys.exit(f"the bus refused: {json.load(refused)['detail']}")
    except OSError as error:
        sys.exit(f"no bus at {os.environ['BUS']}: {error}")


server = HTTPServer(("127.0.0.1", 0), Callback)
# A batch has at most 50 events, and waits for more of them for 200 ms.
callback = f"http://127.0.0.1:{server.server_port}/"
ask("/subscription", {"topics": ["orders"], "callback": callback, "timeout": 200, "max": 50, "format": "json"})
# A new secret at each start. A receiver of several processes keeps one instead, in its settings.
secret = json.loads(ask("/subscriber/rotate-secret", {"overlap_s": 0}))["secret"]
key = base64.b64decode(secret.removeprefix("whsec_"))
print("subscribed", flush=True)
with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it
    server.serve_forever()
