"""Breaker tuning: how easily should it open, and for how long?

A tenth of the calls fails on a usual day. Twice the dependency is down for 15 s, and a call takes a second to find out.
A breaker that opens at fewer failures than are usual is open most of the time; one that stays open for long makes every
outage longer.
"""

from doubledecker.stages import Breaker, Chain, Count, LogNormal, Outage, Poisson, Simulated, Timeout

title = "Breaker tuning: two outages, and a tenth of the calls fails on a usual day"
chains = {
    "none": Chain() | Timeout(1.0),
    "breaker": Breaker(Count(20), threshold=0.5, open_s=2) | Timeout(1.0),
}
dependency = Simulated(
    LogNormal(0.05), availability=0.9, outages=[Outage(30, 45), Outage(75, 90)], outage_latency_s=5.0
)
traffic = Poisson(40)
duration = 120
