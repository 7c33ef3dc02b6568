"""Celery's side of the comparison: the jobs, and enqueueing them when run as a command."""

from celery import Celery

from bench import jobs

app = Celery("bench.jobs_celery", broker=jobs.URL, include=["bench.jobs_celery"])
app.conf.task_ignore_result = True


@app.task(name="noop")
def noop() -> None:
    """Nothing."""


@app.task(name="post")
def post() -> None:
    jobs.post()


if __name__ == "__main__":
    jobs.enqueue_as_asked({"noop": noop.delay, "post": post.delay})
