"""Subscribe to a topic and print what arrives, with nothing but the standard library.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/receive.py

Its callback is plain http on this machine: start the bus with DOUBLEDECKER_PRIVATE_CALLBACKS=true, or with its demo.
"""

import base64
import contextlib
import json
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

UUID = "the-credential-that-the-bus-shows-us"


class Callback(BaseHTTPRequestHandler):
    """Takes batches; any 2xx answer means that we have them."""

    def do_POST(self) -> None:
        expected = "Basic " + base64.b64encode(f"{UUID}:x".encode()).decode()
        if self.headers["Authorization"] != expected:
            self.send_error(401)
            return
        for event in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
            print(event["topic"], event["type"], event.get("url", ""), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet: the events are what we print."""


server = HTTPServer(("127.0.0.1", 0), Callback)
request = urllib.request.Request(  # noqa: S310 - the address is ours
    f"{os.environ['BUS']}/subscription",
    data=json.dumps(
        {
            "topics": ["orders"],
            "callback": f"http://127.0.0.1:{server.server_port}/",
            "uuid": UUID,
            "timeout": 200,  # milliseconds that a batch may wait for more events
            "max": 50,
        }
    ).encode(),
    headers={"Authorization": "Basic " + base64.b64encode(f"{os.environ['TOKEN']}:x".encode()).decode()},
)
urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - the same
print("subscribed", flush=True)
with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it
    server.serve_forever()
