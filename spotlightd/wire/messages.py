"""Every message that crosses a process boundary on the fleet link.

One multipart message = one header (MessagePack, one of the structs below, tagged with `type`)
followed by the raw frames that the struct announces in `frames`. Tensors never travel inside a
header. To add a message or a field see docs/contributing.md: new fields come last and have a
default, types never change.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from spotlightd.wire.rewards import RewardOptions
from spotlightd.wire.sampling import Fence, Name, PolicyVersion, Request, RequestId, StepIndex

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 2
"""1: ServerKey. 2: AnnouncedVersion. Peers that are one minor older are served without what is
newer."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(max_length=2000)]
Score = Annotated[float, Meta(ge=-1e6, le=1e6)]
"""A reward. Bounded, so that its square and sums of thousands of them are numbers."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Role = Literal["agent", "trainer"]


class FrameSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One raw frame beside the header."""

    name: Name
    """`latents`, `trajectory` (safetensors) or `image` (PNG)."""
    size: Annotated[int, Meta(ge=0, le=2**31)]
    """Bytes; checked against the frame that arrived."""


Frames = Annotated[tuple[FrameSpec, ...], Meta(max_length=8)]


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages."""


# --- enrolment (its own socket; any key may speak, only with a token) -------------------------


class Enrol(Message, frozen=True, tag="enrol"):
    """A newcomer shows that it holds a token, without sending the secret."""

    protocol: tuple[int, int]
    token_id: Name
    public_key: Annotated[str, Meta(min_length=40, max_length=40)]
    """Z85 CURVE key that the agent keeps; must be the key of this connection."""
    proof: Digest
    """HMAC-SHA256 of the public key under the token's secret."""
    name: Name


class Enrolled(Message, frozen=True, tag="enrolled"):
    agent_id: Name
    link_port: Annotated[int, Meta(ge=1, le=65535)]


class Refused(Message, frozen=True, tag="refused"):
    """Why the daemon turned a peer away. `code` chooses the exit code."""

    code: Literal["not_authorised", "version_skew", "try_again"]
    reason: Text


# --- session ----------------------------------------------------------------------------------


class HeldLease(Struct, frozen=True, forbid_unknown_fields=True):
    request_id: RequestId
    fence: Fence


Held = Annotated[tuple[HeldLease, ...], Meta(max_length=4096)]
"""A daemon gives out no more at once, and repeats these lists in its answers."""


class Hello(Message, frozen=True, tag="hello"):
    """First message of a process on the link, and again when the daemon's epoch has changed."""

    protocol: tuple[int, int]
    role: Role
    name: Name
    workers: Annotated[int, Meta(ge=0, le=1024)]
    chunk_port: Annotated[int, Meta(ge=0, le=65535)]
    """Port on which this agent serves weight chunks; 0 when it serves none."""
    held: Held = ()
    """Leases still being worked on, so that a restarted daemon can go on with them."""
    up_s: Seconds = 0.0
    """How long this process has been running: time that it was held, heard or not."""
    zone: Annotated[str, Meta(max_length=100)] = ""
    """Where the VM stands: weights come from peers in the same zone first."""


class Welcome(Message, frozen=True, tag="welcome"):
    agent_id: Name
    epoch: Count
    """Rises with every start of the daemon."""
    heartbeat_s: Seconds
    commit_every: Annotated[int, Meta(ge=0, le=1000)] | None
    """Denoising steps between progress commits; 0: only upon a notice; None: as is cheap."""
    rewards: tuple[Name, ...]
    """Rewards to score every image with; the first is the one that trains."""
    lora_rank: Annotated[int, Meta(ge=0, le=4096)]
    """0: no adapter, every weight of the transformer is the policy's."""
    lora_alpha: Annotated[float, Meta(gt=0, le=8192)]
    dtype: Literal["float32", "bfloat16", "float16"]
    reward_options: RewardOptions = field(default_factory=RewardOptions)
    weights_transport: Literal["plain", "curve"] = "plain"
    """How chunks of weights travel between peers."""
    weights_uplink: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Bytes a second that each agent serves at most; 0 for no limit."""


class HeldWeights(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent serves of one version."""

    kind: Literal["base", "adapter"]
    version: PolicyVersion
    chunks: Count
    complete: bool


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Liveness, and how each GPU-second since the agent's start was spent."""

    denoise_steps: Count
    """Steps done so far by all workers: shows that the GPU process moves, too."""
    busy_s: Seconds
    loading_s: Seconds
    idle_s: Seconds
    holds: Annotated[tuple[PolicyVersion, ...], Meta(max_length=64)] = ()
    """Weight versions of which this agent holds and serves every chunk."""
    ready_versions: Annotated[tuple[PolicyVersion, ...], Meta(max_length=64)] = ()
    """Versions that the workers can sample with now."""
    weights: Annotated[tuple[HeldWeights, ...], Meta(max_length=64)] = ()
    """Everything that this agent serves to others, wholly or in part."""


class HeartbeatReply(Message, frozen=True, tag="heartbeat_reply"):
    epoch: Count


class ServerKey(Message, frozen=True, tag="server_key"):
    """The daemon has a new key: connect to it there from now on. Since protocol 1.1."""

    server_key: Annotated[str, Meta(min_length=40, max_length=40)]
    """Z85."""
    link_port: Annotated[int, Meta(ge=1, le=65535)]
    """On the same host."""


class HelloAgain(Message, frozen=True, tag="hello_again"):
    """The daemon does not know this peer's session: say Hello first, then repeat."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The agent has nothing left and leaves."""

    reason: Text


class Notice(Message, frozen=True, tag="notice"):
    """The agent's VM will be taken away: lease nothing more to it."""

    deadline_s: Seconds | None
    """Seconds left; None where none are set, and the agent finishes what it holds."""
    source: Name


class Drain(Message, frozen=True, tag="drain"):
    """Daemon to agent: hand back what you hold, then leave."""

    deadline_s: Seconds
    reason: Text
    run_finished: bool = False
    """The run is over: the agent ends well (exit code 0) and may be started again. Otherwise it
    was taken out of service (exit code 3), and its unit must not bring it back."""


# --- work -------------------------------------------------------------------------------------


class Give(Message, frozen=True, tag="give"):
    """Credit: the peer can run `credit` more requests than it holds or was promised."""

    credit: Annotated[int, Meta(ge=0, le=4096)]
    versions: Annotated[tuple[PolicyVersion, ...], Meta(max_length=64)]
    """Versions it can sample with now."""


class Lease(Struct, frozen=True, forbid_unknown_fields=True):
    request: Request
    fence: Fence
    duration_s: Seconds
    """After so long without progress the request may go to somebody else."""
    resume_step: StepIndex = 0
    """Denoising steps already committed; above 0 a `trajectory` frame carries the state."""
    backup: bool = False
    """Somebody else works on it too, and the first result counts: send no step commits."""


class Grant(Message, frozen=True, tag="grant"):
    """Answer to Give. The i-th frame belongs to the i-th lease with `resume_step` above 0."""

    leases: Annotated[tuple[Lease, ...], Meta(max_length=4096)]
    frames: Annotated[tuple[FrameSpec, ...], Meta(max_length=4096)] = ()


class Progress(Message, frozen=True, tag="progress"):
    """State at a step boundary: one `trajectory` frame (dit/trajectory_codec)."""

    request_id: RequestId
    fence: Fence
    step_index: StepIndex
    """Denoising steps done."""
    gpu_s: Seconds
    """GPU-seconds spent on this trajectory since its last commit."""
    frames: Frames


class Result(Message, frozen=True, tag="result"):
    """A finished trajectory. Frames: `trajectory` (rollouts) and `image`."""

    request_id: RequestId
    fence: Fence
    scores: Annotated[dict[Name, Score], Meta(max_length=16)]
    """By reward name."""
    text: Text
    """What the scorer read in the image, for people."""
    gpu_s: Seconds
    resumed_from: StepIndex
    """Step of the commit it was resumed from; 0 when it ran undisturbed."""
    frames: Frames = ()
    scorer: Annotated[str, Meta(max_length=64)] = ""
    """Version of the scorer: scores of different ones cannot be compared."""


class Failed(Message, frozen=True, tag="failed"):
    """The request could not be completed here; `final` if it would fail anywhere."""

    request_id: RequestId
    fence: Fence
    reason: Text
    final: bool
    gpu_s: Seconds


class HandBack(Message, frozen=True, tag="hand_back"):
    """Leases given up unfinished (their last progress, if any, was sent before)."""

    held: Held
    gpu_s: Seconds


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Daemon to worker side: stop these leases, nobody needs them any more. Answer: HandBack."""

    held: Held


class Ack(Message, frozen=True, tag="ack"):
    """What was sent under this fence is durable (`committed`), or came too late (`stale`)."""

    request_id: RequestId
    fence: Fence
    what: Literal["progress", "result", "failed"]
    outcome: Literal["committed", "stale"]


class Stop(Message, frozen=True, tag="stop"):
    """Daemon to trainer or worker: exit now."""


AnyMessage = (
    Enrol | Enrolled | Refused | Hello | Welcome | Heartbeat | HeartbeatReply | HelloAgain
    | Goodbye | Notice | Drain | Give | Grant | Progress | Result | Failed | HandBack | Withdraw
    | Ack | Stop | ServerKey
)  # fmt: skip
