"""Cache stampede: when hot keys leave the cache, everyone asks at once.

Five keys are asked for 300 times a second, and kept for ten seconds. An answer takes half a second, and longer when
many ask. Until the first answer is back, every caller misses. Single-flight lets one ask for all; a stale answer lets
nobody wait.
"""

from doubledecker.stages import Cache, LogNormal, Poisson, Saturation, Simulated, SingleFlight, UniformKeys

title = "Cache stampede: five hot keys, kept for 10 s"
chains = {
    "cache": Cache(ttl_s=10),
    "single-flight": Cache(ttl_s=10) | SingleFlight(),
    "stale": Cache(ttl_s=10, stale_s=5) | SingleFlight(),
}
dependency = Simulated(LogNormal(0.5, 0.2), saturation=Saturation([(5, 1.0), (100, 6.0)]))
traffic = Poisson(300)
keys = UniformKeys(5)
duration = 45
