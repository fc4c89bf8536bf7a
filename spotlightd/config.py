"""The daemon's configuration: TOML, with flag > `SPOTLIGHT_<SECTION>_<KEY>` > file > default.

Every key is a field of one of the structs below, which say what it means, its unit and its
bounds. `load` remembers where each value came from (`spotlightd config --origin`).
"""

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from spotlightd.config_checks import check_trainer, unused
from spotlightd.errors import ConfigError
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
    """Rollouts per prompt that train (K)."""
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


class FleetSection(Section, frozen=True):
    heartbeat_s: Positive = 1.0
    suspect_s: Positive = 4.0
    """Silence after which an agent gets nothing new."""
    lost_s: Positive = 10.0
    """Silence after which its leases go to others."""
    forget_s: Positive = 3600.0
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


class LedgerSection(Section, frozen=True):
    currency: str = "USD"
    reserved_price: NonNegative = 10.47
    """Price of one reserved GPU-hour."""
    spot_price: NonNegative = 2.66
    """Price of one spot GPU-hour."""


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
    ledger: LedgerSection = field(default_factory=LedgerSection)


Origins = dict[str, str]
"""Dotted key -> where its value came from."""


def load(
    path: Path | None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Config, Origins]:
    """Read the configuration.

    Args:
        path: TOML file; None for none.
        flags: dotted key -> text, from the command line.
        environ: defaults to the process environment.

    Raises:
        ConfigError: unreadable file, unknown key (the nearest valid one is named), or a value
            of the wrong type, out of bounds or at odds with another.
    """
    raw, origins = _read_file(path)
    for key, text in _from_environment(os.environ if environ is None else environ).items():
        _put(raw, origins, key, text, f"environment {_variable(key)}")
    for key, text in (flags or {}).items():
        _put(raw, origins, key, text, "command line")
    _refuse_unknown(raw, origins)
    config = _convert(raw, origins)
    _check_finite(config, origins)
    _check_together(config)
    check_trainer(config)
    for found in unused(config, origins):
        raise ConfigError(
            f"{origins[found.key]}: '{found.key}' has no effect with {found.because}: leave it out"
        )
    return config, {key: origins.get(key, "default") for key in all_keys()}


def all_keys() -> list[str]:
    """Return every dotted key that a configuration may hold."""
    default = Config()
    return [
        f"{section}.{key}"
        for section in Config.__struct_fields__
        for key in getattr(default, section).__struct_fields__
    ]


def value_of(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def _read_file(path: Path | None) -> tuple[dict[str, dict[str, Any]], Origins]:
    if path is None:
        return {}, {}
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for section, table in raw.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: '{section}' stands outside a section; expected [section] headers such "
                f"as [run], then keys"
            )
    return raw, {f"{section}.{key}": str(path) for section in raw for key in raw[section]}


def _variable(key: str) -> str:
    return "SPOTLIGHT_" + key.replace(".", "_").upper()


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    known = {_variable(key): key for key in all_keys()}
    found = {}
    for variable, text in environ.items():
        if variable in known:
            found[known[variable]] = text
        elif variable.startswith(
            tuple(f"SPOTLIGHT_{s.upper()}_" for s in Config.__struct_fields__)
        ):
            raise ConfigError(f"unknown environment variable {variable}{_nearest(variable, known)}")
    return found


def _put(raw: dict[str, Any], origins: Origins, key: str, text: str, origin: str) -> None:
    if key.count(".") != 1:
        raise ConfigError(f"{origin}: '{key}' is not of the form section.key=value")
    section, name = key.split(".")
    raw.setdefault(section, {})[name] = _parse(text)
    origins[key] = origin


def _parse(text: str) -> Any:
    """Read a value as TOML would, and as a plain string where it is no TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nearest(name: str, valid: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def _refuse_unknown(raw: Mapping[str, Mapping[str, Any]], origins: Origins) -> None:
    valid = all_keys()
    sections = list(Config.__struct_fields__)
    for section, table in raw.items():
        for key in [f"{section}.{name}" for name in table]:
            if key not in valid:
                where = origins.get(key, "configuration")
                raise ConfigError(f"{where}: unknown key '{key}'{_nearest(key, valid)}")
        if section not in sections:
            raise ConfigError(f"unknown section [{section}]{_nearest(section, sections)}")


def _convert(raw: dict[str, Any], origins: Origins) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        message = str(error)
        path = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
        key = path.split("[")[0]
        what = message.split(" - at")[0]
        where = origins.get(key, "configuration")
        raise ConfigError(f"{where}: bad value for '{path or '?'}': {what}") from None


def _check_finite(config: Config, origins: Origins) -> None:
    # TOML has inf and nan, and bounds such as "at least 0" let infinity pass.
    for key in all_keys():
        value = value_of(config, key)
        if isinstance(value, float) and not math.isfinite(value):
            where = origins.get(key, "configuration")
            raise ConfigError(f"{where}: bad value for '{key}': {value} is not a finite number")


def _check_together(config: Config) -> None:
    """Check what no single key can say. Messages name both keys and the cure."""
    sampler, planner, trainer = config.sampler, config.planner, config.trainer
    last = max(sampler.sde_window_starts, default=-1) + sampler.sde_window_size
    if not sampler.sde_window_starts or last > sampler.num_steps - 1:
        raise ConfigError(
            f"sampler.sde_window_starts {list(sampler.sde_window_starts)} with sde_window_size "
            f"{sampler.sde_window_size} must end before the last of {sampler.num_steps} steps, "
            f"which is never stochastic: choose a smaller start or size"
        )
    if trainer.clip_range is not None and trainer.clip_range_nats is not None:
        raise ConfigError(
            "trainer.clip_range and trainer.clip_range_nats say the same thing: give one"
        )
    if trainer.clip_range_nats is not None and sampler.sde_form == "flow_cps":
        raise ConfigError(
            "trainer.clip_range_nats needs a density, and with sampler.sde_form = 'flow_cps' the "
            "log-prob is none: give trainer.clip_range"
        )
    key = "max_candidates" if planner.mode == "bandit" else "candidates"
    if getattr(planner, key) < planner.group_size and planner.mode != "off":
        raise ConfigError(
            f"planner.{key} {getattr(planner, key)} is below planner.group_size "
            f"{planner.group_size}: raise it, or set planner.mode = 'off'"
        )
    if planner.rank_by not in config.rewards.names:
        raise ConfigError(
            f"planner.rank_by '{planner.rank_by}' is not scored: add it to rewards.report "
            f"{list(config.rewards.report)}"
        )
    if not config.fleet.heartbeat_s < config.fleet.suspect_s < config.fleet.lost_s:
        raise ConfigError("fleet: heartbeat_s < suspect_s < lost_s must hold")
