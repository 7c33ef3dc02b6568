"""What the pipeline says about itself: the hash `pipeline` at home, a field a step and one for the process."""

from dataclasses import dataclass

import msgspec

from doubledecker.model.step import RunReport, StepReport
from doubledecker.store import line
from doubledecker.store.partitions import Partition

_RUN = "run"
_decode_run = msgspec.json.Decoder(RunReport).decode
_decode_step = msgspec.json.Decoder(StepReport).decode


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
    """All that was said last."""
    said = line.fields(await home.command("HGETALL", home.key("pipeline")))
    run = said.pop(_RUN, None)
    return PipelineState(
        _decode_run(run) if run else None, {name: _decode_step(value) for name, value in sorted(said.items())}
    )
