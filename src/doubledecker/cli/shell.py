"""What the shell shows: the commands in groups, as `--help` lists them, and completion."""

import click
from click.shell_completion import get_completion_class

_PROGRAM = "doubledecker"
# In the order of `--help`; what is in none of them is listed last.
SECTIONS = {
    "Run a bus": ("up", "web", "worker", "watch", "pipeline"),
    "Publish and receive": (
        "publish",
        "tail",
        "listen",
        "pull",
        "queue",
        "subscription",
        "subscribe",
        "unsubscribe",
        "receiver",
    ),
    "Look": ("dashboard", "status", "top", "doctor", "events", "attempts", "report", "audit"),
    "Repair": ("dead", "resend", "replay", "replays", "erase"),
    "Administer": ("token", "topic"),
    "Rehearse": ("simulate",),
    "Shell": ("completion",),
}
_REST = "Other commands"
# Where a shell looks for the completion of a command.
_KEPT = {
    "bash": '~/.local/share/bash-completion/completions/doubledecker (or: eval "$(doubledecker completion bash)")',
    "zsh": 'a folder of $fpath, as _doubledecker (or, after compinit: eval "$(doubledecker completion zsh)")',
    "fish": "~/.config/fish/completions/doubledecker.fish",
}


class Sections(click.Group):
    """A group whose help lists its commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has commands."""
        visible = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        named = {name for names in SECTIONS.values() for name in names}
        parts = {**SECTIONS, _REST: tuple(name for name in visible if name not in named)}
        # One width for all, so that their texts stand below one another.
        widest = max(map(len, visible), default=0)
        limit = formatter.width - 6 - widest
        for title, names in parts.items():
            rows = [
                (name.ljust(widest), self.commands[name].get_short_help_str(limit)) for name in names if name in visible
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.command()
@click.argument("shell", type=click.Choice(list(_KEPT)))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options."""
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root().command
    completion = made(root, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")
    # Not `source()`: for bash that runs one, to learn its version.
    click.echo(completion.source_template % completion.source_vars())
    click.echo(f"Keep it in {_KEPT[shell]}", err=True)
