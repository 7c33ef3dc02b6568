"""What a rehearsal costs, and whether it tells the truth: a queue with one server, beside SimPy and Ciw, and theory.

Customers come at random (Poisson), each takes a random time (exponential), one is served at a time and the load is 0.8.
Ours passes two stages with all their counters; SimPy's is the shortest program that does the same; Ciw's is a network
of one node. They take turns; the time is that of the processor.

Theory: the mean wait before service, and the share that is turned away when there are but a few places to wait. Both
depend steeply on the load; a million customers a worker bring a load that is off by some tenths of a per cent, which
alone makes one per cent of the wait. So theory is asked for the load that chance has brought.
"""

import asyncio
import importlib.util
import multiprocessing
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import factorial

from bench.scale import Scale
from doubledecker.stages import Bulkhead, Chain, Exponential, Fifo, Poisson, Simulated, Snapshot, simulate

PEERS = ("simpy", "ciw")

_LOAD = 0.8
_CUSTOMERS = 20_000
_TURNS = 5
_THEORY_CUSTOMERS = 1_000_000


@dataclass(frozen=True)
class System:
    """A queueing system of the textbooks: so many workers, and places to wait if they are bounded.

    Its load is one at which chance moves the result of a million customers a worker by a third of what is allowed: a
    long queue takes long to forget, and where few wait or are turned away few can be counted.
    """

    name: str
    workers: int
    load: float
    places: int | None = None

    def measure(self, seen: Snapshot) -> float:
        """The mean wait, or the share that is turned away."""
        return seen.wait_mean_s if self.places is None else seen.rejected / seen.arrived * 100

    def expect(self, rate: float, service_s: float) -> float:
        """What theory says of the same (Erlang)."""
        offered = rate * service_s
        weights = [offered**n / factorial(n) for n in range(self.workers)]
        full = offered**self.workers / factorial(self.workers)
        load = offered / self.workers
        if self.places is None:
            waits = full / (1 - load)
            return waits / (sum(weights) + waits) * service_s / (self.workers - offered)
        waiting = [full * load**n for n in range(self.places + 1)]
        return waiting[-1] / (sum(weights) + sum(waiting)) * 100


SYSTEMS = (System("mm1_wait", 1, 0.6), System("mm4_wait", 4, 0.6), System("mm48_blocking", 4, 0.9, 4))


async def measure(scale: Scale) -> dict[str, float]:
    is_full = scale.repetitions > 1
    customers = _THEORY_CUSTOMERS if is_full else _CUSTOMERS
    # Another stretch of chance each time, so that repetitions tell how far one run may be off.
    seed = random.randrange(2**32)
    # In processes of their own, which have no loop running: a simulation brings its own.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        loop = asyncio.get_running_loop()
        figures = await loop.run_in_executor(processes, _rates, _TURNS if is_full else 1)
        runs = [loop.run_in_executor(processes, _play, system, customers * system.workers, seed) for system in SYSTEMS]
        for system, (found, expected) in zip(SYSTEMS, await asyncio.gather(*runs), strict=True):
            figures[f"theory.{system.name}"] = found
            figures[f"theory.{system.name}_expected"] = expected
            figures[f"theory.{system.name}_off_percent"] = abs(found / expected - 1) * 100
    return figures


def _play(system: System, customers: int, seed: int) -> tuple[float, float]:
    """What was found, and what theory says."""
    chain = Chain() | Simulated(Exponential(1), workers=system.workers, queue=Fifo(system.places))
    rate = system.workers * system.load
    [run] = simulate(chain, traffic=Poisson(rate), duration=customers / rate, seed=seed).replications
    [seen] = run.snapshots
    return system.measure(seen), system.expect(seen.arrived / run.duration, seen.work_time.mean_s)


def _rates(turns: int) -> dict[str, float]:
    """Customers a second, by simulator."""
    peers = zip(PEERS, (_simpy, _ciw), strict=True)
    usable = {"simulation": _ours} | {name: run for name, run in peers if importlib.util.find_spec(name) is not None}
    rates: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(turns):
        for name, run in usable.items():
            started_s = time.process_time()
            run(_CUSTOMERS)
            rates[name].append(_CUSTOMERS / (time.process_time() - started_s))
    figures = {f"{name}.mm1.customers_per_s": statistics.median(values) for name, values in rates.items()}
    if "simpy" in rates:
        # Turn by turn, so that a slow moment of the machine touches both.
        pairs = zip(rates["simulation"], rates["simpy"], strict=True)
        figures["simulation.mm1.times_simpy"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return figures


def _ours(customers: int) -> None:
    chain = Bulkhead(workers=1, queue=Fifo()) | Simulated(Exponential(1.0))
    simulate(chain, traffic=Poisson(_LOAD), duration=customers / _LOAD)


def _simpy(customers: int) -> None:
    import simpy

    chance = random.Random(1)
    environment = simpy.Environment()
    server = simpy.Resource(environment, 1)
    waits: list[float] = []

    def customer():
        came_at = environment.now
        with server.request() as turn:
            yield turn
            waits.append(environment.now - came_at)
            yield environment.timeout(chance.expovariate(1.0))

    def arrivals():
        for _ in range(customers):
            yield environment.timeout(chance.expovariate(_LOAD))
            environment.process(customer())

    environment.process(arrivals())
    environment.run()


def _ciw(customers: int) -> None:
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=_LOAD)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[1],
    )
    ciw.seed(1)
    ciw.Simulation(network).simulate_until_max_customers(customers)
