"""Settings that cannot be are refused when a stage is made, and the message says what can."""

import math

import pytest

from doubledecker.stages import (
    Adaptive,
    Arrival,
    AsideCache,
    Backoff,
    Batch,
    Breaker,
    Budget,
    Bulkhead,
    Bursty,
    Cache,
    Chain,
    CoDel,
    Constant,
    Count,
    Deadline,
    Even,
    Exponential,
    Fallback,
    Fault,
    Fifo,
    Hedge,
    LogNormal,
    Normal,
    NormalKeys,
    Observed,
    Outage,
    Poisson,
    Ramp,
    RateLimit,
    Recorded,
    Retry,
    Router,
    Shed,
    Simulated,
    Stage,
    Ticks,
    Time,
    Timeout,
    UniformKeys,
    presets,
    simulate,
)
from doubledecker.stages.errors import ChainInvalid, SettingInvalid

WRONG = {
    "adaptive.target_s": lambda: Adaptive(0),
    "adaptive.workers": lambda: Adaptive(workers=5, workers_max=4),
    "adaptive.workers_min": lambda: Adaptive(workers_min=11, workers=10),
    "adaptive.decrease": lambda: Adaptive(decrease=1.5),
    "aside_cache.capacity": lambda: AsideCache(0),
    "aside_cache.ttl_s": lambda: AsideCache(ttl_s=-1),
    "backoff.first_s": lambda: Backoff(-0.1),
    "backoff.cap_s": lambda: Backoff(cap_s=math.inf),
    "batch.size_max": lambda: Batch(0),
    "batch.wait_s": lambda: Batch(wait_s=-1),
    "breaker.window": lambda: Breaker(20),
    "breaker.threshold": lambda: Breaker(threshold=50),
    "breaker.calls_min": lambda: Breaker(calls_min=0),
    "breaker.open_s": lambda: Breaker(open_s=0),
    "breaker.probes": lambda: Breaker(probes=0),
    "breaker.on": lambda: Breaker(on=(ValueError("made"),)),
    "budget.share": lambda: Budget(-1),
    "bulkhead.workers": lambda: Bulkhead(workers=0),
    "bulkhead.queue": lambda: Bulkhead(queue=100),
    "bursty.burst_per_s": lambda: Bursty(0, 0),
    "cache.capacity": lambda: Cache(0),
    "cache.ttl_s": lambda: Cache(ttl_s=0),
    "cache.stale_s": lambda: Cache(stale_s=-1),
    "co_del.target_s": lambda: CoDel(target_s=0),
    "constant.value_s": lambda: Constant(-1),
    "count.size": lambda: Count(0),
    "deadline.limit_s": lambda: Deadline(-1),
    "even.rate_per_s": lambda: Even(0),
    "even_ticks.events": lambda: presets.EvenTicks(50, 0),
    "exponential.mean_s": lambda: Exponential(0),
    "fallback.chain": lambda: Fallback(Timeout(1)),
    "fault.rate": lambda: Fault(2),
    "fault.delay": lambda: Fault(delay=0.5),
    "fifo.size_max": lambda: Fifo(-1),
    "hedge.attempts": lambda: Hedge(attempts=0),
    "log_normal.median_s": lambda: LogNormal(0),
    "normal.deviation_s": lambda: Normal(1, -1),
    "normal_keys.deviation": lambda: NormalKeys(deviation=-1),
    "observed.durations_s": lambda: Observed([]),
    "outage.start_s": lambda: Outage(10, 5),
    "poisson.rate_per_s": lambda: Poisson(math.nan),
    "ramp.to_per_s": lambda: Ramp(1, -1),
    "rate_limit.rate_per_s": lambda: RateLimit(0),
    "rate_limit.burst": lambda: RateLimit(burst=1.5),
    "recorded.seen": lambda: Recorded([Arrival(2.0), Arrival(1.0)]),
    "retry.attempts": lambda: Retry(0),
    "retry.backoff": lambda: Retry(2, 0.1),
    "retry.budget": lambda: Retry(2, budget=0.2),
    "router.routes['slow']": lambda: Router({"slow": Timeout(1)}),
    "shed.soft": lambda: Shed(soft=20, hard=10),
    "simulated.latency": lambda: Simulated(0.05),
    "simulated.availability": lambda: Simulated(availability=99),
    "stage.workers": lambda: Stage(workers=True),
    "ticks.mean": lambda: Ticks(-1),
    "time.span_s": lambda: Time(0),
    "timeout.limit_s": lambda: Timeout("2"),
    "uniform_keys.count": lambda: UniformKeys(0),
    "circuit_breaker.capacity": lambda: presets.circuit_breaker(0),
    "simulate.duration": lambda: simulate(Chain(), traffic=Poisson(1), duration=-1),
    "simulate.replications": lambda: simulate(Chain(), traffic=Poisson(1), duration=1, replications=0),
    "simulate.sample_every": lambda: simulate(Chain(), traffic=Poisson(1), duration=1, sample_every=0),
    "simulate.traffic": lambda: simulate(Chain(), traffic=100, duration=1),
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_setting_out_of_its_limits_is_refused_by_name(setting: str):
    with pytest.raises(SettingInvalid) as refused:
        WRONG[setting]()

    assert f"{refused.value.owner}.{refused.value.setting}" == setting
    assert str(refused.value).startswith(f"{setting} is ")


def test_the_message_says_what_was_seen_and_what_is_allowed():
    with pytest.raises(SettingInvalid, match=r"^timeout\.limit_s is -1; it must be a finite number above 0$"):
        Timeout(-1)
    with pytest.raises(SettingInvalid, match=r"^slow\.workers is 0; it must be a whole number, 1 or more, or none$"):
        Bulkhead(workers=0, name="slow")
    with pytest.raises(SettingInvalid, match=r"^shed\.soft is 20; it must be at most hard, which is 10$"):
        Shed(soft=20, hard=10)


def test_a_changed_chain_is_checked_too():
    chain = Retry(3) | Timeout(1)

    with pytest.raises(SettingInvalid, match=r"retry\.attempts is 0"):
        chain.change("retry", attempts=0)
    with pytest.raises(ChainInvalid, match="it has abandon, limit_s, name, queue, workers"):
        chain.change("timeout", limit=1)
    with pytest.raises(ChainInvalid, match="there are retry, timeout"):
        chain.change("breaker", probes=1)


def test_a_running_bulkhead_cannot_have_fewer_workers_than_none():
    with pytest.raises(SettingInvalid, match=r"bulkhead\.workers is -1"):
        (Chain() | Bulkhead(workers=1)).bind()["bulkhead"].resize(-1)
