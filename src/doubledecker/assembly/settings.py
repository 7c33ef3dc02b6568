"""Settings: read once from the environment, checked, and passed on as values.

Each is `DOUBLEDECKER_<NAME>`; the names that Routemaster used are accepted too. docs/operations.md lists them all.
settings_file.py puts those of a file into the environment.
"""

import difflib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from urllib.parse import urlsplit

from doubledecker import log
from doubledecker.assembly import spark_conf
from doubledecker.assembly.launch import PROCESSES_MAX
from doubledecker.errors import SettingInvalid
from doubledecker.model import egress_proxy, subscriber
from doubledecker.model import token as tokens
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.egress_proxy import EgressProxy
from doubledecker.model.event import EventLimits
from doubledecker.model.quota import Quotas

_log = log.get("settings")

PREFIX = "DOUBLEDECKER_"
# Why the file of settings cannot be used, for code that reads settings: commands that need none work all the same.
FILE_INVALID = PREFIX + "SETTINGS_INVALID"
# The variables with our prefix that are no settings: the file that has some, and what is wrong with it.
_NO_SETTINGS = frozenset({PREFIX + "SETTINGS", FILE_INVALID})
# Routemaster's names, where they differ from ours by more than the prefix.
ALIASES = {
    "root_key": "ROUTEMASTER_ROOT_KEY",
    "clients": "ROUTEMASTER_CLIENTS",
    "redis_url": "ROUTEMASTER_REDIS_URL",
    "web_processes": "PUMA_WORKERS",
    "worker_threads": "ROUTEMASTER_WORKER_THREADS",
    "redis_max_mem_bytes": "ROUTEMASTER_REDIS_MAX_MEM",
    "redis_min_free_bytes": "ROUTEMASTER_REDIS_MIN_FREE",
    "connect_timeout_s": "ROUTEMASTER_CONNECT_TIMEOUT",
    "delivery_timeout_s": "ROUTEMASTER_TIMEOUT",
    "hp_heal_rate": "ROUTEMASTER_HP_HEAL_RATE",
    "hp_damage_rate": "ROUTEMASTER_HP_DAMAGE_RATE",
    "max_event_data_bytes": "ROUTEMASTER_MAX_EVENT_DATA",
    "ssl_verify": "ROUTEMASTER_SSL_VERIFY",
    "monitor_interval_s": "ROUTEMASTER_MONITOR_INTERVAL",
    "acquire_timeout_s": "ROUTEMASTER_ACQUIRE_TIMEOUT",
    "scaling_threshold": "ROUTEMASTER_SCALING_THRESHOLD",
    "scaling_deadline_ms": "ROUTEMASTER_SCALING_DEADLINE",
    "log_level": "ROUTEMASTER_LOG_LEVEL",
}
# Secrets that never leave the process in a pickle. `spark_conf` may hold keys of an object store.
_KEPT_HERE = ("root_key", "clients", "spark_conf")
# The bounds of a web process that are its part of those of its command.
_DIVIDED = ("connections_max", "address_connections_max", "client_requests_max", "streams_max", "bodies_bytes_max")
# Settings of version 0.1.0 that have no effect any more; one that is set is logged at start, for one release. What the
# first three were for is decided in Redis; the others are constants, or follow from another setting.
RETIRED = frozenset(
    {
        "breaker_calls",
        "breaker_threshold",
        "breaker_open_s",
        "disk_min_free_bytes",
        "event_depth_max",
        "events_per_request_max",
        "head_bytes_max",
        "head_s_max",
        "land_bytes",
        "redis_open_s",
        "scrub_interval_s",
        "stream_buffer_bytes",
        "stream_heartbeat_s",
        "stream_stall_s",
        "tend_interval_s",
    }
)
# Ruby's names of levels that have another one here.
_LEVELS = {"warn": "warning", "fatal": "error", "unknown": "error"}
_SCHEMES = ("redis", "rediss", "unix")
# Routemaster took the name of another variable in place of a URL.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
ADAPTERS = ("print", "prometheus", "statsd")
_PORT = re.compile(r"[0-9]{1,5}")
# Up to some three centuries.
_DAYS = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Settings:
    """Everything that can be turned; the defaults work on a laptop."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    namespace: str = "rm:"
    partitions: int = 1
    durable: bool = False
    host: str = "127.0.0.1"
    port: int = 17890
    web_processes: int = 1
    root_key: str = ""
    clients: str = ""
    private_callbacks: bool = False
    callback_allow: str = ""
    egress_proxy: str = ""
    metrics_public: bool = False
    tokens_default: str = "all"
    # what a request may be
    max_event_data_bytes: int = EventLimits.data_bytes_max
    body_bytes_max: int = 8_388_608
    bodies_bytes_max: int = 268_435_456
    body_s_max: float = 10.0
    connections_max: int = 2_000
    address_connections_max: int = 500
    trusted_proxies: str = ""
    # what a client may have
    client_topics_max: int = Quotas.client_topics_max
    client_queues_max: int = Quotas.client_queues_max
    client_copies_max: int = Quotas.client_copies_max
    client_refusing_queues_max: int = Quotas.client_refusing_queues_max
    client_pattern_steps_max: int = Quotas.client_pattern_steps_max
    pattern_steps_max: int = Quotas.pattern_steps_max
    client_filter_steps_max: int = Quotas.client_filter_steps_max
    filter_steps_max: int = Quotas.filter_steps_max
    client_subscribers_max: int = Quotas.client_subscribers_max
    client_subscriptions_max: int = Quotas.client_subscriptions_max
    client_streams_max: int = Quotas.client_streams_max
    client_requests_max: int = Quotas.client_requests_max
    client_events_per_s: int = Quotas.client_events_per_s
    client_idempotency_keys_max: int = Quotas.client_idempotency_keys_max
    client_waiting_bytes_max: int = Quotas.client_waiting_bytes_max
    queue_tenants_max: int = Quotas.queue_tenants_max
    # delivering
    worker_processes: int = 1
    worker_threads: int = 500
    connect_timeout_s: float = 2.0
    delivery_timeout_s: float = 20.0
    ssl_verify: bool = True
    backoff_base_ms: int = 1_000
    backoff_cap_ms: int = 300_000
    hp_heal_rate: int = 1
    hp_damage_rate: int = 2
    acquire_timeout_s: float = 5.0
    shutdown_s: float = 5.0
    watch_lease_s: float = 6.0
    # keeping
    journal_bytes_max: int = 805_306_368
    journal_full: str = "trim"
    dead_letters_max: int = 100_000
    redis_max_mem_bytes: int = 0
    redis_memory_share: float = 0.4
    redis_min_free_bytes: int = 16_777_216
    # listening
    notify: str = "heard"
    streams_max: int = 500
    # the pipeline
    lake: str = ""
    lake_shared: bool = False
    sources: str = ""
    pipeline_interval_s: float = 2.0
    land_interval_s: float = 10.0
    measure_interval_s: float = 30.0
    spark_master: str = "local[*]"
    spark_conf: str = ""
    lake_retention_days: int = 0
    lake_retention_topics: str = ""
    lake_retention_attempts_days: int = 0
    replay_rate_per_s: int = 1_000
    replay_backlog_max: int = 10_000
    # watching
    monitor_interval_s: float = 10.0
    autodrop_interval_s: float = 1.0
    autodrop_after_s: float = 300.0
    worker_dead_s: float = 15.0
    metric_adapters: str = "prometheus"
    statsd_address: str = "127.0.0.1:8125"
    scaling_threshold: int = 1_000
    scaling_deadline_ms: int = 0
    log_level: str = "info"
    log_json: bool = False

    def __post_init__(self) -> None:
        self._check()

    def __getstate__(self) -> dict[str, object]:
        """What is pickled, as Spark does with all that its tasks use: everything but secrets that tasks do not need."""
        return {**self.__dict__, **dict.fromkeys(_KEPT_HERE, "")}

    @property
    def spark_options(self) -> dict[str, str]:
        """Spark's own settings, as `spark_conf` gives them."""
        return spark_conf.parse(self.spark_conf)

    @property
    def topics_kept_days(self) -> dict[str, int]:
        """For how long the lake keeps the events of topics that have a rule of their own."""
        pairs = [part.partition("=") for part in self.lake_retention_topics.split(",") if part.strip()]
        if not all(_DAYS.fullmatch(days.strip()) for _, _, days in pairs):
            seen = self.lake_retention_topics
            raise _invalid("lake_retention_topics", f"is {seen!r}; write it in days, like orders=30,pages=7")
        return {topic.strip(): int(days) for topic, _, days in pairs}

    @property
    def client_tokens(self) -> tuple[str, ...]:
        """The tokens to import: those that clients of a Routemaster had."""
        return tuple(token.strip() for token in self.clients.split(",") if token.strip())

    @property
    def proxies(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The proxies whose connections are those of many clients."""
        named = [part.strip() for part in self.trusted_proxies.split(",") if part.strip()]
        try:
            return tuple(ipaddress.ip_network(part) for part in named)
        except ValueError as error:
            raise _invalid(
                "trusted_proxies", f"is {self.trusted_proxies!r}: {error}; write it like 10.0.0.0/8,::1"
            ) from error

    @property
    def dial_guard(self) -> DialGuard:
        """Which addresses may be called for clients."""
        try:
            return DialGuard.parse(self.callback_allow, is_private_allowed=self.private_callbacks)
        except ValueError as error:
            raise _invalid(
                "callback_allow", f"is {self.callback_allow!r}: {error}; write it like 10.1.0.0/16,hooks.internal"
            ) from error

    @property
    def proxy(self) -> EgressProxy | None:
        """What calls to receivers go through, if anything."""
        try:
            return egress_proxy.parse(self.egress_proxy) if self.egress_proxy else None
        except ValueError as error:
            raise _invalid(
                "egress_proxy", f"is not valid: {error}; write it like http://proxy.internal:3128"
            ) from error

    @property
    def adapters(self) -> tuple[str, ...]:
        """The metric adapters asked for."""
        return tuple(name.strip() for name in self.metric_adapters.split(",") if name.strip())

    def divided(self, processes: int) -> "Settings":
        """The settings of one of several web processes: what bounds a process is divided among them."""
        shares = {name: -(-getattr(self, name) // processes) for name in _DIVIDED}
        shares["bodies_bytes_max"] = max(shares["bodies_bytes_max"], 2 * self.body_bytes_max)
        return replace(self, **shares)

    def _check(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise _invalid(name, f"is {value}; the least is {least}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value > most:
                raise _invalid(name, f"is {value}; the most is {most}")
        _one_of("journal_full", self.journal_full, ("trim", "refuse"))
        _one_of("tokens_default", self.tokens_default, ("all", "none"))
        _one_of("notify", self.notify, ("heard", "always", "never"))
        _one_of("log_level", self.log_level.lower(), ("debug", "info", "warning", "error"))
        assert self.topics_kept_days is not None
        assert self.spark_options is not None
        assert self.proxies is not None
        assert self.dial_guard is not None
        assert self.proxy is None or self.proxy.host
        for adapter in self.adapters:
            _one_of("metric_adapters", adapter, ADAPTERS)
        if 0 < self.redis_max_mem_bytes <= self.redis_min_free_bytes:
            raise SettingInvalid(
                f"{PREFIX}REDIS_MAX_MEM_BYTES is {self.redis_max_mem_bytes}, and {PREFIX}REDIS_MIN_FREE_BYTES keeps "
                f"{self.redis_min_free_bytes} of it free: nothing is left; raise the first or lower the other"
            )
        # One client may have half of it, and the largest body must fit into that.
        if self.bodies_bytes_max < 2 * self.body_bytes_max:
            raise SettingInvalid(
                f"{PREFIX}BODIES_BYTES_MAX is {self.bodies_bytes_max}, and one client may have half of it: a body of "
                f"{self.body_bytes_max} bytes, which {PREFIX}BODY_BYTES_MAX allows, would never be taken; "
                f"make the first at least {2 * self.body_bytes_max}, or lower the second"
            )
        if not self.namespace or "{" in self.namespace or "}" in self.namespace:
            raise _invalid("namespace", f"is {self.namespace!r}; it must not be empty nor have braces")
        if "statsd" in self.adapters and not _PORT.fullmatch(self.statsd_address.rpartition(":")[2]):
            raise _invalid("statsd_address", f"is {self.statsd_address!r}; it must be host:port")
        _check_clients(self.client_tokens)


def _invalid(name: str, says: str) -> SettingInvalid:
    return SettingInvalid(f"{PREFIX}{name.upper()} {says}")


_LEAST = {
    "partitions": 1,
    "port": 0,
    "web_processes": 0,
    "worker_processes": 0,
    "max_event_data_bytes": 1,
    "body_bytes_max": 1_024,
    "bodies_bytes_max": 1_024,
    "body_s_max": 0.1,
    "connections_max": 1,
    "address_connections_max": 1,
    "client_topics_max": 0,
    "client_queues_max": 0,
    "client_copies_max": 0,
    "client_refusing_queues_max": 0,
    "client_subscribers_max": 0,
    "client_subscriptions_max": 0,
    "client_streams_max": 0,
    "client_requests_max": 0,
    "client_events_per_s": 0,
    "client_idempotency_keys_max": 0,
    "client_waiting_bytes_max": 0,
    "queue_tenants_max": 0,
    "client_pattern_steps_max": 0,
    "pattern_steps_max": 0,
    "client_filter_steps_max": 0,
    "filter_steps_max": 0,
    "worker_threads": 1,
    "connect_timeout_s": 0.01,
    "delivery_timeout_s": 0.01,
    "backoff_base_ms": 1,
    "backoff_cap_ms": 1,
    "hp_heal_rate": 1,
    "hp_damage_rate": 1,
    "acquire_timeout_s": 0.1,
    "shutdown_s": 0,
    "watch_lease_s": 0.3,
    "journal_bytes_max": 1_024,
    "dead_letters_max": 0,
    "redis_max_mem_bytes": 0,
    "redis_memory_share": 0.01,
    "redis_min_free_bytes": 0,
    "streams_max": 0,
    "pipeline_interval_s": 0.1,
    "land_interval_s": 0,
    "measure_interval_s": 0.1,
    "lake_retention_days": 0,
    "lake_retention_attempts_days": 0,
    "replay_rate_per_s": 1,
    "replay_backlog_max": 1,
    "monitor_interval_s": 0.1,
    "autodrop_interval_s": 0.1,
    "autodrop_after_s": 0,
    "worker_dead_s": 1,
    "scaling_threshold": 0,
    "scaling_deadline_ms": 0,
}


_MOST = {
    "web_processes": PROCESSES_MAX,
    "worker_processes": PROCESSES_MAX,
    # Heartbeats of all slots are one command, and a process has one core.
    "worker_threads": 2_000,
    "client_subscriptions_max": subscriber.TOPICS_MAX,
    # The rest of the machine needs some too, and so does the server while it rewrites its file.
    "redis_memory_share": 0.9,
}


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables; an unknown DOUBLEDECKER_ name is an error, since it is likely a typo."""
    if FILE_INVALID in environment:
        raise SettingInvalid(environment[FILE_INVALID])
    variables = _variables(environment)
    known = {field.name: field.default for field in fields(Settings)}
    try:
        parsed = {name: _parse(name, _text(name, environment, by), known[name]) for name, by in variables.items()}
        settings = Settings(**parsed)  # type: ignore[arg-type]  # _parse gives each the type of its default
        # Not by Settings itself: commands put there what was passed to them by another name.
        _check_redis_url(settings.redis_url)
    except SettingInvalid as error:
        raise SettingInvalid(_as_set(str(error), variables)) from error
    return settings


def log_retired(environment: Mapping[str, str]) -> None:
    """Log the variables that are set and have no effect any more."""
    for name in sorted(RETIRED):
        if PREFIX + name.upper() in environment:
            _log.warning("setting.retired", name=PREFIX + name.upper())


def _as_set(text: str, variables: Mapping[str, str]) -> str:
    """An error with the names of the variables that were set, where these are Routemaster's."""
    for name, by in variables.items():
        text = re.sub(rf"\b{PREFIX}{name.upper()}\b", by, text)
    return text


def variable(name: str, environment: Mapping[str, str]) -> str | None:
    """The environment variable that gives a setting, if one does."""
    return _variables(environment).get(name)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that gives each setting that is given; ours are stronger than Routemaster's."""
    known = {PREFIX + field.name.upper(): field.name for field in fields(Settings)}
    for each in environment.keys() - known.keys() - _NO_SETTINGS:
        if each.startswith(PREFIX) and each.removeprefix(PREFIX).lower() not in RETIRED:
            near = difflib.get_close_matches(each.removeprefix(PREFIX).lower(), known.values(), n=1)
            meant = f"did you mean {PREFIX}{near[0].upper()}?" if near else "docs/operations.md lists them"
            raise SettingInvalid(f"there is no setting {each}; {meant}")
    given = {name: alias for name, alias in ALIASES.items() if alias in environment}
    return given | {name: each for each, name in known.items() if each in environment}


def _text(name: str, environment: Mapping[str, str], by: str) -> str:
    """What a variable says, in our words where Routemaster has others."""
    text = environment[by]
    if by != ALIASES.get(name):
        return text
    if name == "hp_damage_rate":
        return text.removeprefix("-")
    if name == "web_processes" and text == "0":
        return "1"  # Puma without workers of its own; ours would be one a core
    if name == "log_level":
        return _LEVELS.get(text.lower(), text)
    if name == "redis_url" and _VARIABLE.fullmatch(text):
        if text not in environment:
            raise _invalid(name, f"is {text!r}, which would be the name of a variable with the URL; there is none")
        return environment[text]
    return text


def _parse(name: str, text: str, default: object) -> str | int | float | bool:
    assert default is not MISSING
    if isinstance(default, bool):
        if text.lower() in {"true", "1", "yes", "on"}:
            return True
        if text.lower() in {"false", "0", "no", "off"}:
            return False
        raise _invalid(name, f"is {text!r}; it must be true or false")
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise _invalid(name, f"is {text!r}; it must be {kind}") from None
    return text


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _invalid(name, f"is {value!r}; it must be one of {', '.join(allowed)}")


def _check_redis_url(url: str) -> None:
    for part in url.split(","):
        try:
            is_url = urlsplit(part.strip()).scheme in _SCHEMES and urlsplit(part.strip()).port != 0
        except ValueError:
            is_url = False
        if not is_url:
            # What stands before the address may be a password.
            shown = part.strip().rpartition("@")[2][:80]
            raise _invalid("redis_url", f"is {shown!r}; it must be like redis://127.0.0.1:6379/0, rediss:// or unix://")


def _check_clients(secrets: tuple[str, ...]) -> None:
    for number, secret in enumerate(secrets, 1):
        if not tokens.PATTERN.fullmatch(secret) or not tokens.name_of(secret):
            allowed = f"{tokens.PATTERN.pattern}, with a name before any --"
            raise _invalid("clients", f"has a token, number {number}, that does not match {allowed}")
