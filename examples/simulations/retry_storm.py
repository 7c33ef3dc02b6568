"""Retry storm: an outage of ten seconds, and three ways to try again.

Retries hide a short failure, and multiply the traffic while the dependency is down. Backoff spreads them, and does not
make them fewer; a budget does.
"""

from doubledecker.stages import Backoff, Budget, LogNormal, Outage, Poisson, Retry, Simulated

title = "Retry storm: four attempts, in an outage from 20 to 30 s"
chains = {
    "at once": Retry(4),
    "backoff": Retry(4, Backoff(0.2, cap_s=5)),
    "budget": Retry(4, Backoff(0.2, cap_s=5), Budget(0.2)),
}
dependency = Simulated(LogNormal(0.05), availability=0.98, outages=[Outage(20, 30)], outage_latency_s=0.02)
traffic = Poisson(100)
duration = 60
