"""RQ's side of the comparison: the jobs, and enqueueing them when run as a command."""

from redis import Redis
from rq import Queue

from bench import jobs


def noop() -> None:
    """Nothing."""


if __name__ == "__main__":
    queue = Queue(connection=Redis.from_url(jobs.URL))
    jobs.enqueue_as_asked({"noop": lambda: queue.enqueue("bench.jobs_rq.noop")})
