"""Metric adapters: where the monitor job sends telemetry. Prometheus is not here: it comes and asks the web process."""

import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from doubledecker.bus import telemetry
from doubledecker.bus.overview import Overview

# The payload that fits an Ethernet frame; larger datagrams may be dropped on the way.
_DATAGRAM_BYTES_MAX = 1432


class Adapter(Protocol):
    """Takes gauges as they are and counters by how much they grew."""

    def send(self, gauges: Mapping[str, float], growth: Mapping[str, int]) -> None: ...

    def close(self) -> None: ...


class Monitor:
    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = adapters

    def send(self, view: Overview, growth: Mapping[str, int]) -> None:
        gauges = dict(_gauges(view))
        for adapter in self._adapters:
            adapter.send(gauges, growth)

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()


class PrintAdapter:
    """Writes one line of JSON a run to standard output."""

    def send(self, gauges: Mapping[str, float], growth: Mapping[str, int]) -> None:
        line = msgspec.json.encode({"gauges": gauges, "counters": growth})
        sys.stdout.write(line.decode() + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Standard output is not ours to close."""


class StatsdAdapter:
    """Sends datagrams in the dialect of DogStatsD, which has tags."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._address = (host.strip("[]"), int(port))
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.settimeout(0)

    def send(self, gauges: Mapping[str, float], growth: Mapping[str, int]) -> None:
        lines = [_statsd(field, value, "g") for field, value in gauges.items()]
        lines += [_statsd(field, by, "c") for field, by in growth.items()]
        for datagram in _packed(lines):
            try:
                self._socket.sendto(datagram, self._address)
            except OSError:
                return  # nobody listens; telemetry is not worth a failed job

    def close(self) -> None:
        self._socket.close()


def _gauges(view: Overview) -> Iterable[tuple[str, float]]:
    for each in view.subscribers:
        token = each.subscriber.token
        yield telemetry.counter("subscriber.queue.events", subscriber=token), each.events
        yield telemetry.counter("subscriber.queue.batches", subscriber=token), each.batches
        yield telemetry.counter("subscriber.health", subscriber=token), each.condition.health
    for (queue, state), count in view.jobs.items():
        yield telemetry.counter("jobs.count", queue=queue, state="total" if state == "index" else state), count
    yield "redis.bytes_used", sum(each.used_bytes for each in view.memory)
    yield "worker.slots", view.slots_alive


def _statsd(field: str, value: float, kind: str) -> bytes:
    parsed = telemetry.parse(field)
    tags = ",".join(f"{label}:{text}" for label, text in parsed.labels)
    return f"doubledecker.{parsed.name}:{value}|{kind}{'|#' + tags if tags else ''}".encode()


def _packed(lines: Sequence[bytes]) -> Iterable[bytes]:
    packed = b""
    for line in lines:
        if packed and len(packed) + 1 + len(line) > _DATAGRAM_BYTES_MAX:
            yield packed
            packed = b""
        packed = packed + b"\n" + line if packed else line
    if packed:
        yield packed
