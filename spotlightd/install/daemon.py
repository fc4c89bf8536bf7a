"""`spotlightd install`: the files that only the daemon has, and its options."""

from pathlib import Path

from spotlightd.errors import UsageError
from spotlightd.install.apply import inside
from spotlightd.install.command import Wanted, run
from spotlightd.install.steps import CONFIG_DIR, Put
from spotlightd.install.units import DAEMON, STATE, packaged_command

CONFIG = """\
# The daemon's configuration. Every key, with its default: spotlightd config show
# After a change: spotlightd config check --config /etc/spotlight/spotlightd.toml
#                 systemctl restart spotlightd

# What is stated here of runs holds for each that is submitted (spotlightctl runs submit CONFIG) and
# does not say otherwise. Any key in [run] is a run of its own, which begins with the daemon.
[run]
# model = "/srv/models/Qwen-Image"     # a folder in diffusers' layout; default: the embedded model
# prompts = "/srv/prompts/train.txt"
# iterations = 300

[link]
# Agents must reach `host` on these three TCP ports: open them to the spot VMs, and to nobody else.
host = "{host}"
bind = "{bind}"
enrol_port = 7401
link_port = 7402
chunk_port = 7403
# While a new server key takes over from an old one, these two are used as well.
second_enrol_port = 7404
second_link_port = 7405

[ledger]
# currency = "USD"
# reserved_price = 10.47               # of one reserved GPU-hour
# spot_price = 2.66                    # of one spot GPU-hour, where the zone's price is unknown
"""
LOOPBACK = "127.0.0.1"
STATE_KEY = STATE / "spotlight/keys/server.key"


def install(wanted: Wanted, host: str) -> None:
    """Install the daemon's units, configuration and server key.

    Args:
        host: address under which agents reach this node; empty: loopback, for trying it out.

    Raises UsageError for an address that TOML cannot hold, and as `command.run`.
    """
    if any(letter in host for letter in '"\\\n') or host != host.strip():
        raise UsageError(f"--host {host!r} is not a host name or an IP address")
    bind = "0.0.0.0" if host else LOOPBACK
    config = CONFIG.format(host=host or LOOPBACK, bind=bind).encode()
    extra = [Put(CONFIG_DIR / "spotlightd.toml", config, 0o640, keep=True)]
    if not wanted.uninstall:
        extra.append(_server_key(wanted.root))
    run(DAEMON, packaged_command(DAEMON), extra, wanted)


def _server_key(root: Path | None) -> Put:
    """Return the key that the unit loads as a credential: one that tokens already pin, or new."""
    from spotlightd.fleet.keys import encode_keys, new_keys

    try:
        content = inside(root, STATE_KEY).read_bytes()
    except OSError:
        content = encode_keys(new_keys())
    return Put(CONFIG_DIR / "server.key", content, 0o600, keep=True)
