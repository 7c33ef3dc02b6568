"""A fair queue in plain Python: what the law of queues compares the real one with.

Numbers are computed in the same order as in the scripts, so that tags can be compared exactly, not nearly. What the
server's clock decides comes in as arguments: the time of the call, and how long each message was held.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from doubledecker.model.queue import FacetRule, RegisteredQueue

DUE_MAX = 50
LATE_MS_MAX = 50
TOOK_MS_MIN = 0.5


@dataclass(frozen=True)
class Facet:
    tag: float = 0.0
    mean: float = 0.0


@dataclass(frozen=True)
class Ruled:
    """How a facet stands under its rule."""

    rule: FacetRule = field(default_factory=FacetRule)
    held: int = 0
    next_at: float = 0.0


@dataclass(frozen=True)
class Tried:
    """A message that was pulled; `forgiven` attempts were those of former lives."""

    attempt: int
    tenant: str
    pulled_at: int = 0
    together: int = 1
    charged: float = 0.0
    forgiven: int = 0
    tag: float = 0.0


@dataclass
class QueueModel:
    """One queue in one partition as it should be; messages are their numbers."""

    queue: RegisteredQueue
    sequence: int = 0
    v: float = 0.0
    mean: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)
    lines: dict[str, list[int]] = field(default_factory=dict)
    owner: dict[int, str] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    scheduled: dict[int, int] = field(default_factory=dict)
    tried: dict[int, Tried] = field(default_factory=dict)
    dead: dict[int, tuple[str, int]] = field(default_factory=dict)
    facets: dict[str, Facet] = field(default_factory=dict)
    rules: dict[str, Ruled] = field(default_factory=dict)
    ring: dict[str, float] = field(default_factory=dict)
    parked: dict[str, float] = field(default_factory=dict)
    wake: dict[str, float] = field(default_factory=dict)

    @property
    def data(self) -> set[int]:
        """All messages that are not dead."""
        return {id_ for line in self.lines.values() for id_ in line} | self.pending.keys() | self.scheduled.keys()

    # What a publisher does.

    def refused(self, tenants: Sequence[str], wholes: Sequence[tuple[int, int]]) -> set[int]:
        """Which of these events, one after the other, a queue that refuses has no room for."""
        if not self.queue.refuses:
            return set()
        units = [range(first, last + 1) for first, last in wholes]
        units += [range(i, i + 1) for i in range(len(tenants)) if not any(i in unit for unit in units)]
        out: set[int] = set()
        for unit in sorted(units, key=lambda unit: unit[0]):
            kept = [tenants[i] for i in range(unit[0]) if i not in out]
            for i in unit:
                length = len(self.data) + len(kept)
                waiting = len(self.lines.get(tenants[i], ())) + kept.count(tenants[i])
                most = self.queue.facet_max_length or length + waiting + 1
                if length >= self.queue.max_length or waiting >= most:
                    out.update(unit)
                    break
                kept.append(tenants[i])
        return out

    def push(self, tenants: Iterable[str], *, now: int) -> None:
        """Put events on the queue, all of one tenant before those of the next."""
        for tenant, count in Counter(tenants).items():
            line = self.lines.setdefault(tenant, [])
            was_empty = not line
            for _ in range(count):
                self.sequence += 1
                self.owner[self.sequence] = tenant
                line.append(self.sequence)
            self._drop(tenant)
            if not line:
                self._unseat(tenant, now)
            elif was_empty:
                self.facets.setdefault(tenant, Facet())
                self.seat(tenant, now)

    def _drop(self, tenant: str) -> None:
        line = self.lines[tenant]
        over = 0
        if not self.queue.refuses:
            over = max(len(self.data) - self.queue.max_length, 0)
            if self.queue.facet_max_length:
                over = max(over, len(line) - self.queue.facet_max_length)
        self._forget(line[:over], "dropped")
        del line[:over]

    # What a consumer does.

    def pull(
        self,
        most: int,
        lease_ms: int,
        *,
        portions: Sequence[int],
        now: int,
        took: Mapping[int, int],
        floor: float,
        is_alone: bool,
    ) -> list[tuple[int, int, str]]:
        """What is served, in order, as number, attempt and tenant."""
        self._come_back(now, took)
        self.v = max(self.v, floor)
        standing = sorted((place, tenant) for tenant, place in self.ring.items())
        served: list[tuple[str, float]] = []
        while len(served) < most and standing:
            place, tenant = standing.pop(0)
            served.append((tenant, self._serve(tenant, place, now)))
            left = len(self.lines[tenant]) - [name for name, _ in served].count(tenant)
            if left and not self._is_blocked(tenant) and self._next_at(tenant) <= now:
                tag = self.facets[tenant].tag
                standing.insert(bisect_right([at for at, _ in standing], tag), (tag, tenant))
        sizes: list[int] = []
        for portion in (*portions, len(served)):
            size = min(portion, len(served) - len(sizes))
            sizes += [size] * size
        pairs = zip(served, sizes, strict=True)
        messages = [self._lease(*each, together, now, lease_ms) for each, together in pairs]
        for tenant in {tenant for tenant, _ in served}:
            self.seat(tenant, now)
        self._clean(is_alone=is_alone)
        return messages

    def ack(self, held: Sequence[tuple[int, int]], *, now: int, took: Mapping[int, int]) -> list[int]:
        mine = self.still_held(held)
        touched = [id_ for id_ in mine if self._let_go(id_, "acked", took[id_])]
        for id_ in mine:
            del self.tried[id_]
        self._seat_all(touched, now)
        return mine

    def nack(
        self, held: Sequence[tuple[int, int]], *, due: Mapping[int, int], now: int, took: Mapping[int, int]
    ) -> list[int]:
        """Give back; `due` says when those come back that were given a delay."""
        mine = self.still_held(held)
        touched = [id_ for id_ in mine if self._let_go(id_, "nacked", took[id_])]
        touched += [id_ for id_ in mine if self._return(id_, due.get(id_))]
        self._seat_all(touched, now)
        return mine

    def still_held(self, held: Sequence[tuple[int, int]]) -> list[int]:
        mine = [id_ for id_, attempt in held if id_ in self.pending and self.tried[id_].attempt == attempt]
        return list(dict.fromkeys(mine))

    # What an operator does.

    def set_rule(self, tenant: str, rule: FacetRule, *, now: int) -> None:
        held = [self.owner[id_] for id_ in self.pending].count(tenant)
        former = self.rules.pop(tenant, Ruled())
        if rule != FacetRule():
            self.rules[tenant] = Ruled(rule, held, former.next_at if rule.rate_per_s else 0.0)
        self.seat(tenant, now)

    def purge(self, tenant: str, *, now: int) -> int:
        gone = list(self.lines.get(tenant, ())) + [id_ for id_ in self.scheduled if self.owner[id_] == tenant]
        if gone:
            self._forget(gone, "purged")
            self.lines[tenant] = []
            self.seat(tenant, now)
        return len(gone)

    def drop(self, most: int, *, now: int) -> int:
        """What is dropped when memory is short: a few of each tenant that is not paused, in turn, oldest first."""
        gone: list[int] = []
        givers = [
            tenant for tenant, line in self.lines.items() if line and not self.rules.get(tenant, Ruled()).rule.paused
        ]
        givers.sort(key=lambda tenant: self.lines[tenant][0])
        while givers and len(gone) < most:
            for tenant in givers:
                some = self.lines[tenant][: min(8, most - len(gone))]
                self.lines[tenant] = self.lines[tenant][len(some) :]
                gone += some
            givers = [tenant for tenant in givers if self.lines[tenant]]
        if gone:
            self._forget(gone, "dropped")
            for tenant in {self.owner[id_] for id_ in gone}:
                self.seat(tenant, now)
        return len(gone)

    def redrive(self, ids: Sequence[int], *, now: int) -> list[int]:
        came = [id_ for id_ in ids if id_ in self.dead]
        for id_ in came:
            tenant, attempts = self.dead.pop(id_)
            self.tried[id_] = Tried(attempts, tenant, forgiven=attempts)
            self.counters["redriven"] += 1
            self._put_in_line(id_)
        self._seat_all(came, now)
        return came

    # Where facets stand.

    def seat(self, tenant: str, now: int) -> None:
        """Put a facet where it belongs: in one place if it has messages, else nowhere."""
        facet = self.facets.get(tenant, Facet())
        self._stand_up(tenant)
        if not self.lines.get(tenant):
            self._rest(tenant, now)
        elif self._is_blocked(tenant):
            self.parked[tenant] = facet.tag
        elif self._next_at(tenant) > now:
            self.wake[tenant] = self._next_at(tenant)
        else:
            self.ring[tenant] = facet.tag if facet.tag >= self.v else self.v - 1

    def _unseat(self, tenant: str, now: int) -> None:
        self._stand_up(tenant)
        self._rest(tenant, now)

    def _rest(self, tenant: str, now: int) -> None:
        if self._next_at(tenant) > now:
            self.wake[tenant] = self._next_at(tenant)

    def _stand_up(self, tenant: str) -> None:
        for place in (self.ring, self.parked, self.wake):
            place.pop(tenant, None)

    def _seat_all(self, ids: Iterable[int], now: int) -> None:
        for tenant in {self.owner[id_] for id_ in ids}:
            self.seat(tenant, now)

    def _is_blocked(self, tenant: str) -> bool:
        ruled = self.rules.get(tenant, Ruled())
        return ruled.rule.paused or 0 < ruled.rule.concurrency <= ruled.held

    def _next_at(self, tenant: str) -> float:
        return self.rules.get(tenant, Ruled()).next_at

    # What becomes of messages.

    def _come_back(self, now: int, took: Mapping[int, int]) -> None:
        expired, due = _due(self.pending, now), _due(self.scheduled, now)
        awake = sorted((at, tenant) for tenant, at in self.wake.items() if at <= now)[:DUE_MAX]
        touched = [id_ for id_ in expired if self._let_go(id_, "expired", took[id_])]
        touched += [id_ for id_ in expired if self._return(id_, None)]
        for id_ in due:
            del self.scheduled[id_]
            self._put_in_line(id_)
        self._seat_all([*touched, *due], now)
        for _, tenant in awake:
            self.seat(tenant, now)

    def _serve(self, tenant: str, place: float, now: int) -> float:
        facet, ruled = self.facets.get(tenant, Facet()), self.rules.get(tenant, Ruled())
        self.v = max(self.v, place)
        cost = 1.0 if self.queue.charge == "count" else max(1.0, facet.mean or self.mean)
        self.facets[tenant] = Facet(max(facet.tag, self.v) + cost / ruled.rule.weight, facet.mean)
        if tenant in self.rules:
            rate = ruled.rule.rate_per_s
            next_at = max(ruled.next_at, now - LATE_MS_MAX) + 1000 / rate if rate else 0.0
            self.rules[tenant] = Ruled(ruled.rule, ruled.held + 1, next_at)
        return cost

    def _lease(self, tenant: str, charged: float, together: int, now: int, lease_ms: int) -> tuple[int, int, str]:
        id_ = self.lines[tenant].pop(0)
        before = self.tried.get(id_, Tried(0, tenant))
        # A facet served several times in one call pays the same for each.
        tag = self.facets[tenant].tag
        self.tried[id_] = Tried(before.attempt + 1, tenant, now, together, charged, before.forgiven, tag)
        self.pending[id_] = now + lease_ms
        self.counters["pulled"] += 1
        return id_, before.attempt + 1, tenant

    def _let_go(self, id_: int, kind: str, took_ms: int) -> bool:
        """Whether its facet is touched: it has a rule, or pays something else than was charged."""
        record = self.tried[id_]
        tenant, took_each, cost = record.tenant, 0.0, record.charged
        ruled = self.rules.get(tenant, Ruled())
        del self.pending[id_]
        self.counters[kind] += 1
        if self.queue.charge == "time":
            took_each = (took_ms or TOOK_MS_MIN) / record.together
            cost = max(1.0, took_each)
            self.mean = 0.95 * self.mean + 0.05 * took_each if self.mean else took_each
        if tenant in self.rules:
            self.rules[tenant] = replace(ruled, held=ruled.held - 1)
        if cost != record.charged:
            facet = self.facets.get(tenant, Facet())
            tag = (facet.tag or record.tag) + (cost - record.charged) / ruled.rule.weight
            self.facets[tenant] = Facet(tag, 0.8 * facet.mean + 0.2 * took_each if facet.mean else took_each)
        return tenant in self.rules or cost != record.charged

    def _return(self, id_: int, due: int | None) -> bool:
        """Whether it is in line again."""
        record = self.tried[id_]
        if record.attempt - record.forgiven >= self.queue.attempts_max:
            del self.tried[id_]
            self.dead[id_] = record.tenant, record.attempt
            self.counters["dead"] += 1
        elif due is not None:
            self.scheduled[id_] = due
        else:
            self._put_in_line(id_)
            return True
        return False

    def _put_in_line(self, id_: int) -> None:
        line = self.lines.setdefault(self.owner[id_], [])
        self.facets.setdefault(self.owner[id_], Facet())
        line.append(id_)
        line.sort()

    def _forget(self, ids: Iterable[int], why: str) -> None:
        for id_ in ids:
            self.counters[why] += 1
            self.tried.pop(id_, None)
            self.scheduled.pop(id_, None)

    def _clean(self, *, is_alone: bool) -> None:
        if is_alone and not (self.pending or self.ring or self.parked or self.wake):
            self.facets.clear()

    def forget(self, tenants: Iterable[str]) -> None:
        """A pull may forget those that have nothing waiting, and whose tags virtual time has passed."""
        for tenant in tenants:
            assert not self.lines.get(tenant)
            assert self.facets.pop(tenant).tag <= self.v


def _due(scores: Mapping[int, int], now: int) -> list[int]:
    """What is due, in the order of a sorted set: by score, then as text."""
    due = sorted((score, f"0-{id_}") for id_, score in scores.items() if score <= now)
    return [int(name[2:]) for _, name in due[:DUE_MAX]]
