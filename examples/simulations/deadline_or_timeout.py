"""Deadline against timeout: a limit for each attempt does not limit the whole.

Eight workers answer in about a tenth of a second: 70 calls a second. Every 20 s a burst asks for 200, for three
seconds. A timeout of a second for each attempt counts neither the waiting in the queue nor the attempts before. A
deadline counts all of it, and what is too late anyway is dropped in the queue. Newest first, the workers spend their
time on those who still have some.
"""

from doubledecker.stages import Backoff, Bulkhead, Bursty, Deadline, Fifo, Lifo, LogNormal, Retry, Simulated, Timeout

title = "Deadline against timeout: bursts every 20 s"
chains = {
    "timeout": Retry(3, Backoff(0.1)) | Bulkhead(8, Fifo(400)) | Timeout(1.0),
    "deadline": Deadline(1.0) | Retry(3, Backoff(0.1)) | Bulkhead(8, Fifo(400)) | Timeout(1.0),
    "newest first": Deadline(1.0) | Retry(3, Backoff(0.1)) | Bulkhead(8, Lifo(400)) | Timeout(1.0),
}
dependency = Simulated(LogNormal(0.1, 0.5), availability=0.95)
traffic = Bursty(quiet_per_s=20, burst_per_s=200, quiet_s=17, burst_s=3)
duration = 80
