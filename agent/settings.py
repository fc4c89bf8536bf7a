"""What one agent is told on its command line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AgentSettings:
    """What the command line says."""

    state_dir: Path
    name: str
    workers: int = 1
    threads: int = 1
    max_batch: int = 8
    """Trajectories that each worker holds at once."""
    preempt_file: Path | None = None
    preempt_provider: str = "auto"
    """Cloud whose metadata service announces preemption; `auto` asks the firmware, or `none`."""
    metadata_url: str = ""
    """Replaces the provider's own address."""
    notice_grace_s: float = 30.0
    """Time assumed to be left at a notice that does not say."""
    connect_timeout_s: float = 20.0
    chunk_bind: str = "0.0.0.0"
    weights_dir: Path | None = None
    """Where base models and adapters are kept; None: in the state directory."""
    weights_budget: int | None = None
    """Bytes that they may take; None: all that is free but a margin."""
    zone: str = ""
    """Weights come from peers in the same zone first."""
    max_sp_degree: int = 1
    """Workers that may share one image in the last wave of a phase; 1: none ever do."""
