"""Dramatiq's side of the comparison: the jobs, and enqueueing them when run as a command."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench import jobs

dramatiq.set_broker(RedisBroker(url=jobs.URL))


@dramatiq.actor
def noop() -> None:
    """Nothing."""


@dramatiq.actor
def post() -> None:
    jobs.post()


if __name__ == "__main__":
    jobs.enqueue_as_asked({"noop": noop.send, "post": post.send})
