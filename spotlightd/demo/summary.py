"""The demo's figures, read from the run's state after it ended. Keys: docs/demo.md."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from spotlightd.config import Config
from spotlightd.fleet.ledger import Ledger
from spotlightd.store.store import Store

Metrics = Mapping[int, Mapping[str, float]]


def summarise(
    store: Store, config: Config, ends: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """Return the summary.

    Args:
        store: of the finished run.
        ends: how each agent's process ended, by agent name.
        seconds: wall-clock time of the run.
    """
    metrics = store.metrics()
    ledger = Ledger.restore(store.accounts())
    run = store.run()
    train = config.rewards.train
    return {
        "reward": _reward(metrics, train),
        "iterations": run.policy_version if run else 0,
        "exploration": config.planner.mode,
        "trajectories": _trajectories(store),
        "staleness": _staleness(metrics, train),
        "log_prob": _log_prob(metrics),
        "agents": _agents(ledger, ends),
        "gpu_seconds": ledger.totals(0.0),
        "cost": _cost(ledger, config),
        "phases": _phases(metrics),
        "seconds": seconds,
    }


def _reward(metrics: Metrics, train: str) -> dict[str, float]:
    evaluated = [v for v, row in metrics.items() if f"held_out.{train}" in row]
    first, last = metrics[min(evaluated)], metrics[max(evaluated)]
    return {
        "before": first[f"held_out.{train}"],
        "after": last[f"held_out.{train}"],
        "ctc_before": first["held_out.ocr_ctc"],
        "ctc_after": last["held_out.ocr_ctc"],
        "grain_before": first["held_out.grain"],
        "grain_after": last["held_out.grain"],
        "grain_ratio": last["held_out.grain"] / first["held_out.grain"],
    }


def _trajectories(store: Store) -> dict[str, int]:
    counts = store.request_counts()
    kinds = ("explore", "rollout", "evaluate")
    done = {kind: counts.get(kind, {}).get("done", 0) for kind in kinds}
    # Withdrawn exploration is no loss: nobody waits for it.
    unfinished = sum(
        count
        for kind in ("rollout", "evaluate")
        for state, count in counts.get(kind, {}).items()
        if state != "done"
    )
    resumed = sum(1 for result in store.results() if result.resumed_from > 0)
    return {
        **done,
        "resumed": resumed,
        "withdrawn": counts.get("explore", {}).get("cancelled", 0),
        "lost": unfinished + store.count_lost(),
    }


def _staleness(metrics: Metrics, train: str) -> dict[str, Any]:
    """Mean rank correlation over iterations, on control seeds; None without exploration."""

    def values(reward: str) -> list[float]:
        name = f"staleness.spearman.{reward}"
        return [row[name] for row in metrics.values() if name in row]

    edit, ctc = values(train), values("ocr_ctc")
    return {
        "spearman": _mean(edit),
        "spearman_ctc": _mean(ctc),
        "iterations": len(edit),
        "pairs": int(sum(row.get("staleness.pairs", 0) for row in metrics.values())),
    }


def _log_prob(metrics: Metrics) -> dict[str, Any]:
    by_producer: dict[str, list[float]] = {}
    for row in metrics.values():
        for name, value in row.items():
            if name.startswith("log_prob_difference."):
                by_producer.setdefault(name.partition(".")[2], []).append(value)
    everything = [value for values in by_producer.values() for value in values]
    ranges = [row["train.clip_range"] for row in metrics.values() if "train.clip_range" in row]
    return {
        "mean_abs_difference": _mean(everything),
        "by_producer": {name: _mean(values) for name, values in sorted(by_producer.items())},
        "clip_range": ranges[-1] if ranges else None,
    }


def _agents(ledger: Ledger, ends: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "agent_id": agent_id,
            "name": account.name,
            "role": account.role,
            "ended": ends.get(account.name, ""),
            "gpu_seconds": account.classes(0.0),
        }
        for agent_id, account in ledger.accounts.items()
    ]


def _cost(ledger: Ledger, config: Config) -> dict[str, Any]:
    spent = ledger.cost(0.0, "trainer") + ledger.cost(0.0, "agent")
    reserved = ledger.cost_all_reserved(0.0, config.ledger.reserved_price)
    return {
        "currency": config.ledger.currency,
        "spent": spent,
        "all_reserved": reserved,
        "saved_fraction": 1 - spent / reserved if reserved else 0.0,
        "reserved_price_per_gpu_hour": config.ledger.reserved_price,
        "spot_price_per_gpu_hour": config.ledger.spot_price,
    }


def _phases(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return seconds and number of each phase; a phase is timed when the next one begins."""
    total: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for row in metrics.values():
        for name, value in row.items():
            if name.startswith("phase_s."):
                phase = name.partition(".")[2]
                total[phase] += value
                count[phase] += 1
    return {
        phase: {"seconds": total[phase], "times": count[phase], "mean": total[phase] / count[phase]}
        for phase in total
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
