"""Exports a policy version from a state directory, which is only read: the run may go on."""

import subprocess
import sys
from pathlib import Path

import msgspec

from spotlightd.atomic import digest_of, write_file
from spotlightd.config import Config
from spotlightd.errors import ExitCode, InputError, SpotlightError
from spotlightd.fleet.ledger import Ledger
from spotlightd.models import resolve_model_dir
from spotlightd.outputs.adapter_file import FILE_NAME, to_diffusers
from spotlightd.outputs.card import CardFacts, model_card
from spotlightd.outputs.grid import GridRow, draw_grid
from spotlightd.store.reading import StoreReader
from spotlightd.store.rows import RunState
from spotlightd.store.store import Store

GRID_PROMPTS = 8
GRID_SEEDS = 4


def export(state_dir: Path, out: Path, version: int | None, merged: bool) -> list[Path]:
    """Write a version for diffusers into `out`, with its card and sample grid.

    Args:
        version: policy version; None for the newest.
        merged: write a whole model, `save_pretrained`, with the adapter merged into its weights.

    Returns the files written, in the order in which a reader would open them.

    Raises:
        InputError: no run there, no such version, or files that are missing or damaged.
    """
    store = StoreReader(state_dir)
    try:
        run = store.run()
        if run is None:
            raise InputError(f"{state_dir} holds no run: start one with `spotlightd run`")
        config = msgspec.json.decode(run.config, type=Config)
        chosen = run.policy_version if version is None else version
        adapter = _read(state_dir, chosen, run)
        section = config.trainer
        lora = to_diffusers(adapter, section.lora_rank, section.lora_alpha, f"version {chosen}")
        written = _write_weights(config, out, lora, merged)
        rows = _grid_rows(store, chosen)
        if rows:
            write_file(out / "samples.png", draw_grid(rows))
            written.insert(0, out / "samples.png")
        card = model_card(
            _facts(store, run, config, chosen, digest_of(adapter), merged, bool(rows))
        )
        write_file(out / "README.md", card.encode())
        return [out / "README.md", *written]
    finally:
        store.close()


def _read(state_dir: Path, version: int, run: RunState) -> bytes:
    path = state_dir / "weights" / str(version) / "adapter.safetensors"
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"version {version} is not at hand ({path}: {error.strerror}); the newest version is "
            f"{run.policy_version}"
        ) from None


def _write_weights(config: Config, out: Path, lora: bytes, merged: bool) -> list[Path]:
    write_file(out / FILE_NAME, lora)
    if not merged:
        return [out / FILE_NAME]
    # Only merging needs torch, and this process goes on without it.
    command = [sys.executable, "-m", "spotlightd.outputs.merge"]
    folder = resolve_model_dir(config.run.model)
    result = subprocess.run([*command, str(folder), str(out)], stderr=subprocess.PIPE, text=True)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        failed = InputError if result.returncode == ExitCode.INPUT else SpotlightError
        raise failed(f"cannot merge the adapter into {folder}: {last}")
    (out / FILE_NAME).unlink()
    return sorted(path for path in out.iterdir() if path.name not in ("README.md", "samples.png"))


def _facts(
    store: Store, run: RunState, config: Config, version: int, digest: str, merged: bool, grid: bool
) -> CardFacts:
    ledger = Ledger.restore(store.accounts())
    held_out = {
        number: {
            k.removeprefix("held_out."): v for k, v in row.items() if k.startswith("held_out.")
        }
        for number, row in store.metrics().items()
        if number <= version
    }
    return CardFacts(
        config=config,
        version=version,
        adapter_digest=digest,
        held_out={number: row for number, row in held_out.items() if row},
        gpu_seconds=ledger.totals(run.updated_at),
        cost=sum(ledger.cost(run.updated_at, role) for role in ("trainer", "agent")),
        cost_all_reserved=ledger.cost_all_reserved(run.updated_at, config.ledger.reserved_price),
        started_at=run.started_at,
        updated_at=run.updated_at,
        merged=merged,
        grid=grid,
    )


def _grid_rows(store: Store, version: int) -> list[GridRow]:
    """Return evaluation pictures of the first version and of this one, where both are kept."""
    before, after = _pictures(store, 0), _pictures(store, version)
    return [
        GridRow(prompt, before[prompt][:GRID_SEEDS], after[prompt][:GRID_SEEDS])
        for prompt in list(after)[:GRID_PROMPTS]
        if prompt in before
    ]


def _pictures(store: Store, version: int) -> dict[str, list[bytes]]:
    evaluated = [r.request for r in store.requests([version]) if r.request.kind == "evaluate"]
    results = {r.request_id: r for r in store.results([r.request_id for r in evaluated])}
    found: dict[str, list[bytes]] = {}
    for request in evaluated:
        result = results.get(request.request_id)
        if result is not None and result.image is not None:
            found.setdefault(request.prompt, []).append(store.blobs.get(result.image))
    return found
