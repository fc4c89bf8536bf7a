"""Messages between a supervising process and its children over a socket pair.

Two kinds of children: a *worker* denoises (torch, one per GPU), a *scorer* computes rewards
(onnxruntime, no torch). The agent supervises both; the trainer is its own worker and supervises a
scorer. Framing is in `pipe.py`; the same rules as in `messages.py` apply.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from spotlightd.wire.messages import Count, Frames, HeldLease, Lease, Message, Seconds, Text
from spotlightd.wire.rewards import RewardOptions
from spotlightd.wire.sampling import Fence, Name, PolicyVersion, RequestId, StepIndex

# --- to a worker ------------------------------------------------------------------------------


class Load(Message, frozen=True, tag="load"):
    """First message: load the base model and attach an adapter."""

    model_dir: str
    lora_rank: Annotated[int, Meta(ge=0)]
    """0: no adapter, every weight of the transformer is the policy's."""
    lora_alpha: float
    dtype: Literal["float32", "bfloat16", "float16"]
    threads: Annotated[int, Meta(ge=1)]
    commit_every: Annotated[int, Meta(ge=0)] | None


class Bind(Message, frozen=True, tag="bind"):
    """Bind an adapter version; it becomes usable for requests of that version."""

    version: PolicyVersion
    path: str
    """Adapter safetensors on this host, verified against its manifest by the sender."""
    digest: str | None = None
    """Of the tensors, from the manifest: what is bound in the end must have it."""


class Sample(Message, frozen=True, tag="sample"):
    """Run one lease. Frame `trajectory` when it resumes."""

    lease: Lease
    frames: Frames = ()
    generation: Count = 0
    """Above 0: it is for the view of this generation, and waits for Enter."""


class Enter(Message, frozen=True, tag="enter"):
    """Take a place in a sequence-parallel view; answered by Entered, or by Left where it fails.

    The view's leases were sent before, as Sample with its generation, to every member alike.
    """

    generation: Count
    """Higher than any that this worker heard before, or refused."""
    name: Text
    """Of the process group, which may exist already; empty at degree 1."""
    rank: Annotated[int, Meta(ge=0, lt=1024)]
    """Rank 0 leads: it alone commits, finishes, and is asked to part."""
    degree: Annotated[int, Meta(ge=1, le=1024)]
    store_port: Annotated[int, Meta(ge=0, le=65535)]
    """Of the agent's store, on this host, where a group's members meet."""
    timeout_s: Seconds
    """Of one collective."""
    forget: tuple[Text, ...] = ()
    """Groups that will not be entered again."""


class Part(Message, frozen=True, tag="part"):
    """To a leader: end the view at the next step boundary. One of an old generation is ignored."""

    generation: Count


class CancelLeases(Message, frozen=True, tag="cancel_leases"):
    """Forget these at the next step boundary; answered by Cancelled."""

    held: tuple[HeldLease, ...]


class Flush(Message, frozen=True, tag="flush"):
    """Send the state of everything in flight at the next step boundary, then Flushed; with
    `stop` the worker then drops it and starts nothing more."""

    stop: bool


class Exit(Message, frozen=True, tag="exit"):
    """Leave."""


# --- from a worker ----------------------------------------------------------------------------


class Loaded(Message, frozen=True, tag="loaded"):
    seconds: Seconds


class Bound(Message, frozen=True, tag="bound"):
    version: PolicyVersion
    tensors: int
    seconds: Seconds


class Boundary(Message, frozen=True, tag="boundary"):
    """After each denoising step of a batch: shows progress, and how the time was spent."""

    denoise_steps: int
    """Steps x trajectories since the last Boundary."""
    busy_s: Seconds
    commit_every: int = 0
    """Steps between two commits from now on."""
    commit_share: float = 0.0
    """What a commit costs, as a share of a step."""


class StepState(Message, frozen=True, tag="step_state"):
    """A trajectory at a step boundary, to be committed (frame `trajectory`)."""

    request_id: RequestId
    fence: Fence
    step_index: StepIndex
    gpu_s: Seconds
    frames: Frames


class Finished(Message, frozen=True, tag="finished"):
    """A trajectory is complete. Frames: `trajectory`, `image` (PNG)."""

    request_id: RequestId
    fence: Fence
    gpu_s: Seconds
    resumed_from: StepIndex
    frames: Frames


class Broken(Message, frozen=True, tag="broken"):
    """This lease failed; the worker goes on with the others."""

    request_id: RequestId
    fence: Fence
    reason: Text
    gpu_s: Seconds


class Cancelled(Message, frozen=True, tag="cancelled"):
    held: tuple[HeldLease, ...]
    gpu_s: Seconds


class Flushed(Message, frozen=True, tag="flushed"):
    """Everything in flight was sent before this."""

    held: tuple[HeldLease, ...]
    gpu_s: Seconds


class Entered(Message, frozen=True, tag="entered"):
    """This member of a view has met all others."""

    generation: Count
    seconds: Seconds


class Handed(Message, frozen=True, tag="handed"):
    """A trajectory at the last boundary of a view that ends, for whoever goes on with it. Not a
    commit: it stays on this host (frame `trajectory`).
    """

    generation: Count
    request_id: RequestId
    fence: Fence
    step_index: StepIndex
    gpu_s: Seconds
    frames: Frames


class Left(Message, frozen=True, tag="left"):
    """This member has left its view, and everything it had was handed over before."""

    generation: Count
    why: Literal["asked", "done", "broken"]
    reason: Text = ""


class Fatal(Message, frozen=True, tag="fatal"):
    """The child cannot go on (model folder unusable, adapter binds nothing); it exits next."""

    reason: Text


# --- scorer -----------------------------------------------------------------------------------


class ScoreItem(Struct, frozen=True, forbid_unknown_fields=True):
    request_id: RequestId
    target: str
    prompt: str = ""
    """For rewards that judge the image by the whole prompt."""


class Score(Message, frozen=True, tag="score"):
    """Score a batch of images: one `image` frame (PNG) per item."""

    items: Annotated[tuple[ScoreItem, ...], Meta(max_length=8)]
    rewards: tuple[Name, ...]
    frames: Frames
    options: RewardOptions = field(default_factory=RewardOptions)


class Scored(Struct, frozen=True, forbid_unknown_fields=True):
    request_id: RequestId
    scores: dict[Name, float]
    text: Text
    error: Text = ""
    """Non-empty: the scorer failed on this image, and there are no scores."""


class Scores(Message, frozen=True, tag="scores"):
    items: tuple[Scored, ...]
    seconds: Seconds
    version: Annotated[str, Meta(max_length=64)] = ""
    """What scored: equal words mean equal scorers (rewards/versions.py)."""


# --- store ------------------------------------------------------------------------------------


class StorePort(Message, frozen=True, tag="store_port"):
    """Where the members of sequence-parallel groups meet, on this host."""

    port: Annotated[int, Meta(ge=1, le=65535)]


ToWorker = Load | Bind | Sample | CancelLeases | Flush | Enter | Part | Exit
FromWorker = (
    Loaded
    | Bound
    | Boundary
    | StepState
    | Finished
    | Broken
    | Cancelled
    | Flushed
    | Entered
    | Handed
    | Left
    | Fatal
)
ToScorer = Score | Exit
FromScorer = Scores | Fatal
ToStore = Exit
FromStore = StorePort
