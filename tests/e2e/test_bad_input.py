"""Bad input of every kind: one sentence, the documented exit code, nothing lost."""

import os
import shutil
import subprocess

import pytest

from spotlightd.models import EMBEDDED_DIR

pytestmark = pytest.mark.slow


def ends(host, process, name: str, code: int, *fragments: str, seconds: float = 60) -> None:
    assert process.wait(seconds) == code, host.tails()
    log = host.log(name)
    for fragment in fragments:
        assert fragment in log, log
    assert "Traceback" not in log


def test_an_unknown_key_names_the_nearest(host):
    process = host.daemon(planner__canidates="8")
    ends(host, process, "daemon", 78, "unknown key 'planner.canidates'", "'planner.candidates'")


def test_values_at_odds_name_both_keys(host):
    process = host.daemon(planner__mode="fixed", planner__candidates="3")
    ends(host, process, "daemon", 78, "planner.candidates 3 is below planner.group_size 4")


def test_a_prompt_without_quotes_names_its_line(host):
    path = host.root / "prompts.txt"
    path.write_text('a sign that reads "A"\na sign without a word\n')
    process = host.daemon(run__prompts=f'"{path}"')
    ends(host, process, "daemon", 78, f"{path}, line 2: no text between straight double quotes")
    assert not host.socket.exists()


def test_an_unknown_reward_names_the_nearest(host):
    ends(host, host.daemon(rewards__train='"orc"'), "daemon", 78, "did you mean 'ocr'?")


def test_a_missing_model_is_named(host):
    ends(host, host.daemon(run__model='"/no/model"'), "daemon", 78, "no model at '/no/model'")


def test_a_damaged_weights_file_is_named_with_its_digests(host):
    model = host.root / "model"
    shutil.copytree(EMBEDDED_DIR, model)
    path = model / "transformer/diffusion_pytorch_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    process = host.daemon(run__model=f'"{model}"')
    ends(host, process, "daemon", 78, f"{path} is damaged: its SHA-256 is")
    assert not host.socket.exists()


def test_a_second_daemon_on_one_state_directory_is_refused(host):
    first = host.daemon(run__iterations="1000")
    host.wait_for(lambda status: True)
    second = host.daemon("second", control__socket=f'"{host.root}/other.sock"')
    ends(host, second, "second", 75, f"another spotlightd (pid {first.pid})", "--state-dir")
    assert host.client.status().pid == first.pid


def test_a_daemon_that_is_not_there(host):
    process = host.start("ctl", "spotlightctl", "status", "--socket", str(host.socket))
    ends(host, process, "ctl", 69, str(host.socket), "spotlightd")


def test_a_wrong_token_is_refused_and_nothing_is_disturbed(host):
    host.daemon(run__iterations="1000")
    host.wait_for(lambda status: True)
    token = host.client.create_token(60, 1, "pool").token
    process = host.agent("vm", token[:-4] + "abcd")
    ends(host, process, "vm", 77, "the daemon refuses this agent: wrong token")
    assert token.rpartition(".")[2] not in host.log("vm") + host.log("daemon")
    assert host.client.status().agents == {}


@pytest.fixture
def small_disk(tmp_path):
    """A disk that is soon full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_at_a_checkpoint_loses_nothing(host, small_disk):
    """One checkpoint and its adapter fit, the next does not; with room the run goes on."""
    host.state = small_disk / "state"
    process = host.daemon()
    ends(host, process, "daemon", 75, "disk full while writing", "nothing acknowledged is lost")
    done = [p.name for p in (host.state / "checkpoints").iterdir() if not p.name.startswith(".")]
    assert done
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    again = host.daemon("again")
    ends(host, again, "again", 0, "the run goes on in iteration", seconds=90)
    assert os.path.exists(host.state / "weights/2/adapter.safetensors")
