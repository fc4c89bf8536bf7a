"""Valid messages of every kind, with the frames that they announce: what mutations start from."""

import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from safetensors.numpy import save

from spotlightd.wire import messages as m
from spotlightd.wire import pipe
from spotlightd.wire import training as t
from spotlightd.wire import weights as ww
from spotlightd.wire import worker as w
from spotlightd.wire.codec import LINK, Buffer, TypedCodec, frame_specs
from spotlightd.wire.sampling import Request, SamplerSettings

Parts = list[bytes]
"""A multipart message: header, then frames."""

SAMPLER = SamplerSettings((1.0, 0.75, 0.5, 0.25, 0.0), "flow_cps", 0.7, (0, 1), 1.0, 32, 128)
DIGEST = "ab" * 32
TICKET = "t" * 32
PROTOCOL = (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR)
UNKNOWN = (m.HeldLease("nobody-asked", 7),)


def make_request(request_id: str, kind: str = "rollout", seed: int = 1) -> Request:
    return Request(request_id, kind, 3, "p", 'a sign "A"', "A", seed, 0, SAMPLER)  # type: ignore[arg-type]


def trajectory_bytes(rng: Random, steps: int) -> bytes:
    """Return a trajectory in its wire form, small, with values that differ from call to call."""
    noise = np.random.default_rng(rng.getrandbits(32))
    shape = (4, 8)
    latents = noise.standard_normal((3, 1, *shape)).astype(np.float32)
    return save(
        {
            "latents": latents[0, 0],
            "step_index": np.array(steps),
            "window_latents": latents[1],
            "window_next_latents": latents[2],
            "window_log_probs": np.zeros(1),
        }
    )


def png_bytes() -> bytes:
    """Return the smallest grey PNG there is."""

    def block(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0\0")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (block(b"IHDR", head), block(b"IDAT", rows), block(b"IEND", b""))
    )


PNG = png_bytes()
Made = tuple[m.Message, dict[str, bytes]]
"""A message and its frames by name."""
Maker = Callable[[Random, Sequence[m.HeldLease]], Made]
"""Makes a message about one of these leases."""


def encode(codec: TypedCodec, made: Made) -> Parts:
    message, frames = made
    return [bytes(part) for part in codec.encode(message, list(frames.values()))]


def _plain(message: m.Message) -> Maker:
    return lambda rng, leases: (message, {})


def _progress(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    lease, step = rng.choice(leases), rng.randint(1, SAMPLER.num_steps - 1)
    frames = {"trajectory": trajectory_bytes(rng, step)}
    specs = frame_specs(**frames)
    return m.Progress(lease.request_id, lease.fence, step, rng.random(), specs), frames


def _result(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    lease = rng.choice(leases)
    frames = {"trajectory": trajectory_bytes(rng, SAMPLER.num_steps), "image": PNG}
    scores = {"ocr": rng.random(), "ocr_ctc": rng.random(), "grain": rng.random()}
    specs = frame_specs(**frames)
    return m.Result(lease.request_id, lease.fence, scores, "A", 0.5, 0, specs), frames


def _grant(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    lease, frame = rng.choice(leases), {"trajectory": trajectory_bytes(rng, 2)}
    granted = m.Lease(make_request(lease.request_id), lease.fence, 30.0, 2)
    return m.Grant((granted,), frame_specs(**frame)), frame


def _chunk(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    frames = {"chunk": rng.randbytes(4096)}
    return ww.Chunk(DIGEST, frame_specs(**frames)), frames


def _heartbeat(rng: Random) -> m.Heartbeat:
    held = m.HeldWeights("adapter", 0, rng.randint(0, 9), rng.random() < 0.5)
    return m.Heartbeat(rng.randint(0, 99), 1.5, 0.5, 0.25, (0,), (0,), (held,))


MANIFEST = ww.Manifest("adapter", 3, 4096, (ww.WeightFile("a/b.safetensors", 9, (DIGEST,)),))
SAMPLE = t.TrainSample("r", 5, 0.5, DIGEST, "a", True)
GROUP = t.TrainGroup("p", make_request("r"), (SAMPLE,))

BY_AGENT: list[Maker] = [
    _progress,
    _result,
    lambda rng, leases: (m.Failed(*_of(rng.choice(leases)), "out of memory", False, 0.5), {}),
    lambda rng, leases: (m.HandBack(tuple(leases[:3]), 0.5), {}),
    lambda rng, leases: (m.Hello(PROTOCOL, "agent", "vm", 2, 7000, tuple(leases), 5.0), {}),
    lambda rng, leases: (m.Give(rng.randint(0, 8), (0,)), {}),
    lambda rng, leases: (_heartbeat(rng), {}),
    _plain(m.Notice(30.0, "SIGTERM")),
    _plain(m.Goodbye("nothing is left")),
    _plain(ww.GetManifest("adapter", 0)),
    _plain(ww.WhoHas("base", 0)),
    _plain(ww.BadPeer("agent-2", DIGEST)),
    _plain(ww.NoRoom("base", 0, 10**10, 10**9)),
]
"""What an agent has reason to send."""
BY_TRAINER: list[Maker] = [
    _plain(t.TrainerReady(0, SAMPLER.sigmas, 256, 1e-3)),
    _plain(t.TrainProgress(3, 0.5)),
    _plain(t.Trained(3, 4, {"loss": 0.5}, (t.ProducerDifference("a", 1e-8, 1e-7, 2),), 1e-3, 2.0)),
    _plain(t.Damaged(3, ("r",), "a blob is gone")),
]
BY_NEWCOMER: list[Maker] = [_plain(m.Enrol(PROTOCOL, "id", "k" * 40, DIGEST, "vm"))]
BY_OTHERS: list[Maker] = [
    _grant,
    _chunk,
    _plain(m.Enrolled("agent-1", 4000)),
    _plain(m.Refused("version_skew", "upgrade")),
    _plain(m.Welcome("a", 1, 1.0, 2, ("ocr",), 16, 32.0, "float32")),
    _plain(m.HeartbeatReply(1)),
    _plain(m.HelloAgain()),
    _plain(m.ServerKey("k" * 40, 7)),
    _plain(m.Drain(5.0, "enough")),
    _plain(m.Withdraw(UNKNOWN)),
    _plain(m.Ack("r", 1, "result", "stale")),
    _plain(ww.PublishedVersion(MANIFEST, True)),
    _plain(ww.AnnouncedVersion("base", 0, DIGEST, 9000, True)),
    _plain(ww.Peers("base", 0, (ww.WeightPeer("a", "tcp://10.0.0.1:4000"),), TICKET)),
    _plain(ww.PeerTicket((TICKET,))),
    _plain(ww.GetChunk(TICKET, DIGEST)),
    _plain(ww.GetNews(TICKET, DIGEST, 3)),
    _plain(ww.News(DIGEST, b"\x07")),
    _plain(t.Train(3, 3, (GROUP,))),
    _plain(m.Stop()),
]
"""What the daemon or a chunk server sends: nothing that a daemon expects."""


def _of(lease: m.HeldLease) -> tuple[str, int]:
    return lease.request_id, lease.fence


def _state(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    frames = {"trajectory": trajectory_bytes(rng, 2)}
    return w.StepState("r", 1, 2, 0.5, frame_specs(**frames)), frames


def _handed(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    frames = {"trajectory": trajectory_bytes(rng, 2)}
    return w.Handed(3, "r", 1, 2, 0.5, frame_specs(**frames)), frames


def _finished(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    frames: dict[str, Buffer] = {"trajectory": trajectory_bytes(rng, 4), "image": PNG}
    return w.Finished("r", 1, 0.5, 0, frame_specs(**frames)), frames  # type: ignore[return-value]


def _sample(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    frames = {"trajectory": trajectory_bytes(rng, 2)}
    return w.Sample(m.Lease(make_request("r"), 1, 30.0, 2), frame_specs(**frames)), frames


def _score(rng: Random, leases: Sequence[m.HeldLease]) -> Made:
    return w.Score((w.ScoreItem("r", "A"),), ("ocr",), frame_specs(image=PNG)), {"image": PNG}


PIPES: dict[str, tuple[TypedCodec, list[Maker]]] = {
    "to a worker": (
        pipe.TO_WORKER,
        [
            _sample,
            _plain(w.Load("/model", 16, 32.0, "float32", 1, 2)),
            _plain(w.Bind(3, "/adapter.safetensors")),
            _plain(w.CancelLeases(UNKNOWN)),
            _plain(w.Flush(True)),
            _plain(w.Enter(3, "3/0.1-1.1", 0, 2, 4000, 5.0, ("1/0.1-1.1",))),
            _plain(w.Part(3)),
            _plain(w.Exit()),
        ],
    ),
    "from a worker": (
        pipe.FROM_WORKER,
        [
            _state,
            _finished,
            _plain(w.Loaded(1.0)),
            _plain(w.Bound(3, 12, 0.1)),
            _plain(w.Boundary(8, 0.2, 2, 0.01)),
            _plain(w.Broken("r", 1, "out of memory", 0.5)),
            _plain(w.Cancelled(UNKNOWN, 0.5)),
            _plain(w.Flushed(UNKNOWN, 0.5)),
            _handed,
            _plain(w.Entered(3, 0.02)),
            _plain(w.Left(3, "broken", "connection closed by peer")),
            _plain(w.Fatal("no such model")),
        ],
    ),
    "to a scorer": (pipe.TO_SCORER, [_score, _plain(w.Exit())]),
    "from a scorer": (
        pipe.FROM_SCORER,
        [_plain(w.Scores((w.Scored("r", {"ocr": 0.5}, "A"),), 0.1)), _plain(w.Fatal("no model"))],
    ),
}
"""What crosses the socket pairs between a process and its children, by direction."""

LINK_MAKERS = BY_AGENT + BY_TRAINER + BY_NEWCOMER + BY_OTHERS


def link_message(rng: Random, makers: list[Maker], leases: Sequence[m.HeldLease]) -> Parts:
    """Return one message of the fleet link."""
    return encode(LINK, rng.choice(makers)(rng, leases or UNKNOWN))


def pipe_message(rng: Random, direction: str) -> Parts:
    codec, makers = PIPES[direction]
    return encode(codec, rng.choice(makers)(rng, UNKNOWN))
