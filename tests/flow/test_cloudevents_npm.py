"""The npm package `cloudevents` sends to the bus in every mode, and reads what the bus delivers in every mode."""

import asyncio
import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from conftest import Topology
from harness import TestBus, a_bus
from web.asking import ask, journal

pytestmark = pytest.mark.slow

PACKAGE = "cloudevents@10.0.0"
_INSTALL_S = 120
# Prints the requests that the package makes of some events: one each in binary and in structured mode, and a batch.
SEND = """
const { CloudEvent, HTTP } = require("cloudevents");
const common = { source: "https://shop.example/tills/7", type: "com.example.order.paid", topic: "orders",
  tenant: "acme", partitionkey: "order-1", subject: "orders/1", time: "2026-11-15T11:00:00.123Z", note: "a b", n: 5 };
const made = (id, more) => new CloudEvent({ ...common, id, ...more });
const json = { datacontenttype: "application/json", data: { total: [12.5, null, "ü"] } };
const text = { datacontenttype: "text/plain", data: "Grüße" };
const bytes = { datacontenttype: "image/png", data: new Uint8Array([137, 80, 0, 255]) };
const out = [];
for (const [name, more] of Object.entries({ json, text, bytes })) {
  for (const mode of ["binary", "structured"]) {
    const message = HTTP[mode](made(`${mode}-${name}`, more));
    out.push({ headers: message.headers, body: Buffer.from(message.body ?? "").toString("base64") });
  }
}
const batch = [made("batch-json", json), made("batch-text", text)];
out.push({ headers: { "content-type": "application/cloudevents-batch+json" },
  body: Buffer.from(JSON.stringify(batch)).toString("base64") });
console.log(JSON.stringify(out));
"""
# Reads requests, and prints the events that the package finds in them.
READ = """
const { HTTP } = require("cloudevents");
const requests = JSON.parse(require("node:fs").readFileSync(0));
const found = requests.flatMap(({ headers, body }) => {
  const bytes = Buffer.from(body, "base64");
  const isText = /json|text/.test(headers["content-type"] ?? "");
  const events = [HTTP.toEvent({ headers, body: isText ? bytes.toString() : new Uint8Array(bytes) })].flat();
  return events.map((event) => {
    event.validate();
    const isBytes = ArrayBuffer.isView(event.data);
    const raw = event.data_base64 ?? (isBytes ? Buffer.from(event.data).toString("base64") : null);
    const { data, data_base64, ...attributes } = event.toJSON();
    return { attributes, data: raw === null ? event.data : null, bytes: raw };
  });
});
console.log(JSON.stringify(found));
"""
ATTRIBUTES = {
    "specversion": "1.0",
    "source": "https://shop.example/tills/7",
    "type": "com.example.order.paid",
    "topic": "orders",
    "tenant": "acme",
    "partitionkey": "order-1",
    "subject": "orders/1",
    "time": "2026-11-15T11:00:00.123Z",
}
DATA = {"json": {"total": [12.5, None, "ü"]}, "text": "Grüße", "bytes": base64.b64encode(b"\x89P\x00\xff").decode()}
TYPES = {"json": "application/json", "text": "text/plain", "bytes": "image/png"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where node finds the package; the tests are skipped where there is no node, or where npm cannot fetch it."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("there is no node on this machine")
    made = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(made), PACKAGE]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm cannot fetch {PACKAGE} here")
    return made


def run(folder: Path, program: str, given: object = None) -> list[dict[str, object]]:
    text = json.dumps(given).encode()
    done = subprocess.run(["node", "-e", program], cwd=folder, input=text, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def send_all(bus: TestBus, folder: Path, secret: str) -> list[str]:
    """Have the package send its events; returns their ids."""
    ids = []
    for request in run(folder, SEND):
        headers = {name.title(): str(value) for name, value in request["headers"].items()}
        body = base64.b64decode(request["body"])
        answer = await ask(bus, "POST", "/events", secret, body=body, headers=headers)
        assert answer.status == 202, answer.body
        ids += answer.json["ids"]
    return ids


async def test_what_the_package_sends_is_stored_in_every_mode(one: Topology, folder: Path):
    async with a_bus(one, workers=0) as bus:
        ids = await send_all(bus, folder, await bus.token("shop"))
        found = {event["id"]: event for event in await journal(bus)}

    assert sorted(ids) == sorted(found)
    assert len(ids) == 8
    for id_, event in found.items():
        mode, _, kind = id_.partition("-")
        assert (event["topic"], event["tenant"], event["key"], event["t"]) == (
            "orders",
            "acme",
            "order-1",
            1794740400123,
        )
        assert event["data"] == DATA[kind]
        assert event["cloudevent"].pop("n") == ("5" if mode == "binary" else 5)
        assert event["cloudevent"] == {
            "source": "https://shop.example/tills/7",
            "datacontenttype": TYPES[kind],
            "subject": "orders/1",
            "note": "a b",
            **({"data_base64": True} if kind == "bytes" else {}),
        }


@pytest.mark.parametrize("format_", ["cloudevents-batch", "cloudevents-binary"])
async def test_the_package_reads_what_is_delivered_in_every_format(one: Topology, folder: Path, format_: str):
    got: list[dict[str, object]] = []
    news = asyncio.Event()

    async def keep(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        got.append({"headers": headers, "body": base64.b64encode(await request.read()).decode()})
        news.set()
        return web.Response()

    app = web.Application()
    app.router.add_post("/", keep)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with a_bus(one) as bus:
            said = {"timeout": 0, "format": format_, "max": 1}
            await bus.subscribe(await bus.token("s"), url, "orders", **said)
            ids = await send_all(bus, folder, await bus.token("shop"))
            async with asyncio.timeout(20):
                while len(got) < len(ids):
                    news.clear()
                    await news.wait()
    finally:
        await runner.cleanup()
    found = {event["attributes"]["id"]: event for event in run(folder, READ, got)}

    assert sorted(found) == sorted(ids)
    for id_, event in found.items():
        kind = id_.partition("-")[2]
        assert event["attributes"] | {"id": ""} == event["attributes"] | ATTRIBUTES | {"id": ""}
        assert event["attributes"]["datacontenttype"] == TYPES[kind]
        assert (event["bytes"] if kind == "bytes" else event["data"]) == DATA[kind]
