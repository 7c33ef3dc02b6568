"""Counters' names and buckets."""

from doubledecker.bus.telemetry import Counter, counter, latency, parse


def test_a_counter_s_name_can_be_taken_apart_again():
    field = counter("delivery.events", subscriber="a-1", outcome="delivered")

    assert field == "delivery.events:subscriber=a-1,outcome=delivered"
    assert parse(field) == Counter("delivery.events", (("subscriber", "a-1"), ("outcome", "delivered")))
    assert parse(counter("x")) == Counter("x", ())


def test_a_colon_in_a_token_s_name_survives():
    assert parse(counter("x", subscriber="a:b-1")).labels == (("subscriber", "a:b-1"),)


def test_an_observation_falls_in_one_bucket():
    assert latency("l", 2) == {"l:le=2": 1, "l.sum": 2}
    assert latency("l", 3) == {"l:le=5": 1, "l.sum": 3}
    assert latency("l", 10**6) == {"l:le=+Inf": 1, "l.sum": 10**6}
    assert latency("l", -4) == {"l:le=2": 1, "l.sum": 0}
