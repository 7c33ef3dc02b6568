"""The tables of the report: which figure is shown where, beside which floor, peers and aim."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Aim:
    """A bound that a median is to keep, or its ratio to the floor or the best peer; one of the two is given."""

    least: float | None = None
    most: float | None = None
    of: str = ""

    def is_met_by(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    key: str
    unit: str
    floor: str = ""
    peers: tuple[str, ...] = ()
    aim: Aim | None = None
    # Of two figures, is the larger one the better?
    is_gain: bool = False

    @property
    def is_better_larger(self) -> bool:
        return self.is_gain or self.unit == "/s" or (self.aim is not None and self.aim.least is not None)


@dataclass(frozen=True)
class Table:
    """Figures that are read together, and how they were measured."""

    title: str
    how: str
    rows: tuple[Row, ...]


def _costs(kind: str, floor: str = "", aim: Aim | None = None) -> tuple[Row, ...]:
    web, least = f"ingest.{kind}.web_cpu_us", floor and f"{floor}.web_cpu_us"
    return (
        Row("processor time of web an event", web, "µs", least, aim=aim),
        Row("processor time of Valkey an event", f"ingest.{kind}.valkey_cpu_us", "µs"),
    )


def _drained(size: int, aims: dict[str, Aim], peers: tuple[str, ...] = ()) -> tuple[Row, ...]:
    key, floor = f"drain.{size}", f"floor.posts.{size}"
    used = f"{floor}.worker_cpu_us"
    return (
        Row(
            f"batches of {size}: events",
            f"{key}.events_per_s",
            "/s",
            f"{floor}.events_per_s",
            peers,
            aims.get("events"),
        ),
        Row(f"batches of {size}: batches", f"{key}.batches_per_s", "/s", f"{floor}.batches_per_s", aim=aims["batches"]),
        Row("processor time of the worker an event", f"{key}.worker_cpu_us", "µs", used, aim=aims.get("worker")),
        Row("processor time of Valkey an event", f"{key}.valkey_cpu_us", "µs", used, aim=aims.get("valkey")),
        Row("calls to Valkey a batch", f"{key}.calls_per_batch", "", aim=aims.get("calls")),
    )


def _waiting(count: int) -> tuple[Row, ...]:
    key, named = f"subscribers.{count}", f"{_grouped(count)} subscriber{'s' if count > 1 else ''}"
    rows = (
        Row(f"{named}: processor time of the worker a batch", f"{key}.worker_cpu_us", "µs"),
        Row("processor time of Valkey a batch", f"{key}.valkey_cpu_us", "µs"),
        Row("calls to Valkey a batch", f"{key}.calls_per_batch", ""),
    )
    costs = (
        Row("time of the worker, times that with 1", f"{key}.worker_cost", "times", aim=_FLAT),
        Row("time of Valkey, times that with 1", f"{key}.valkey_cost", "times", aim=_FLAT),
    )
    return rows if count == 1 else (*rows, *costs)


def _beside(kind: str, named: str) -> tuple[Row, ...]:
    key = f"neighbours.{kind}"
    return (
        Row(f"beside one that {named}: 99 % arrive within", f"{key}.p99_ms", "ms"),
        Row("times that undisturbed", f"{key}.times", "times", aim=Aim(most=1.5)),
    )


def _doubled(kind: str, what: str) -> tuple[Row, ...]:
    key = f"processes.{kind}"
    return (
        Row(f"one {kind} process: {what}", f"{key}.1_per_s", "/s"),
        Row(f"two: {what}", f"{key}.2_per_s", "/s"),
        Row("times as many", f"{key}.gain", "times", is_gain=True),
    )


def _flowing(facets: int) -> tuple[Row, ...]:
    key, named = f"queues.{facets}", _tenants(facets)
    return (
        Row(f"{named}: pushed one by one", f"{key}.pushed.single_per_s", "/s"),
        Row(f"{named}: pushed a hundred at a time", f"{key}.pushed.batched_per_s", "/s", "floor.valkey.lpush_per_s"),
        Row(f"{named}: pulled and acked one by one", f"{key}.pulled.single_per_s", "/s"),
        Row(f"{named}: a hundred at a time", f"{key}.pulled.batched_per_s", "/s", aim=Aim(least=50_000)),
    )


def _costing(facets: int) -> tuple[Row, ...]:
    key, named = f"queues.{facets}", f"{_tenants(facets)}, times that at 10"
    return (
        Row(f"time to push one by one at {named}", f"{key}.pushed.single.cost", "times", aim=_FLAT),
        Row(f"time to push a hundred at {named}", f"{key}.pushed.batched.cost", "times"),
        Row(f"time to pull and ack one by one at {named}", f"{key}.pulled.single.cost", "times", aim=_FLAT),
        Row(f"time to pull and ack a hundred at {named}", f"{key}.pulled.batched.cost", "times", aim=_FLAT),
    )


def _tenants(count: int) -> str:
    return f"{_grouped(count)} tenants"


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")


_FLAT = Aim(most=1.3)
# What may be asked for beside a plain delivery is to leave at least so much of its rate.
_EXTRAS = Aim(least=0.75)
# What one subscriber's batches of one event are to cost, beside a loop that does nothing but POST.
_SINGLES = {
    "events": Aim(least=2.5, of="peer"),
    "batches": Aim(least=0.35, of="floor"),
    "worker": Aim(most=2.2, of="floor"),
    "valkey": Aim(most=0.75, of="floor"),
    "calls": Aim(most=0.6),
}
_DONE = tuple(f"{peer}.noop.done_per_s" for peer in ("rq", "dramatiq", "celery", "taskiq", "bullmq"))
_BARE = "guarded.bare_us"
_GUARDS = ("asyncio", "tenacity", "stamina", "aiobreaker", "aiolimiter", "hyx")
_SINGLE, _ARRAY = "floor.http.single", "floor.http.array"

TABLES = (
    Table(
        "Ingest, one event a request",
        "`POST /topics/:name` over 32 connections to one web process; no worker runs. The floor is the same HTTP "
        "server with an app that reads the body and answers 204. The peers' figure is jobs enqueued a second by one "
        "process that talks to Valkey directly: no HTTP, no check of who asks, no answer to a client. It is shown to "
        "give a sense of scale; it is not the same work.",
        (
            Row(
                "1 subscriber: requests",
                "ingest.single.requests_per_s",
                "/s",
                f"{_SINGLE}.requests_per_s",
                ("dramatiq.noop.enqueued_per_s", "celery.noop.enqueued_per_s"),
                Aim(least=10_000),
            ),
            Row("half are answered within", "ingest.single.p50_ms", "ms", f"{_SINGLE}.p50_ms"),
            Row("99 % are answered within", "ingest.single.p99_ms", "ms", f"{_SINGLE}.p99_ms"),
            *_costs("single", _SINGLE, Aim(most=2.4, of="floor")),
            Row(
                "10 subscribers: requests",
                "ingest.single_to_10.requests_per_s",
                "/s",
                f"{_SINGLE}.requests_per_s",
            ),
            Row("half are answered within", "ingest.single_to_10.p50_ms", "ms", f"{_SINGLE}.p50_ms"),
            Row("99 % are answered within", "ingest.single_to_10.p99_ms", "ms", f"{_SINGLE}.p99_ms"),
            *_costs("single_to_10", _SINGLE),
            Row("time for 10 subscribers, times that for 1", "ingest.cost_of_10", "times", aim=Aim(most=3)),
        ),
    ),
    Table(
        "Ingest, 100 events a request",
        "`POST /events` with a JSON array over 8 connections to one web process; 1 subscriber; no worker runs. The "
        "floor reads the same bytes and does not look at them.",
        (
            Row("events", "ingest.array.events_per_s", "/s", f"{_ARRAY}.events_per_s", aim=Aim(least=50_000)),
            Row("half of the requests are answered within", "ingest.array.p50_ms", "ms", f"{_ARRAY}.p50_ms"),
            Row("99 % of them within", "ingest.array.p99_ms", "ms", f"{_ARRAY}.p99_ms"),
            *_costs("array", _ARRAY, Aim(most=7.5)),
        ),
    ),
    Table(
        "Draining a backlog",
        "One worker process delivers what waits for one subscriber: 100 000 events in batches of 100 and of 1000, up "
        "to 20 000 one by one; 4 calls at a time, the default. The floor is a loop of `aiohttp` that POSTs bodies of "
        "the same size to the same receiver, also 4 at a time. The peers' figure is jobs a second where a job POSTs "
        "one event to the same receiver: the work of a batch of 1, save that a batch is also journaled and counted. "
        "The floor of Valkey's time is the loop's own. Calls are scripts and blocking reads.",
        (
            *_drained(1000, {"events": Aim(least=100_000), "batches": Aim(least=0.3, of="floor")}),
            *_drained(100, {"batches": Aim(least=0.3, of="floor")}),
            *_drained(1, _SINGLES, peers=("dramatiq.post.done_per_s", "celery.post.done_per_s")),
        ),
    ),
    Table(
        "Extras of a delivery",
        "A backlog drained in batches of 100, as above, to one subscriber whose deliveries carry more than plain ones: "
        "a signature, two headers of its own, order by key. Of an ordered one a single batch is in flight at once, and "
        "it stands beside a plain one with one call at a time. The dial guard is in all of them.",
        (
            Row("plain: events", "extras.plain.events_per_s", "/s"),
            Row("signed, with own headers: events", "extras.signed.events_per_s", "/s"),
            Row("times the plain one", "extras.signed.times", "times", aim=_EXTRAS, is_gain=True),
            Row("plain, one call at a time: events", "extras.single.events_per_s", "/s"),
            Row("ordered: events", "extras.ordered.events_per_s", "/s"),
            Row("times the plain one", "extras.ordered.times", "times", aim=_EXTRAS, is_gain=True),
            Row("ordered, signed, with own headers: events", "extras.together.events_per_s", "/s"),
            Row("times the plain one", "extras.together.times", "times", aim=_EXTRAS, is_gain=True),
        ),
    ),
    Table(
        "Many subscribers",
        "One worker process with 16 slots, all busy, delivers batches of one event. As many batches wait in each case, "
        "for one subscriber that allows 16 calls at a time, for a hundred, or for ten thousand that have two each.",
        tuple(row for count in (1, 100, 1_000, 10_000) for row in _waiting(count)),
    ),
    Table(
        "Neighbours",
        "100 events a second, one a request, to a healthy subscriber, beside another with 2 000 batches of one event "
        "waiting, whose receiver never answers, or answers with 500, with 500 and 4 MB, or with 400.",
        (
            Row("undisturbed: 99 % arrive within", "neighbours.none.p99_ms", "ms"),
            *_beside("hang", "hangs"),
            *_beside("fail", "fails"),
            *_beside("flood", "answers with megabytes"),
            *_beside("refuse", "refuses"),
        ),
    ),
    Table(
        "A second process",
        "Workers of 16 slots deliver batches of one event for a hundred subscribers; web takes one event a request. "
        "The load generator, the receiver and Valkey run on the same cores.",
        (*_doubled("worker", "batches"), *_doubled("web", "requests")),
    ),
    Table(
        "The pipeline",
        "500 000 events of a journal, 500 an entry, between the bus and a lake on this disk; Spark on all cores. The "
        "floor of landing is one process without Spark that makes Arrow batches of XRANGE and writes them to Parquet; "
        "that of the sink is `foreachPartition` with a pipeline of bare XADD. The lag is that of `pipeline run` beside "
        "a bus that takes 10 000 events a second over HTTP: how old the newest event in the lake is, at any moment.",
        (
            Row("XRANGE alone, one process", "floor.journal.xrange_per_s", "/s"),
            Row("XRANGE to Arrow batches, one process", "floor.journal.arrow_per_s", "/s"),
            Row("landed in Delta, cold", "pipeline.land_cold_per_s", "/s", "floor.journal.parquet_per_s"),
            Row(
                *("landed in Delta, warm", "pipeline.land_warm_per_s", "/s", "floor.journal.parquet_per_s"),
                aim=Aim(least=150_000),
            ),
            Row("times as long as the floor, warm", "pipeline.land_times_floor", "times", aim=Aim(most=1.3)),
            Row("times as long, four times as many events", "pipeline.land_larger_floor", "times", aim=Aim(most=1.3)),
            Row("cost of an event among four times as many", "pipeline.land_larger_cost", "times", aim=Aim(most=1.3)),
            Row("times as fast as on one core", "pipeline.land_cores_gain", "times", is_gain=True),
            Row("measured, a million events", "pipeline.measure_s", "s"),
            Row("replayed to a queue", "pipeline.replay_per_s", "/s"),
            Row(
                *("published by the sink", "pipeline.sink_per_s", "/s", "floor.foreach_partition_per_s"),
                aim=Aim(least=200_000),
            ),
            Row("share of a core that Valkey used meanwhile", "pipeline.sink_valkey_percent", "%"),
            Row("lag, median", "pipeline.lag_p50_s", "s"),
            Row("lag, most", "pipeline.lag_most_s", "s", aim=Aim(most=5)),
        ),
    ),
    Table(
        "The lake's upkeep",
        "Processor time of the driver for a round of landing, without Spark and without writing rows: look at the "
        "table, commit a file, look again, find the files of the last minutes. By delta-rs: open, commit, update, and "
        "list all files, as version 0.1.0 did. A log of a million commits is as clean-up leaves it: a checkpoint, and "
        "the commits of the last day. A checkpoint is written every 100 commits, and of 200 000 files every 400.",
        (
            Row("1 000 commits, 1 000 files: a round", "lake.small.round_ms", "ms"),
            Row("1 000 000 commits: a round", "lake.old.round_ms", "ms"),
            Row("times as long", "lake.old.times", "times", aim=Aim(most=2)),
            Row("200 000 files: a round", "lake.large.round_ms", "ms"),
            Row("times as long", "lake.large.times", "times", aim=Aim(most=2)),
            Row("by delta-rs", "lake.large.delta_rs_ms", "ms"),
            Row("both: a round", "lake.both.round_ms", "ms"),
            Row("times as long", "lake.both.times", "times", aim=Aim(most=2)),
            Row("both: opened, once a process", "lake.both.open_s", "s"),
            Row("both: a checkpoint", "lake.both.checkpoint_s", "s"),
            Row("both: memory of the process", "lake.both.memory_mb", "MB"),
        ),
    ),
    Table(
        "Delivering in bulk",
        "The pipeline's step delivers what has landed to one subscriber of the bulk tier, on all of Spark's cores but "
        "one, with Spark warm; 4 calls at a time, the default. The figure holds whole rounds: reading the lake, sorting"
        " by key, posting, and moving the ledger. The floor is that of a worker's drain.",
        (
            Row("batches of 1000: events", "bulk.1000.events_per_s", "/s", "floor.posts.1000.events_per_s"),
            Row("batches of 100: events", "bulk.100.events_per_s", "/s", "floor.posts.100.events_per_s"),
        ),
    ),
    Table(
        "End to end",
        "50 events a second, one a request, to a subscriber with `timeout` 0 and `max` 100: from the moment the "
        "request is sent to the moment the receiver has the event, by one clock.",
        (
            Row("half arrive within", "latency.p50_ms", "ms", aim=Aim(most=2.5)),
            Row("99 % arrive within", "latency.p99_ms", "ms", aim=Aim(most=5)),
            Row("half of the requests are answered within", "latency.answer_p50_ms", "ms"),
            Row("99 % of them within", "latency.answer_p99_ms", "ms"),
            Row("processor time of the worker an event", "latency.worker_cpu_us", "µs"),
            Row("processor time of Valkey an event", "latency.valkey_cpu_us", "µs"),
            Row("processor time of web an event", "latency.web_cpu_us", "µs"),
            Row(
                "calls of the worker to Valkey an event, beyond those of an idle one",
                "latency.worker_calls",
                "",
                aim=Aim(most=2),
            ),
            Row("calls of an idle worker to Valkey", "latency.idle_calls_per_s", "/s"),
        ),
    ),
    Table(
        "Memory",
        "Valkey's `used_memory` with 100 000 events waiting for 1 subscriber in batches of 100, less what it was "
        "before. The journal keeps a second copy of every event until it is trimmed.",
        (
            Row("an event as it is delivered", "memory.event_bytes", "bytes"),
            Row(
                *(
                    "a waiting event, without the journal",
                    "memory.without_journal_bytes",
                    "bytes",
                    "memory.event_bytes",
                ),
                aim=Aim(most=1.15, of="floor"),
            ),
            Row(
                *("a waiting event, with the journal", "memory.with_journal_bytes", "bytes", "memory.event_bytes"),
                aim=Aim(most=1.8, of="floor"),
            ),
            Row("100 000 waiting events, with the journal", "memory.backlog_mib", "MiB"),
        ),
    ),
    Table(
        "Guarded calls",
        "A function that does nothing, called through stages as a decorator, one call at a time; processor time, on "
        "asyncio's own loop. The floor is the call without a guard. A peer is a library for the same technique, with "
        "settings as near as it has; hyx has all four. `asyncio.timeout` is asyncio's own.",
        (
            Row("through a stage, over the bare call", "guarded.stage_over_us", "µs", aim=Aim(most=1)),
            Row("through all four, over the bare call", "guarded.four_over_us", "µs", aim=Aim(most=8)),
            Row("a chain without stages", "guarded.no_stage_us", "µs", _BARE),
            Row("a plain stage", "guarded.stage_us", "µs", _BARE),
            Row("the same, bound and called with an event", "guarded.bound_us", "µs", _BARE),
            Row("bulkhead", "guarded.bulkhead_us", "µs", _BARE),
            Row("retry", "guarded.retry_us", "µs", _BARE, ("tenacity.guarded_us", "stamina.guarded_us")),
            Row("timeout", "guarded.timeout_us", "µs", _BARE, ("asyncio.guarded_us",)),
            Row("breaker", "guarded.breaker_us", "µs", _BARE, ("aiobreaker.guarded_us",)),
            Row("rate limit", "guarded.rate_limit_us", "µs", _BARE, ("aiolimiter.guarded_us",)),
            Row("retry, timeout, breaker, bulkhead", "guarded.four_us", "µs", _BARE, ("hyx.guarded_us",)),
            Row("the same, bound and called with an event", "guarded.four_bound_us", "µs", _BARE),
            *(Row(f"{name} by itself", f"{name.lower()}.guarded_us", "µs", _BARE) for name in _GUARDS),
        ),
    ),
    Table(
        "Rehearsal",
        "A queue with one server at load 0.8 in virtual time, 20 000 customers, through a bulkhead and a simulated "
        "dependency with all their counters; by processor time. SimPy's program is the shortest that does the same.",
        (
            Row(
                "customers",
                "simulation.mm1.customers_per_s",
                "/s",
                peers=("simpy.mm1.customers_per_s",),
            ),
            Row("times SimPy's, turn by turn", "simulation.mm1.times_simpy", "times", aim=Aim(least=1)),
            Row("SimPy by itself", "simpy.mm1.customers_per_s", "/s"),
            Row("Ciw by itself", "ciw.mm1.customers_per_s", "/s"),
        ),
    ),
    Table(
        "Rehearsal against theory",
        "1 000 000 customers a server at load 0.6, or 0.9 where some are turned away; service takes 1 on average; "
        "with other chance in each repetition. The floor is what queueing theory says of the load that chance "
        "brought. How far a run is off is chance.",
        (
            Row("one server: mean wait", "theory.mm1_wait", "", "theory.mm1_wait_expected"),
            Row("off by", "theory.mm1_wait_off_percent", "%", aim=Aim(most=2)),
            Row("four servers: mean wait", "theory.mm4_wait", "", "theory.mm4_wait_expected"),
            Row("off by", "theory.mm4_wait_off_percent", "%", aim=Aim(most=2)),
            Row("four servers, four places: turned away", "theory.mm48_blocking", "%", "theory.mm48_blocking_expected"),
            Row("off by", "theory.mm48_blocking_off_percent", "%", aim=Aim(most=2)),
        ),
    ),
    Table(
        "Fair queues",
        "One process that talks to Valkey directly: pushes through the publish script (journal included), pulls and "
        "acks, one message at a time in 16 loops, a hundred at a time in 4. Every tenant has messages waiting before, "
        "and gets new ones in turns. So a hundred for ten tenants are ten for each, which join its line together; with "
        "more tenants there are a hundred lines to join. The noisy neighbour is one tenant with "
        "100 000 messages before 99 tenants with ten each: ideally the last of theirs is the 1000th served, where a "
        "queue without tenants would serve the first of them as the 100 001st.",
        (
            *(row for facets in (10, 1_000, 100_000) for row in _flowing(facets)),
            *(row for facets in (1_000, 100_000) for row in _costing(facets)),
            Row(
                "a handler that does nothing, on Valkey: jobs",
                "queues.handled.redis_per_s",
                "/s",
                peers=_DONE,
                aim=Aim(least=15_000),
            ),
            Row("a handler that does nothing, over HTTP: jobs", "queues.handled.http_per_s", "/s", peers=_DONE),
            Row("the last message of a quiet tenant is served as number", "queues.noisy.last_position", ""),
            Row("Jain index of the first 1000 served", "queues.noisy.jain", "", aim=Aim(least=0.99)),
        ),
    ),
    Table(
        "Floors and peers by themselves",
        "Valkey: pipelines of 50 commands over 8 connections with values of an event's size. Dramatiq: one worker "
        "process with 8 threads, its default number. Celery: one worker with 2 prefork children, its default on two "
        "cores; by default it acknowledges a job before running it, so a crash loses the job, which is less than "
        "Dramatiq and the bus promise. RQ: one worker, which forks for each job, its default. taskiq: one worker "
        "process on its stream broker. BullMQ: one worker that takes 50 jobs at a time.",
        (
            Row("Valkey: LPUSH", "floor.valkey.lpush_per_s", "/s"),
            Row("Valkey: SET", "floor.valkey.set_per_s", "/s"),
            *(
                Row(f"{title}: jobs that do nothing, {verb}", f"{peer}.noop.{key}_per_s", "/s")
                for peer, title in (("rq", "RQ"), ("taskiq", "taskiq"), ("bullmq", "BullMQ"))
                for key, verb in (("enqueued", "enqueued"), ("done", "done"))
            ),
            *(
                Row(f"{peer.capitalize()}: jobs that {what} {verb}", f"{peer}.{job}.{key}_per_s", "/s")
                for peer in ("dramatiq", "celery")
                for job, what in (("noop", "do nothing,"), ("post", "POST one event,"))
                for key, verb in (("enqueued", "enqueued"), ("done", "done"))
            ),
        ),
    ),
)

# Why some figures are worse than those of 0.1.0 on purpose, by the keys of their rows: a check was added. The first
# that fits counts.
_CHECKED = (
    "every request is checked against its client's quotas (events a second, bytes that wait, topics), and its events "
    "are routed by who publishes them, so that others' queues get no more copies than they may"
)
_REPORTED = (
    "each process reports how it fares and how late its loop was, and a worker samples the bytes that wait for each "
    "client; at light load few events share that"
)
REASONS = {
    "ingest.*": _CHECKED,
    "processes.web.*": _CHECKED,
    "latency.web_cpu_us": _CHECKED,
    "latency.answer_*": _CHECKED,
    "latency.worker_*": _REPORTED,
    "latency.valkey_cpu_us": _REPORTED,
    "latency.*": "what the request waits for, see `latency.answer_p50_ms`, is a part of it",
    "queues.*.pushed.*": (
        "the records of all tenants of a call are read before anything is written, so that a queue knows no more "
        "tenants than `queue_tenants_max`"
    ),
    "queues.*.pulled.*_per_s": "an ack notes when it came, by which autodrop tells that somebody consumes the queue",
}


def reason(key: str) -> str:
    """Why a figure is worse than before on purpose; empty when no reason is known."""
    return next((why for pattern, why in REASONS.items() if fnmatchcase(key, pattern)), "")
