"""Writes state directories of runs that never were."""

import json
import sqlite3
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image

from spotlightd.config import Config
from spotlightd.fleet.ledger import Account
from spotlightd.sections import RunSection
from spotlightd.store.store import Store
from spotlightd.wire.sampling import Request, SamplerSettings

BEGAN = 1_790_000_000.0
SAMPLER = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 32, 128)
WORDS = (
    "LIGHT",
    "SPOT",
    "GLYPH",
    "WORD",
    "SIGN",
    "SHOP",
    "OPEN",
    "TEA",
    "RAIN",
    "NOON",
    "MOON",
    "SEA",
)
SEEDS = 4
FLEET = ("trainer", "a-1", "a-2", "a-3")


def write_run(state_dir: Path, iterations: int = 6, rollouts: int = 16) -> Path:
    """Write a finished run and return its folder.

    Args:
        rollouts: trajectories of each iteration, beside the evaluations of the first and the last.
    """
    config = Config(run=RunSection(name="words", iterations=iterations))
    store = Store(state_dir)
    store.begin_run("words", msgspec.json.encode(config).decode()).result()
    store.save_cycle("{}", iterations, []).result()
    pictures = store.blobs.put_many([png(shade) for shade in (60, 200)])
    for number in range(3):
        store.add_event("info", "fleet", f"event {number}").result()
    store.close()
    database = sqlite3.connect(state_dir / "spotlight.db")
    with database:
        _trajectories(database, iterations, rollouts, pictures)
        _metrics(database, iterations)
        _usage(database, iterations)
    database.close()
    for version in (0, iterations):
        folder = state_dir / "weights" / str(version)
        folder.mkdir(parents=True)
        (folder / "adapter.safetensors").write_bytes(b"not looked into")
    return state_dir


def png(shade: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (128, 32), (shade, shade, 255 - shade)).save(file, "PNG")
    return file.getvalue()


def _trajectories(
    database: sqlite3.Connection, iterations: int, rollouts: int, pictures: list[str]
) -> None:
    requests, results = [], []

    def add(request: Request, at: float, score: float, picture: str) -> None:
        body, agent = msgspec.msgpack.encode(request), FLEET[1 + len(requests) % 3]
        requests.append((request.request_id, request.iteration, request.kind, body, agent, at - 2))
        scores = json.dumps({"ocr": score, "ocr_ctc": score / 2, "grain": 0.1})
        results.append((request.request_id, scores, request.target, picture, agent, at))

    for number, (version, picture) in enumerate(zip((0, iterations), pictures, strict=True)):
        for word in WORDS:
            for seed in range(SEEDS):
                name = f"evaluate-{version}-{word}-{seed}"
                add(
                    ask(name, "evaluate", version, word, seed),
                    BEGAN + number * iterations,
                    0.4,
                    picture,
                )
    for iteration in range(iterations):
        for index in range(rollouts):
            word = WORDS[index % len(WORDS)]
            name = f"rollout-{iteration}-{index}"
            score = 0.4 + 0.5 * iteration / iterations
            add(ask(name, "rollout", iteration, word, index), BEGAN + iteration, score, "")
    database.executemany(
        "INSERT INTO request "
        "(request_id, iteration, kind, body, state, agent_id, leased_at, gpu_s) "
        "VALUES (?,?,?,?,'done',?,?,1.5)",
        requests,
    )
    database.executemany("INSERT INTO result VALUES (?,1,?,?,'',?,?,0,?)", results)


def ask(name: str, kind: str, iteration: int, word: str, seed: int) -> Request:
    prompt = f'A sign with the word "{word}" on it'
    return Request(name, kind, iteration, word.lower(), prompt, word, seed, iteration, SAMPLER)


def _metrics(database: sqlite3.Connection, iterations: int) -> None:
    rows: list[tuple[int, str, float]] = []
    for i in range(iterations):
        rise = i / iterations
        figures = {
            "control.ocr": 0.4 + 0.4 * rise + 0.02 * (i % 3),
            "control.ocr_ctc": 0.1 + 0.3 * rise,
            "control.grain": 0.1 + 0.02 * rise,
            "rollout.ocr": 0.45 + 0.4 * rise,
            "planner.rho": 0.8 + 0.1 * rise,
            "planner.rho_error": 0.05,
            "planner.gain": 1.5 + 0.1 * (i % 2),
            "planner.zero_spread_share": 0.1,
            "planner.candidates": 48.0,
            "log_prob_difference.a-1": 1e-8,
            "train.clip_range": 1e-3,
            "phase_s.train": 0.5,
            "phase_began.train": BEGAN + i,
        }
        rows += [(i, name, value) for name, value in figures.items()]
    for iteration, score in ((0, 0.45), (iterations, 0.8)):
        for name, value in (("ocr", score), ("ocr_ctc", score / 2), ("grain", 0.12)):
            rows.append((iteration, f"held_out.{name}", value))
    database.executemany("INSERT INTO metric VALUES (?,?,?)", rows)


def _usage(database: sqlite3.Connection, iterations: int) -> None:
    """Four GPUs, one row each a period; the last agent leaves half-way with a notice."""
    rows = []
    length = max(iterations, 10)
    for number, agent in enumerate(FLEET):
        end = length if agent != "a-3" else length // 2
        for second in range(0, end + 1, 5):
            state = "preempted" if agent == "a-3" and second + 5 > end else "live"
            useful = (0.7 - 0.1 * number) * second
            figures = (
                useful,
                0.05 * second,
                min(2.0, second),
                max(0.95 * second - useful - 2.0, 0.0),
            )
            rows.append((int(BEGAN) + second, agent, state, *figures))
        role = "trainer" if agent == "trainer" else "agent"
        account = Account(
            f"host-{agent}", role, 10.0 if role == "trainer" else 2.5, 1, BEGAN, BEGAN + end,
            useful_s=(0.7 - 0.1 * number) * end, busy_s=(0.75 - 0.1 * number) * end,
        )  # fmt: skip
        body = msgspec.json.encode(account).decode()
        database.execute("INSERT INTO account VALUES (?,?)", (agent, body))
    database.executemany("INSERT INTO usage VALUES (?,?,?,?,?,?,?)", rows)
