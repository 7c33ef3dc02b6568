"""Metastable overload: what five bad seconds started goes on for ever, until a bound ends it.

The dependency can do 100 calls a second, and is asked for 70. For five seconds it is slow. Calls queue up; callers wait
a second, give up and ask again; the dependency still works on what nobody waits for any more. When it is quick again,
the queue is so long that every answer comes too late, and the retries keep it that long.
"""

from doubledecker.stages import Bulkhead, Exponential, Fifo, Outage, Poisson, Retry, Simulated, Timeout

title = "Metastable overload: slow from 20 to 25 s"
guard = Retry(3) | Timeout(1.0, abandon=True)
chains = {
    "unbounded": guard | Bulkhead(10, Fifo(), name="pool"),
    "bounded": guard | Bulkhead(10, Fifo(20), name="pool"),
}
dependency = Simulated(Exponential(0.1), outages=[Outage(20, 25)], outage_latency_s=2.0)
traffic = Poisson(70)
duration = 90
