"""The tutorials do what they say: files are written, commands run one after the other, and what they show is printed.

Of a page, a block of code that begins with the name of a file as a comment is that file; a block `sh` is run; a block
without a language shows lines of what is printed, where `…` is any text. `doubledecker up` goes on beside the rest.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from doubledecker.store.machine import free_port
from flow.shells import a_shell
from harness import until_ready

ROOT = Path(__file__).parent.parent.parent
TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "README")
WITHIN_S = {"replay": 240, "spark": 240}
_DONE, _FAILED = "@done", "@failed"
_NAMED = re.compile(r"# ([\w-]+\.(?:py|toml|json))\n")


@dataclass
class Tutorial:
    """What a page has the reader do, and see."""

    bus: str = ""
    commands: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, port: str) -> "Tutorial":
        page = cls()
        text = path.read_text().replace("17890", port)
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            named = _NAMED.match(block)
            if named:
                page.files[named[1]] = block
            elif language == "sh" and "doubledecker up" in block:
                page.bus = block
            elif language == "sh":
                page.commands.append(block)
            elif not language:
                page.shown += [line for line in block.splitlines() if line.strip()]
        return page


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
async def test_a_tutorial_does_what_it_says(path: Path, tmp_path: Path):
    port = str(free_port())
    page = Tutorial.read(path, port)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in page.files.items():
        (tmp_path / name).write_text(text)
    within_s = WITHIN_S.get(path.stem, 90)
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(_bus(page.bus, tmp_path, port))
        commands = "\n".join([f"trap 'echo {_FAILED}' EXIT", *page.commands, f"trap - EXIT; echo {_DONE}"])
        shell = await running.enter_async_context(a_shell(commands, tmp_path, DOUBLEDECKER_PORT=port))
        printed = await _printed(shell, page.shown, within_s)

    assert _DONE in printed, printed
    assert [line for line in page.shown if not _is_in(line, printed)] == [], printed


@contextlib.asynccontextmanager
async def _bus(command: str, folder: Path, port: str) -> AsyncIterator[None]:
    if not command:
        yield
        return
    async with a_shell(command, folder, DOUBLEDECKER_PORT=port):
        async with aiohttp.ClientSession() as http:
            await until_ready(http, f"http://127.0.0.1:{port}", within_s=90)
        yield


async def _printed(shell: asyncio.subprocess.Process, shown: Sequence[str], within_s: float) -> str:
    """What is printed until all commands have been run and all is there, or one has failed, or time is up."""
    assert shell.stdout is not None
    text = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while _FAILED not in text and not (_DONE in text and all(_is_in(line, text) for line in shown)):
                text += (await shell.stdout.read(4096)).decode()
    return text


def _is_in(line: str, text: str) -> bool:
    pattern = r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in line.split())
    return re.search(pattern, text) is not None
