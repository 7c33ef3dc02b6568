"""What is shown of a job that failed."""

import msgspec
import pytest

from doubledecker.errors import NotFound
from doubledecker.model.pipeline_job import PipelineJob

SPARKS = RuntimeError("[PATH_NOT_FOUND] file:/var/lib/bus/lake/events\n  is gone")


@pytest.mark.parametrize(
    ("owner", "error", "shown"),
    [
        ("", SPARKS, "[PATH_NOT_FOUND] file:/var/lib/bus/lake/events is gone"),
        ("shop-1", SPARKS, "the pipeline could not carry it out; its log has the reason"),
        ("shop-1", NotFound("no queue named 'jobs'"), "no queue named 'jobs'"),
    ],
)
def test_root_alone_is_shown_what_spark_reports(owner: str, error: Exception, shown: str):
    job = PipelineJob("e", owner, msgspec.Raw(b"{}"), created_at=0)

    assert job.failed(error, now_ms=1, is_final=True).error == shown
