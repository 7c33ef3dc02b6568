"""Floors: the same work without the bus, as fast as its parts allow: Valkey, the HTTP server, POSTs."""

import asyncio
import csv
import json
import shutil
import sys
import time

import aiohttp
import uvicorn
import uvloop

from bench import children, events
from bench.bus import a_server
from bench.children import a_receiver
from bench.drain import CONCURRENCY
from bench.load import Spec
from bench.scale import Scale
from doubledecker.store import embedded
from doubledecker.web.protocol import guarded

_PIPELINE = 50
_CONNECTIONS = 8
_BENCHMARKS = ("redis-benchmark", "valkey-benchmark")


def valkey_client() -> str:
    """Which client finds the floor of Valkey."""
    return next((name for name in _BENCHMARKS if shutil.which(name)), "our own pipelined client")


async def measure(scale: Scale) -> dict[str, float]:
    return {
        **await _valkey(scale),
        **await _http("single", scale),
        **await _http("array", scale, kind="events", events_per_request=100, connections=8),
        **await _posts(1, scale),
        **await _posts(100, scale),
        **await _posts(1000, scale),
    }


async def _valkey(scale: Scale) -> dict[str, float]:
    async with a_server() as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        if valkey_client() in _BENCHMARKS:
            return await _benchmarked(valkey_client(), port)
        async with children.started("bench.floors", "valkey", port, str(scale.measure_s)) as client:
            return json.loads(await client.line(within_s=scale.measure_s + 30))


async def _benchmarked(program: str, port: str) -> dict[str, float]:
    words = ["-p", port, "-t", "lpush,set", "-P", str(_PIPELINE), "-c", str(_CONNECTIONS), "-d", "230", "-n", "500000"]
    process = await asyncio.create_subprocess_exec(program, *words, "--csv", stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        text, _ = await process.communicate()
    rates = {row[0].split()[0].lower(): float(row[1]) for row in csv.reader(text.decode().splitlines()[1:])}
    return {f"floor.valkey.{name}_per_s": rates[name] for name in ("lpush", "set")}


async def _hammered(port: int, seconds: float) -> dict[str, float]:
    """Pipelines of LPUSH and of SET, from one process."""
    value = events.delivered(0)
    return {
        "floor.valkey.lpush_per_s": await _pipelined(port, ("LPUSH", "floor:list", value), seconds / 2),
        "floor.valkey.set_per_s": await _pipelined(port, ("SET", "floor:text", value), seconds / 2),
    }


async def _pipelined(port: int, command: tuple[str, str, bytes], seconds: float) -> float:
    packed = _packed(command) * _PIPELINE
    started_s = time.perf_counter()
    done = await asyncio.gather(*(_pipe(port, packed, started_s + seconds) for _ in range(_CONNECTIONS)))
    return sum(done) / (time.perf_counter() - started_s)


async def _pipe(port: int, packed: bytes, end_s: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done = 0
    while time.perf_counter() < end_s:
        writer.write(packed)
        answers = 0
        while answers < _PIPELINE:
            answers += (await reader.read(65_536)).count(b"\r\n")
        done += answers
    writer.close()
    return done


def _packed(command: tuple[str, str, bytes]) -> bytes:
    words = [word if isinstance(word, bytes) else word.encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


async def _http(name: str, scale: Scale, **shape: object) -> dict[str, float]:
    port = embedded.free_port()
    async with children.started("bench.floors", "http", str(port)) as web:
        await web.line()
        spec = Spec(port, "Basic eDp4", warm_s=scale.warm_s, measure_s=scale.measure_s, **shape)
        loaded = await children.loaded(spec, {"web": web.pid})
    sent = loaded.load.requests * spec.events_per_request
    return {
        f"floor.http.{name}.requests_per_s": loaded.load.per_s,
        f"floor.http.{name}.events_per_s": loaded.load.per_s * spec.events_per_request,
        f"floor.http.{name}.p50_ms": loaded.load.p50_ms,
        f"floor.http.{name}.p99_ms": loaded.load.p99_ms,
        f"floor.http.{name}.web_cpu_us": loaded.cpu_s["web"] / sent * 1e6,
    }


async def _answer_204(_scope, receive, send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _serve_http(port: int) -> None:
    """The server of the web process, with an app that only reads and answers."""
    config = uvicorn.Config(
        _answer_204, http=guarded(), port=port, lifespan="off", log_config=None, access_log=False, server_header=False
    )
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        print("ready", flush=True)


async def _posts(count: int, scale: Scale) -> dict[str, float]:
    async with a_receiver() as receiver:
        words = ("posts", receiver.url, str(count), str(scale.measure_s))
        async with children.started("bench.floors", *words) as client:
            return json.loads(await client.line(within_s=scale.measure_s + 30))


async def _post_forever(url: str, count: int, seconds: float) -> dict[str, float]:
    """POSTs of bodies as large as a batch, as many at a time as a subscriber gets."""
    body = b"[" + b",".join(events.delivered(number) for number in range(count)) + b"]"
    posts = 0
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        end_s = time.perf_counter() + seconds

        async def post_until_end() -> None:
            nonlocal posts
            while time.perf_counter() < end_s:
                async with http.post(url, data=body) as answer:
                    await answer.read()
                posts += 1

        used_s = time.process_time()
        started_s = time.perf_counter()
        await asyncio.gather(*(post_until_end() for _ in range(CONCURRENCY)))
        took_s = time.perf_counter() - started_s
        used_s = time.process_time() - used_s
    return {
        f"floor.posts.{count}.events_per_s": posts * count / took_s,
        f"floor.posts.{count}.batches_per_s": posts / took_s,
        f"floor.posts.{count}.worker_cpu_us": used_s / posts / count * 1e6,
    }


def _main(what: str, *words: str) -> None:
    if what == "http":
        uvloop.run(_serve_http(int(words[0])))
    elif what == "valkey":
        print(json.dumps(uvloop.run(_hammered(int(words[0]), float(words[1])))), flush=True)
    elif what == "posts":
        print(json.dumps(uvloop.run(_post_forever(words[0], int(words[1]), float(words[2])))), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
