"""Every configuration key: what it means, its unit, its bounds and its default."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from spotlightd.wire.rewards import HttpFormat, RewardOptions
from spotlightd.wire.sampling import Name, SdeForm, Seed

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
AtLeastOne = Annotated[int, Meta(ge=1)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the configuration's sections."""


class RunSection(Section, frozen=True):
    name: Name = "run"
    seed: Seed = 1
    """All randomness of the run derives from it."""
    iterations: Annotated[int, Meta(ge=0, le=1_000_000)] = 30
    model: str = "glyph-ocr"
    """`glyph-ocr` (embedded) or a folder in diffusers' layout."""
    prompts: str = "train"
    """`train` (embedded list), a .txt or .jsonl file, or a dataset's folder."""
    held_out: str = "held_out"
    """Prompts for evaluation: `held_out` (embedded list) or a file."""
    evaluate_prompts: AtLeastOne = 32
    """The first so many held-out prompts are evaluated."""
    evaluate_seeds: AtLeastOne = 4
    """Fixed seeds per held-out prompt; ODE sampling."""
    evaluate_every: Annotated[int, Meta(ge=0)] = 0
    """Iterations between evaluations; 0: before the first and after the last only."""
    early_stop: Annotated[int, Meta(ge=0)] = 0
    """Evaluations in a row below the best one, while the training reward is above what it was
    then, after which the run ends; 0: it never ends early."""
    early_stop_reward: Name = "ocr_ctc"
    """Reward that these evaluations are compared by; it should not be the one that trains."""
    trainer_rolls_out: bool = True
    """Whether the reserved GPUs sample between updates."""


class SamplerSection(Section, frozen=True):
    num_steps: Annotated[int, Meta(ge=2, le=1000)] = 10
    sde_form: SdeForm = "flow_cps"
    noise_level: Annotated[float, Meta(gt=0, le=10)] = 0.7
    sde_window_size: AtLeastOne = 6
    """Consecutive stochastic steps, which train. The last step is never one of them."""
    sde_window_starts: tuple[Annotated[int, Meta(ge=0)], ...] = (0, 1)
    """The window starts at one of these steps, drawn once per (iteration, prompt)."""
    guidance_scale: Annotated[float, Meta(ge=0, le=100)] = 1.0
    height: AtLeastOne = 32
    width: AtLeastOne = 128
    num_frames: AtLeastOne = 1
    """Frames of a video; 1 for models that draw images."""


class PlannerSection(Section, frozen=True):
    mode: Literal["off", "critical_path", "fixed", "bandit"] = "bandit"
    """`off`: random seeds. `critical_path`: `candidates` seeds per prompt explored before each
    rollout, on its own weights. `fixed`: the same on stale weights, while training lasts.
    `bandit`: as many seeds and steps as pay within that time."""
    prompts_per_iteration: AtLeastOne = 4
    group_size: Annotated[int, Meta(ge=2)] = 16
    """Rollouts per prompt (K)."""
    train_size: Annotated[int, Meta(ge=0)] = 0
    """How many of them train: the ones whose rewards spread most; 0: all."""
    candidates: Annotated[int, Meta(ge=2)] = 32
    """Seeds per prompt that `critical_path` and `fixed` explore (N)."""
    tail_steps: Annotated[int, Meta(ge=0, le=1000)] = 0
    """ODE steps after the SDE window with which these two explore; 0: all of them."""
    max_candidates: Annotated[int, Meta(ge=2)] = 256
    """Seeds per prompt that `bandit` explores at most."""
    control_fraction: Fraction = 0.25
    """Share of the group's seeds that stays uniformly random."""
    rank_by: Name = "ocr_ctc"
    """Reward that ranks explored seeds; it must be one of the rewards that are scored."""


class RewardsSection(Section, frozen=True):
    train: Name = "ocr"
    """Reward that trains."""
    report: tuple[Name, ...] = ("ocr_ctc", "grain")
    """Rewards and alarms that are scored beside it."""
    weights: dict[Name, float] = field(default_factory=dict)
    """What the reward `mix` is made of: weight by reward name, each normalised within its group
    when it trains."""
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    """Scorer processes of each agent, and of the trainer."""
    http_url: str = ""
    """Server of the reward `http`."""
    http_format: HttpFormat = "json"
    """How it is asked: `json` (images in base64), `multipart`, or `geneval_pickle`."""
    http_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    http_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    """Further tries after a passing failure."""
    trust_pickle: bool = False
    """Allows `geneval_pickle`, for a server on the same machine."""
    clip_score_model: str = ""
    """Folder of the CLIP model, on every machine that scores."""
    pickscore_model: str = ""
    """Folder of PickScore_v1."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every reward that is scored; the first is the one that trains."""
        return tuple(dict.fromkeys((self.train, *self.report, *self.weights)))

    def options(self) -> RewardOptions:
        fields = {name: getattr(self, name) for name in RewardOptions.__struct_fields__}
        return RewardOptions(**fields)


class TrainerSection(Section, frozen=True):
    train: Literal["lora", "full"] = "lora"
    """What trains: an adapter, or every weight of the transformer."""
    lora_rank: AtLeastOne = 16
    lora_alpha: Positive = 32.0
    objective: Literal["flow_grpo", "grpo_guard", "flow_dppo", "nft"] = "flow_grpo"
    learning_rate: Positive = 1.2e-3
    clip_range: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Half-width of the ratio's trust interval, for the mean form of the log-prob."""
    clip_range_nats: Positive | None = None
    """The same in nats of the whole latent's log-prob; state one of the two."""
    dppo_kl_threshold: Positive | None = None
    """Mean KL to the rollout's policy from which `flow_dppo` drops a sample; unset: 1e-5."""
    nft_beta: Positive | None = None
    """Share of the policy in `nft`'s positive velocity; unset: 1."""
    kl_beta: NonNegative = 0.06
    optimizer_steps: AtLeastOne = 2
    """Optimizer steps per batch of rollouts."""
    micro_batch: AtLeastOne = 32
    """Trajectories per forward-backward pass and rank."""
    max_grad_norm: Positive = 1.0
    advantage_clip: Positive = 5.0
    global_std: bool = False
    """Divide advantages by the batch's standard deviation instead of the group's."""
    normalise_over: Literal["group", "control"] = "group"
    """Advantages are rewards less this mean: the whole group's, or its control seeds'."""
    weight_decay: NonNegative = 1e-4
    ema_decay: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Of the weights' average over optimizer steps, which is then evaluated; 0: no average."""
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes that train together, one a GPU; above 1 the weights are sharded over them."""
    activation_checkpointing: bool = False
    """Compute a block's activations again in the backward pass instead of keeping them."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu` or `cuda:N`."""
    threads: AtLeastOne = 1
    max_batch: AtLeastOne = 8
    """Trajectories that the trainer samples together between updates."""
    checkpoints_kept: AtLeastOne = 2


class LinkSection(Section, frozen=True):
    host: str = "127.0.0.1"
    """Address that join tokens carry; agents must reach it."""
    bind: str = "127.0.0.1"
    """Local address to listen on (`0.0.0.0` for all)."""
    enrol_port: Port = 0
    """0: chosen by the system."""
    link_port: Port = 0
    chunk_port: Port = 0
    second_enrol_port: Port = 0
    """Used as well while a new server key takes over from the one before, as the next."""
    second_link_port: Port = 0


class FleetSection(Section, frozen=True):
    heartbeat_s: Positive = 1.0
    suspect_s: Positive = 4.0
    """Silence after which an agent gets nothing new."""
    lost_s: Positive = 10.0
    """Silence after which its leases go to others."""
    forget_s: Positive = 3600.0
    key_ttl_s: Annotated[float, Meta(ge=60, le=1e8)] = 86400.0
    """An agent's key expires when it was not heard for so long; hearing it renews the key."""
    lease_s: Positive = 30.0
    """Time without progress after which a lease may be handed on."""
    commit_every: Annotated[int, Meta(ge=0, le=1000)] | Literal["auto"] = "auto"
    """Denoising steps between progress commits of a rollout; 0: only upon a notice. `auto`: 1
    where a commit costs each worker less than a hundredth of a step, else as many as make it so.
    """
    attempts: AtLeastOne = 4
    """Failures after which a request is given up."""
    backup_leases: bool = True
    """In the last wave of a phase, idle workers get what is leased already a second time."""


class WeightsSection(Section, frozen=True):
    chunk_bytes: Annotated[int, Meta(ge=4096, le=2**28)] = 4 * 2**20
    """The least size of a chunk; it is doubled, up to 64 MiB, while there would be over 1,024."""
    transport: Literal["plain", "curve"] = "plain"
    """`plain`: chunks are checked, not encrypted. `curve`: encrypted, several times slower."""
    uplink_mb_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Megabytes a second that each agent, and the daemon, serves at most; 0: no limit."""


class StoreSection(Section, frozen=True):
    state_dir: str = "/var/lib/spotlight"
    trajectories_kept: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Iterations that have trained and whose trajectories are kept all the same, to replay them."""


class ControlSection(Section, frozen=True):
    socket: str = "/run/spotlight/control.sock"
    group: str = "spotlight"
    """Unix group that may write, beside root and the daemon's own user."""
    dashboard: bool = True
    """Serve the dashboard on the loopback, read-only, to every user of this machine."""
    dashboard_port: Port = 8470
    """0, or where it is taken: chosen by the system; `spotlightctl status` shows it."""


class TelemetrySection(Section, frozen=True):
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Where curves and pictures are shown as well, by a process of its own that reads the store."""


class LedgerSection(Section, frozen=True):
    currency: str = "USD"
    reserved_price: NonNegative = 10.47
    """Price of one reserved GPU-hour."""
    spot_price: NonNegative = 2.66
    """Price of one spot GPU-hour in a zone whose own is not known."""
    zone_prices: dict[str, NonNegative] = field(default_factory=dict)
    """Price of one spot GPU-hour by zone; those of `spotlightctl fleet up` come before it."""


class Config(Section, frozen=True):
    run: RunSection = field(default_factory=RunSection)
    sampler: SamplerSection = field(default_factory=SamplerSection)
    planner: PlannerSection = field(default_factory=PlannerSection)
    rewards: RewardsSection = field(default_factory=RewardsSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    link: LinkSection = field(default_factory=LinkSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    weights: WeightsSection = field(default_factory=WeightsSection)
    store: StoreSection = field(default_factory=StoreSection)
    control: ControlSection = field(default_factory=ControlSection)
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    ledger: LedgerSection = field(default_factory=LedgerSection)
