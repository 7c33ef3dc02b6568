"""The order of the doctor's checks: what others rest on first.

A check fails where a bus would not work; it warns where part of the product would not, or not as it should.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from doubledecker import clock
from doubledecker.cli import folder, words
from doubledecker.cli.doctor import machine, round_trip, servers
from doubledecker.cli.doctor.finding import Finding


def doctor(*, bus: str | None, data: Path | None, secret: str | None, with_pipeline: bool, as_json: bool) -> None:
    """Check everything, print what was found, and exit with 1 if a check failed."""
    by_settings, settings = machine.check_settings(os.environ)
    findings = [
        machine.check_python(),
        by_settings,
        *servers.check(settings, data, clock.now_ms),
        *machine.check_spark(os.environ, is_needed=with_pipeline),
        machine.check_port(settings),
        machine.check_disk(data or folder.default()),
        machine.check_certificates(settings),
        machine.check_descriptors(settings),
        round_trip.check(bus, data, secret),
    ]
    _show(findings, as_json=as_json)
    if any(each.state == "failed" for each in findings):
        sys.exit(1)


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print all, and how many are not well."""
    if as_json:
        click.echo(words.printable_json(json.dumps([asdict(each) for each in findings])))
        return
    words.show(
        ["check", "state", "found", "what to do"],
        [[each.check, each.state, each.found, each.remedy] for each in findings],
    )
    failures, warnings = (sum(each.state == state for each in findings) for state in ("failed", "warning"))
    amiss = [f"{failures} failed"] if failures else []
    amiss += [words.many(warnings, "warning")] if warnings else []
    click.echo(", ".join(amiss) or "All is well", err=True)
