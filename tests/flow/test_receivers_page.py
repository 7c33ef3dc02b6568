"""What docs/receivers.md shows of verifying signatures is run on real deliveries, in each language that is there."""

import asyncio
import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.model import signing
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask

# From where signatures are verified by hand.
PAGE = (Path(__file__).parents[2] / "docs" / "receivers.md").read_text().partition("## Verifying a signature\n")[2]
# What reads a request from standard input, as JSON, and prints whether it is verified.
NODE = """
const { secret, headers, body } = JSON.parse(require("node:fs").readFileSync(0));
console.log(isVerified(secret, headers, Buffer.from(body, "base64")));
"""
RUBY = """
require "json"
asked = JSON.parse($stdin.read)
puts verified?(asked["secret"], asked["headers"], asked["body"].unpack1("m"))
"""
GO = """
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	var asked struct {
		Secret  string
		Headers map[string]string
		Body    []byte
	}
	if json.NewDecoder(os.Stdin).Decode(&asked) != nil {
		os.Exit(1)
	}
	header := http.Header{}
	for name, value := range asked.Headers {
		header.Set(name, value)
	}
	fmt.Println(IsVerified(asked.Secret, header, asked.Body, 300*time.Second))
}
"""
Verify = Callable[[str, dict[str, str], bytes], bool]


def snippet(language: str) -> str:
    [found] = [
        code for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "whsec_" in code
    ]
    return found


def by_python(_folder: Path) -> Verify:
    names: dict[str, Verify] = {}
    exec(snippet("python"), names)
    return names["is_verified"]


def by_program(language: str, folder: Path) -> Verify:
    """A program of another language, run anew for each request."""
    written = {
        "js": {"verify.js": snippet("js") + NODE},
        "ruby": {"verify.rb": snippet("ruby") + RUBY},
        "go": {"verify.go": snippet("go"), "main.go": GO, "go.mod": "module verify\n\ngo 1.20\n"},
    }[language]
    for name, text in written.items():
        (folder / name).write_text(text)
    command = {"js": ["node", "verify.js"], "ruby": ["ruby", "verify.rb"], "go": ["go", "run", "."]}[language]

    def verify(secret: str, headers: dict[str, str], body: bytes) -> bool:
        asked = {"secret": secret, "headers": headers, "body": base64.b64encode(body).decode()}
        run = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True, cwd=folder)
        assert run.stdout in {"true\n", "false\n"}
        return run.stdout == "true\n"

    return verify


# Nobody has to install Ruby and Go to work on the bus: their snippets are run where the languages are.
_PROGRAMS = {"js": "node", "ruby": "ruby", "go": "go"}
LANGUAGES = [
    "python",
    *(
        pytest.param(
            language, marks=pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")
        )
        for language, program in _PROGRAMS.items()
    ),
]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_snippet_verifies_what_the_bus_sends_and_nothing_else(language: str, one: Topology, tmp_path: Path):
    verify = by_python(tmp_path) if language == "python" else by_program(language, tmp_path)
    async with Receiver() as mail, a_bus(one) as bus:
        client = await bus.token("s")
        await bus.subscribe(client, mail.url, "widgets", timeout=0)
        await ask(bus, "POST", "/subscriber/rotate-secret", client)
        current = (await ask(bus, "POST", "/subscriber/rotate-secret", client)).json["secret"]
        await bus.publish(await bus.token("publisher"), [an_event(1, data="ü \u2028")])
        await mail.until_events(1)
    [batch] = mail.batches
    headers = {name.lower(): value for name, value in batch.headers.items()}
    old = {**headers, "webhook-timestamp": str(int(time.time()) - 301)}
    cases = [
        (current, headers, batch.body),
        (signing.make(0).secret, headers, batch.body),
        (current, headers, batch.body + b" "),
        (current, {**headers, "webhook-id": "another"}, batch.body),
        (current, old, batch.body),
        (current, {**headers, "webhook-timestamp": "now"}, batch.body),
        (current, {**headers, "webhook-signature": "v1,AAAA v2,"}, batch.body),
        (current, {"content-type": "application/json"}, batch.body),
    ]

    seen = await asyncio.gather(*(asyncio.to_thread(verify, *case) for case in cases))

    assert headers["webhook-signature"].count("v1,") == 2
    assert seen == [True] + [False] * 7


def test_the_page_has_a_snippet_for_each_language():
    assert all(snippet(language) for language in ("python", "js", "ruby", "go"))
