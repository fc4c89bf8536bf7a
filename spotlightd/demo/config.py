"""The demo's configuration, written as a file that users can read, change and run by hand."""

import json
from pathlib import Path

TEMPLATE = """\
# Written by the demo. Run it by hand: spotlightd run --config {path}

[run]
name = "demo"
seed = {seed}
iterations = {iterations}
model = "glyph-ocr"
prompts = "train"
held_out = "held_out"
evaluate_prompts = 36
evaluate_seeds = 4

[sampler]
num_steps = 10
sde_form = "flow_cps"
noise_level = 0.7
sde_window_size = 6
sde_window_starts = [0, 1]

[planner]
{planner}
prompts_per_iteration = 4
group_size = 16
control_fraction = 0.25
rank_by = "ocr_ctc"

[rewards]
train = "ocr"
report = ["ocr_ctc", "grain"]

[trainer]
lora_rank = 16
lora_alpha = 32.0
learning_rate = 1.2e-3
clip_range = 1e-3
kl_beta = 0.06
optimizer_steps = 2

[fleet]
# Short times, so that the demo does not wait long for a VM that died without a word.
heartbeat_s = 0.5
suspect_s = 2.0
lost_s = 4.0
# A commit costs more than a hundredth of this small model's step, and is worth being seen.
commit_every = 2

[weights]
# Small chunks, so that even this small adapter comes from several peers.
chunk_bytes = 262144

[store]
state_dir = {state_dir}

[control]
socket = {socket}
"""


EXPLORING = 'mode = "fixed"\ncandidates = 32'
RANDOM = 'mode = "off"'
"""Of [planner]; `candidates` would have no effect there, and the daemon refuses such keys."""


def write_config(path: Path, out: Path, seed: int, iterations: int, exploration: bool) -> None:
    """Write the demo's TOML file."""
    text = TEMPLATE.format(
        path=path,
        seed=seed,
        iterations=iterations,
        planner=EXPLORING if exploration else RANDOM,
        state_dir=json.dumps(str(out / "state")),
        socket=json.dumps(str(socket_path(out))),
    )
    path.write_text(text, encoding="utf-8")


def socket_path(out: Path) -> Path:
    """The control socket; its name must be short (108 bytes with the folder)."""
    return out / "control.sock"
