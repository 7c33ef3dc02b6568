"""A name server on loopback that answers as told, and a look-up that asks it, in place of the system's."""

import asyncio
import ipaddress
import socket
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

_A, _AAAA = 1, 28
# Longer than any test: like a system whose name server does not answer.
_PATIENCE_S = 30.0


class NameServer(asyncio.DatagramProtocol):
    """Each name has the addresses of `names`; one in `silent` gets no answer until it is taken out of there."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = {name.replace("_", "."): list(addresses) for name, addresses in names.items()}
        self.silent: set[str] = set()
        self.asked: dict[str, int] = defaultdict(int)
        self._waiting: list[tuple[bytes, tuple[str, int]]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self._address = self._transport.get_extra_info("sockname")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.answer_all()
        self._transport.close()

    def answer_all(self) -> None:
        """Answer what was asked and not answered, and be silent no more."""
        self.silent.clear()
        waiting, self._waiting = self._waiting, []
        for query, sender in waiting:
            self.datagram_received(query, sender)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, kind, question = _question(data)
        self.asked[name] += kind == _A
        if name in self.silent:
            self._waiting.append((data, addr))
            return
        version = 4 if kind == _A else 6
        found = [each for each in map(ipaddress.ip_address, self.names.get(name, [])) if each.version == version]
        head = data[:2] + struct.pack("!HHHHH", 0x8180 if name in self.names else 0x8183, 1, len(found), 0, 0)
        # The name of each record is that of the question, at byte 12.
        rows = [struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(each.packed)) + each.packed for each in found]
        self._transport.sendto(head + question + b"".join(rows), addr)

    def look_up(self, host: str) -> Sequence[str]:
        """Blocks, as the system's look-up does."""
        found: list[str] = []
        for kind in (_A, _AAAA):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.settimeout(_PATIENCE_S)
                labels = b"".join(bytes([len(label)]) + label.encode() for label in host.split("."))
                query = struct.pack("!HHHHHH", kind, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)
                asking.sendto(query, self._address)
                found += _addresses(asking.recv(4096), len(query))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found


def _question(query: bytes) -> tuple[str, int, bytes]:
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    return ".".join(labels), int.from_bytes(query[at + 1 : at + 3], "big"), query[12 : at + 5]


def _addresses(answer: bytes, at: int) -> list[str]:
    found = []
    for _ in range(int.from_bytes(answer[6:8], "big")):
        length = int.from_bytes(answer[at + 10 : at + 12], "big")
        found.append(str(ipaddress.ip_address(answer[at + 12 : at + 12 + length])))
        at += 12 + length
    return found
