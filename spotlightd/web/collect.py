"""Fills a report from the run's state and its summary."""

from collections.abc import Mapping
from typing import Any

from spotlightd.config import Config
from spotlightd.errors import InputError
from spotlightd.store.rows import StoredResult
from spotlightd.store.store import Store
from spotlightd.web.report_data import (
    AgentBar,
    Chart,
    Curve,
    EventLine,
    Figure,
    Picture,
    PictureRow,
    Point,
    ReportData,
)
from spotlightd.wire.sampling import Request

Metrics = Mapping[int, Mapping[str, float]]

PICTURE_PROMPTS = 16
MAX_EVENTS = 1000


def collect_report(store: Store, config: Config, summary: Mapping[str, Any]) -> ReportData:
    """Read everything that the report shows."""
    metrics, train = store.metrics(), config.rewards.train
    return ReportData(
        title=f"Spotlight run “{config.run.name}”, seed {config.run.seed}",
        figures=_figures(summary),
        charts=_charts(metrics, train, summary),
        pictures=_pictures(store, config, int(summary["iterations"])),
        agents=tuple(AgentBar(a["name"], a["ended"], a["gpu_seconds"]) for a in summary["agents"]),
        events=_events(store),
        costs=_costs(summary["cost"]),
        phases=tuple(
            Figure(phase, f"{row['times']} × {row['mean']:.2f} s = {row['seconds']:.1f} s")
            for phase, row in summary["phases"].items()
        ),
    )


def _figures(summary: Mapping[str, Any]) -> tuple[Figure, ...]:
    reward, trajectories = summary["reward"], summary["trajectories"]
    figures = [
        Figure("held-out OCR reward", f"{reward['before']:.3f} → {reward['after']:.3f}"),
        Figure("held-out CTC score", f"{reward['ctc_before']:.3f} → {reward['ctc_after']:.3f}"),
        Figure("background grain", f"× {reward['grain_ratio']:.2f}"),
        Figure("trajectories lost", str(trajectories["lost"])),
        Figure("resumed elsewhere", str(trajectories["resumed"])),
    ]
    rho = summary["staleness"]["spearman"]
    if rho is not None:
        figures.append(Figure("rank correlation, stale against fresh", f"{rho:.2f}"))
    saved = summary["cost"]["saved_fraction"]
    figures.append(Figure("saved against all reserved", f"{saved:.0%}"))
    return tuple(figures)


def _charts(metrics: Metrics, train: str, summary: Mapping[str, Any]) -> tuple[Chart, ...]:
    producers = summary["log_prob"]["by_producer"]
    return (
        Chart(
            "Reward",
            "Training reward of random (control) seeds, and held-out prompts before and after.",
            (
                _curve(metrics, "control seeds, edit distance", f"control.{train}"),
                _curve(metrics, "control seeds, CTC", "control.ocr_ctc"),
                _curve(metrics, "held out, edit distance", f"held_out.{train}", dots=True),
                _curve(metrics, "held out, CTC", "held_out.ocr_ctc", dots=True),
            ),
        ),
        Chart(
            "Rank correlation",
            "Scores of control seeds one version before, against their regenerated rewards.",
            (
                _curve(metrics, "edit distance", f"staleness.spearman.{train}"),
                _curve(metrics, "CTC", "staleness.spearman.ocr_ctc"),
            ),
        ),
        Chart(
            "Variance of groups",
            "Training reward's variance within regenerated groups: as realised and as the "
            "planner predicted.",
            (
                _curve(metrics, "realised", "planner.variance"),
                _curve(metrics, "predicted", "planner.variance_predicted"),
                _curve(metrics, "share of groups without spread", "planner.zero_spread_share"),
            ),
        ),
        Chart(
            "What selection does",
            "Variance over that of control seeds, gradient norm over that of random seeds, and "
            "how far the groups' mean lies from their control seeds'.",
            (
                _curve(metrics, "variance", "planner.gain"),
                _curve(metrics, "gradient norm", "planner.grad_norm_ratio"),
                _curve(metrics, "shift of the mean", "planner.mean_shift"),
                _curve(metrics, "window overrun", "planner.overran", dots=True),
            ),
        ),
        Chart(
            "Exploration",
            "Seeds per prompt that the planner expected to fit, and their denoising steps.",
            (
                _curve(metrics, "seeds per prompt", "planner.candidates"),
                _curve(metrics, "steps", "planner.steps"),
            ),
        ),
        Chart(
            "Rank fidelity",
            "The planner's belief: how well scores from exploration predict regenerated rewards.",
            (
                _curve(metrics, "rho", "planner.rho"),
                _curve(metrics, "its standard error", "planner.rho_error"),
            ),
        ),
        Chart(
            "Log-prob difference",
            "Trainer against producer before the first update; must stay far below the clip range.",
            tuple(_curve(metrics, name, f"log_prob_difference.{name}") for name in producers),
        ),
        Chart(
            "Background grain",
            "Standard deviation of the margins in grey levels; a rising curve warns of hacking.",
            (
                _curve(metrics, "control seeds", "control.grain"),
                _curve(metrics, "held out", "held_out.grain", dots=True),
            ),
        ),
    )


def _curve(metrics: Metrics, name: str, key: str, dots: bool = False) -> Curve:
    points = tuple(Point(i, row[key]) for i, row in sorted(metrics.items()) if key in row)
    return Curve(name, points, dots)


def _pictures(store: Store, config: Config, last: int) -> tuple[PictureRow, ...]:
    results = {result.request_id: result for result in store.results()}
    before = _evaluations(store, results, 0)
    after = _evaluations(store, results, last)
    rows = []
    for prompt_id, (target, pictures) in list(before.items())[:PICTURE_PROMPTS]:
        later = after.get(prompt_id, ("", []))[1] if last else []
        train = config.rewards.train
        rows.append(
            PictureRow(
                target,
                _load(store, pictures, train),
                _load(store, later, train),
            )
        )
    return tuple(rows)


def _evaluations(
    store: Store, results: Mapping[str, StoredResult], version: int
) -> dict[str, tuple[str, list[StoredResult]]]:
    """Return (target, results by seed) of each prompt that this version was evaluated on."""
    found: dict[str, tuple[str, list[StoredResult]]] = {}
    requests: list[Request] = [r.request for r in store.requests([version])]
    for request in requests:
        result = results.get(request.request_id)
        if request.kind == "evaluate" and result is not None:
            found.setdefault(request.prompt_id, (request.target, []))[1].append(result)
    return found


def _load(store: Store, results: list[StoredResult], train: str) -> tuple[Picture, ...]:
    pictures = []
    for result in results:
        if result.image is None:
            continue
        try:
            png = store.blobs.get(result.image)
        except InputError:
            # A damaged picture is a gap in the report, not the end of it.
            continue
        pictures.append(Picture(png, result.scores.get(train, 0.0), result.text))
    return tuple(pictures)


def _events(store: Store) -> tuple[EventLine, ...]:
    rows = store.events(0, MAX_EVENTS)
    began = rows[0][1] if rows else 0.0
    return tuple(
        EventLine(at - began, level, text)
        for _, at, level, component, text in rows
        if component != "planner"
    )


def _costs(cost: Mapping[str, Any]) -> tuple[Figure, ...]:
    currency = cost["currency"]
    return (
        Figure("spent", f"{cost['spent']:.4f} {currency}"),
        Figure("the same GPU-hours all reserved", f"{cost['all_reserved']:.4f} {currency}"),
        Figure("reserved GPU-hour", f"{cost['reserved_price_per_gpu_hour']:.2f} {currency}"),
        Figure("spot GPU-hour", f"{cost['spot_price_per_gpu_hour']:.2f} {currency}"),
    )
