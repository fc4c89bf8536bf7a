"""A server key is replaced under a fleet that nobody touches, and no secret shows anywhere."""

import json

from spotlightd.cli import app
from spotlightd.commands import run_app
from spotlightd.fleet.keys import read_keys
from spotlightd.wire.token import parse_token
from tests.e2e.conftest import interrupt


def test_agents_move_to_a_new_server_key_by_themselves(host):
    daemon = host.daemon()
    host.wait_for(lambda status: True)
    token = host.client.create_token(600, 1, "default").token
    agent = host.agent("vm", token)
    host.wait_for(lambda status: status.agents.get("live") == 1)
    key_file, kept = host.state / "keys/server.key", host.root / "vm/agent.json"
    secrets = [parse_token(token).secret, read_keys(key_file).secret]
    first = json.loads(kept.read_text())
    for words in ("rotate", "retire"):
        assert interrupt(daemon) == 0
        assert run_app(app, "spotlightd", ["keys", words, "--file", str(key_file)]) == 0
        daemon = host.daemon(f"daemon-{words}")
        host.wait_for(lambda status: status.agents.get("live") == 1)
        secrets.append(read_keys(key_file).secret)
    now = json.loads(kept.read_text())
    assert agent.poll() is None, "the same process"
    assert now["server_key"] == read_keys(key_file).public != first["server_key"]
    assert (now["agent_id"], now["private_key"]) == (first["agent_id"], first["private_key"])
    trainer = json.loads((host.state / "keys/trainer.key").read_text())
    secrets += [now["private_key"], trainer["secret"]]
    assert shown(host, secrets) == []


def shown(host, secrets):
    """Return where one of these words stands: logs, command lines, control socket, state."""
    places = {f"argv of {p.pid}": "\0".join(p.cmdline()).encode() for p in host.families()}
    files = [
        *host.root.glob("*.log"),
        *host.state.glob("spotlight.db*"),
        *host.state.glob("*.json"),
    ]
    places |= {path.name: path.read_bytes() for path in files}
    answer = repr([host.client.status(), host.client.events(0), host.client.agents()])
    places["control socket"] = answer.encode()
    return [name for name, text in places.items() if any(s.encode() in text for s in secrets)]
