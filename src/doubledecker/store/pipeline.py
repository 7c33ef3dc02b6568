"""What the pipeline reports: of itself and of what it has measured.

The hash `pipeline` at home has a field a step and one for the process. The hash `measures` has the latest measures, a
field a span: who shows them needs neither Spark nor the lake.
"""

from dataclasses import dataclass

import msgspec

from doubledecker.model.step import RunReport, StepReport
from doubledecker.model.summary import Summary
from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition

_RUN = "run"
_decode_run = msgspec.json.Decoder(RunReport).decode
_decode_step = msgspec.json.Decoder(StepReport).decode
_decode_summary = msgspec.json.Decoder(Summary).decode


@dataclass(frozen=True)
class PipelineState:
    """The process, if one ever ran here, and its steps by name."""

    run: RunReport | None
    steps: dict[str, StepReport]


async def report_run(home: Partition, report: RunReport) -> None:
    await home.write("HSET", home.key("pipeline"), _RUN, msgspec.json.encode(report))


async def report_step(home: Partition, name: str, report: StepReport) -> None:
    await home.write("HSET", home.key("pipeline"), name, msgspec.json.encode(report))


async def read(home: Partition) -> PipelineState:
    """The last report of each."""
    fields = shared_connection.fields(await home.command("HGETALL", home.key("pipeline")))
    run = fields.pop(_RUN, None)
    return PipelineState(
        _decode_run(run) if run else None, {name: _decode_step(value) for name, value in sorted(fields.items())}
    )


async def tell_measures(home: Partition, *summaries: Summary) -> None:
    """Replace what was kept of each summary's span."""
    fields = [word for each in summaries for word in (each.span, msgspec.json.encode(each))]
    await home.write("HSET", home.key("measures"), *fields)


async def measures(home: Partition) -> dict[str, Summary]:
    """The last report, by span (`minute`, `hour`); empty when nothing has been measured on this bus."""
    kept = shared_connection.fields(await home.command("HGETALL", home.key("measures")))
    return {span: _decode_summary(text) for span, text in kept.items()}
