"""`spotlight-agent install`, and `join --install`: the agent as a service of its VM."""

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import typer

from agent.enrol import join_or_load
from agent.settings import AgentSettings
from spotlightd.install.command import Wanted, check_root, run
from spotlightd.install.reach import check_reach, installed_command
from spotlightd.install.steps import CONFIG_DIR, Put
from spotlightd.install.units import AGENT, packaged_command
from spotlightd.wire.token import Token, make_token

NOT_FOR_THE_UNIT = frozenset({"token", "token_file", "state_dir", "install_"})
"""Options of `join` that the unit says for itself."""


def install(
    wanted: Wanted,
    options: Sequence[str],
    token: Token | None = None,
    owned: Sequence[PurePosixPath] = (),
) -> None:
    """Write the unit, which joins with these options; with a token, write that too.

    Args:
        owned: folders that root made for the service.

    Raises as `spotlightd.install.command.run`.
    """
    path = CONFIG_DIR / "token"
    # systemd wants the file to be there. An empty one says: whoever joins brings a token.
    kept = Put(path, b"", 0o600, keep=True)
    extra = [kept if token is None else Put(path, f"{make_token(token)}\n".encode(), 0o600)]
    run(AGENT, [*packaged_command(AGENT), *options], extra, wanted, owned)


def join_and_install(settings: AgentSettings, token: Token, options: Sequence[str]) -> None:
    """Enrol here and now, so that a refusal is seen at once; then write and start the unit.

    Raises NotAuthorisedError when the user is not root, as `enrol` and as `install`.
    """
    wanted = Wanted(start=True)
    check_root(AGENT, wanted)
    check_reach(installed_command(AGENT.program))
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    joining = join_or_load(token, settings.state_dir, settings.name, settings.connect_timeout_s)
    identity = asyncio.run(joining)
    print(f"joined as {identity.agent_id}")
    install(wanted, options, token, [PurePosixPath(settings.state_dir)])


def options_given(context: typer.Context) -> list[str]:
    """Return the words of this command line that its unit needs, too."""
    words = []
    for option in context.command.params:
        name, value = str(option.name), context.params.get(str(option.name))
        source = context.get_parameter_source(name)
        if name in NOT_FOR_THE_UNIT or source is None or source.name != "COMMANDLINE":
            continue
        words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def check_options(words: Sequence[str], app: Any) -> None:
    """Raise typer's usage error where `join`, of the command `app`, would not take these."""
    with app.commands["join"].make_context("spotlight-agent join", list(words)):
        pass
