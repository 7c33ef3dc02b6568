"""Records: what is fitted from them is what they were made with."""

from random import Random

import pytest

from doubledecker.stages import Arrival, Chain, LogNormal, Outage, Retry, simulate
from doubledecker.stages.errors import ScenarioInvalid
from doubledecker.stages.simulation.record import Record, RecordedTry, fit, quantile_of, share_of
from doubledecker.stages.simulation.report import differences, moments


def _attempts(
    seed: int, *, count: int = 2_000, availability: float = 0.95, outage: tuple[float, float] = (0, 0), rate: float = 20
) -> list[RecordedTry]:
    """Made up with known parameters, at times since an arbitrary beginning."""
    random = Random(seed)
    at, attempts = 1_000.0, []
    for number in range(count):
        at += random.expovariate(rate)
        is_out = outage[0] <= at - 1_000 < outage[1]
        is_success = not is_out and random.random() < availability
        took_s = 0.01 if is_out else LogNormal(0.08, 0.5).draw(random)
        attempts.append(RecordedTry(at, took_s, is_success, event=str(number), key="s"))
    return attempts


def test_the_fit_recovers_what_the_record_was_made_with_in_95_of_100_cases():
    fits = [fit(Record(_attempts(seed, count=500))) for seed in range(100)]

    assert sum(one.availability.covers(0.95) for one in fits) >= 90
    assert sum(one.median_s.covers(0.08) for one in fits) >= 90


def test_an_outage_is_found_and_is_no_part_of_the_availability():
    found = fit(Record(_attempts(1, outage=(30, 45))))

    [outage] = found.outages
    assert outage.start_s == pytest.approx(30, abs=0.5)
    assert outage.end_s == pytest.approx(45, abs=0.5)
    assert found.availability.covers(0.95)
    assert found.dependency.outage_latency_s == pytest.approx(0.01)


@pytest.mark.parametrize("availability", [0.99, 0.7, 0.3])
def test_failures_by_chance_are_no_outage(availability: float):
    found = [fit(Record(_attempts(seed, availability=availability))).outages for seed in range(20)]

    assert sum(map(len, found)) <= 1


def test_an_outage_that_has_not_ended_lasts_to_the_end_of_the_record():
    record = Record(_attempts(1, outage=(80, 10_000)))

    assert fit(record).outages[-1].end_s == pytest.approx(record.duration_s)


def test_the_same_chain_simulated_on_the_fit_gives_what_was_recorded():
    record = Record(_attempts(3, count=4_000, outage=(60, 90)))
    found = fit(record)
    report = simulate(Chain() | found.dependency, traffic=found.traffic, duration=found.duration_s, replications=5)
    recorded = record.report(sample_every=1)

    assert report.replications[0].sent == recorded.replications[0].sent == 4_000
    assert report.success.mean == pytest.approx(recorded.success.mean, abs=0.01)
    assert report.latency_s(0.5).mean == pytest.approx(recorded.latency_s(0.5).mean, rel=0.05)
    assert report.latency_s(0.99).mean == pytest.approx(recorded.latency_s(0.99).mean, rel=0.15)


def test_another_chain_on_the_same_traffic_has_another_outcome():
    record = Record(_attempts(3, availability=0.8))
    found = fit(record)
    report = simulate(Retry(3) | found.dependency, traffic=found.traffic, duration=found.duration_s, replications=3)
    difference = differences(record.report(sample_every=1), report)

    assert report.success.covers(1 - 0.2**3) or report.success.mean == pytest.approx(0.992, abs=0.01)
    assert difference["success"].low > 0.15
    assert difference["calls per event"].low > 0.1


def test_attempts_of_one_event_belong_together():
    tries = [
        RecordedTry(10.0, 1.0, is_success=False, event="a", number=1, key="s"),
        RecordedTry(13.0, 1.0, is_success=False, event="a", number=2, key="s"),
        RecordedTry(15.0, 0.5, is_success=True, event="a", number=3, key="s"),
        RecordedTry(11.0, 0.5, is_success=True, event="b", number=1, key="s"),
        RecordedTry(12.0, 0.5, is_success=True, event="a", number=1, key="t"),
        RecordedTry(16.0, 0.5, is_success=True, event="old", number=4, key="s"),
    ]
    record = Record(tries)
    [run] = record.report(sample_every=1).replications
    found = fit(record)

    assert run.outcomes == {"succeeded": 3, "failed": 0}
    assert sorted(run.latencies_s) == [0.5, 0.5, 5.5]
    assert [snapshot.arrived for snapshot in run.snapshots] == [3, 6]
    assert all(snapshot.is_balanced for sample in run.samples for snapshot in sample.snapshots)
    assert found.traffic.seen == [Arrival(0.0, "s"), Arrival(1.0, "s"), Arrival(2.0, "t")]


def test_an_event_that_waited_before_it_was_tried_arrives_when_it_did():
    tries = [
        RecordedTry(10.0, 1.0, is_success=False, event="a", number=1, arrived_s=9.5),
        RecordedTry(13.0, 1.0, is_success=True, event="a", number=2, arrived_s=9.5),
        RecordedTry(11.0, 0.5, is_success=True, event="b", number=1, arrived_s=4.0),
        RecordedTry(12.0, 0.5, is_success=True, event="c", number=1),
        # Clocks may differ: nothing is tried before it has arrived.
        RecordedTry(12.5, 0.5, is_success=True, event="d", number=1, arrived_s=12.6),
        # Its first attempt is not in the record: it is no part of the traffic.
        RecordedTry(16.0, 0.5, is_success=True, event="old", number=4, arrived_s=0.0),
    ]
    record = Record(tries)
    [run] = record.report(sample_every=1).replications
    found = fit(record)

    assert [arrival.at for arrival in found.traffic.seen] == [0.0, 5.5, 8.0, 8.5]
    assert sorted(run.latencies_s) == [0.5, 0.5, 4.5, 7.5]
    assert all(snapshot.is_balanced for sample in run.samples for snapshot in sample.snapshots)
    assert [one.event for one in record.first(2.0).attempts] == ["a", "b"]
    assert record.first(2.0).begun_s == 4.0


def test_samples_of_a_record_end_with_it():
    record = Record(_attempts(2, count=100))
    [run] = record.report(sample_every=0.5).replications

    assert run.samples[0].ended == 0
    assert run.samples[-1].at == record.duration_s
    assert [sample.at for sample in run.samples] == sorted(sample.at for sample in run.samples)


@pytest.mark.parametrize("seed", range(20))
def test_a_record_of_any_length_is_looked_at_in_the_moments_of_its_simulation(seed: int):
    record = Record(_attempts(seed, count=20 + seed))
    found = fit(record)
    every = 0.6 * found.duration_s / 60
    report = simulate(Chain() | found.dependency, traffic=found.traffic, duration=found.duration_s, sample_every=every)

    assert moments(record.report(sample_every=every)) == moments(report)
    assert len(moments(report)) == 100


def test_only_the_beginning_of_a_record_may_be_wanted():
    assert len(Record(_attempts(2)).first(10).attempts) == pytest.approx(200, rel=0.3)


def test_a_record_that_tells_nothing_is_refused():
    with pytest.raises(ScenarioInvalid, match="no attempts"):
        Record([])
    with pytest.raises(ScenarioInvalid, match="no first attempts"):
        fit(Record([RecordedTry(0, 1, is_success=True, event="a", number=2)]))
    with pytest.raises(ScenarioInvalid, match="none of the 1 recorded attempts succeeded"):
        fit(Record([RecordedTry(0, 1, is_success=False)]))


def test_what_a_timeout_cut_off_is_told():
    cut = RecordedTry(1.0, 2.0, is_success=False, is_cut=True)

    assert fit(Record([RecordedTry(0, 1, is_success=True), cut])).cut == 0.5


def test_very_many_durations_are_thinned_without_bending_them():
    found = fit(Record(_attempts(1, count=30_000, availability=1.0)))
    drawn = found.dependency.latency.durations_s

    assert len(drawn) == 10_000
    assert sorted(drawn)[5_000] == pytest.approx(0.08, rel=0.02)
    assert found.dependency.outages == ()
    assert found.outages == () != (Outage(0, 1),)


def test_intervals_of_shares_and_quantiles():
    assert share_of(0, 10).low == pytest.approx(0.0, abs=1e-9)
    assert share_of(0, 10).high == pytest.approx(0.278, abs=0.001)  # Wilson, by the book
    assert share_of(50, 100).covers(0.5)
    assert (quantile_of([5.0], 0.5).low, quantile_of([5.0], 0.5).high) == (5.0, 5.0)
