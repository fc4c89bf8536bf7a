"""This system, its baselines, and this system without one of its techniques each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotlightd.errors import UsageError


@dataclass(frozen=True)
class Variant:
    name: str
    title: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of the configuration that differ."""
    spot: bool = True
    reserved_factor: int = 1
    """Times the assumed number of reserved GPUs."""
    groups: bool = True
    """Workers help one another: sequence parallelism."""
    elastic: bool = True
    """A VM's workers regroup in place; otherwise a group is built from nothing each time."""
    reserved_rolls_out: bool = True
    commits: bool = True
    """In-flight state is committed; otherwise what is lost starts anew."""
    peers: bool = True
    """Weights come from peers; otherwise everybody asks the daemon."""


_OFF = {"planner.mode": "off"}
_ALL = {"planner.train_size": "0"}
"""Every rollout of a group trains, as in public recipes."""

BASELINES = (
    Variant("reserved", "reserved GPUs only", _OFF | _ALL, spot=False, groups=False),
    Variant(
        "reserved_subset",
        "reserved GPUs only, where as few rollouts train as in this system",
        _OFF,
        spot=False,
        groups=False,
    ),
    Variant("reserved_3x", "three times the reserved GPUs", _OFF | _ALL, False, 3, groups=False),
    Variant("spot", "reserved and spot, no exploration", _OFF | _ALL),
    Variant("critical_path", "exploration before each rollout", {"planner.mode": "critical_path"}),
    Variant("fixed", "exploration while training, a fixed plan", {"planner.mode": "fixed"}),
    Variant("spotlight", "this system", {"planner.mode": "bandit"}),
)
ABLATIONS = (
    Variant("all_train", "every rollout trains", _ALL),
    Variant("no_exploration", "without exploration", _OFF),
    Variant("no_groups", "without sequence parallelism", groups=False),
    Variant("rebuilt_groups", "groups built anew at each change", elastic=False),
    Variant("no_commits", "without step commits", {"fleet.commit_every": "0"}, commits=False),
    Variant("no_backups", "without backup leases", {"fleet.backup_leases": "false"}),
    Variant("no_peers", "weights from the daemon alone", peers=False),
    Variant("no_reserved_rollouts", "reserved GPUs only train", reserved_rolls_out=False),
)
VARIANTS = {variant.name: variant for variant in (*BASELINES, *ABLATIONS)}


def find_variant(name: str) -> Variant:
    """Raises UsageError for an unknown one."""
    if name not in VARIANTS:
        raise UsageError(f"unknown variant '{name}' (known: {', '.join(VARIANTS)})")
    return VARIANTS[name]
