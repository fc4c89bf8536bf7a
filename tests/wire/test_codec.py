"""The codec: what goes in comes out, and nothing else gets in."""

import math

import hypothesis.strategies as st
import msgpack
import msgspec
import pytest
from hypothesis import given, settings

from spotlightd.wire import messages as m
from spotlightd.wire import training
from spotlightd.wire import weights as ww
from spotlightd.wire.codec import LINK, MAX_HEADER_BYTES, WireError, frame_specs
from spotlightd.wire.sampling import Request, SamplerSettings

SAMPLER = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 32, 128)
REQUEST = Request("r1", "rollout", 3, "p", 'a sign "A"', "A", 2**63 - 1, 3, SAMPLER)
DIGEST = "ab" * 32
WEIGHT_FILE = ww.WeightFile("a/b.safetensors", 9, (DIGEST,))

SAMPLE = training.TrainSample("r", 5, 0.5, DIGEST, "a", True)
DIFFERENCE = training.ProducerDifference("a", 1e-8, 1e-7, 2)
MESSAGES = [
    m.Enrol((1, 0), "id", "k" * 40, DIGEST, "vm"),
    m.Enrolled("agent-1", 4000),
    m.Refused("version_skew", "upgrade"),
    m.Hello((1, 0), "agent", "vm", 2, 0, (m.HeldLease("r", 2**53 - 1),)),
    m.Welcome("a", 1, 1.0, 2, ("ocr",), 16, 32.0, "float32"),
    m.Heartbeat(10, 1.5, 0.5, 0.25, (3,), (3, 4)),
    m.Heartbeat(10, 1.5, 0.5, 0.25, (), (), (m.HeldWeights("base", 0, 7, False),)),
    m.HelloAgain(),
    m.ServerKey("k" * 40, 7),
    m.Notice(30.0, "SIGTERM"),
    m.Drain(5.0, "enough"),
    m.Give(8, (3,)),
    m.HandBack((), 1.0),
    m.Withdraw((m.HeldLease("r", 1),)),
    m.Ack("r", 1, "result", "stale"),
    ww.PublishedVersion(ww.Manifest("adapter", 3, 4096, (WEIGHT_FILE,)), True),
    ww.AnnouncedVersion("adapter", 3, DIGEST, 9000, True),
    ww.Peers("base", 0, (ww.WeightPeer("a", "tcp://10.0.0.1:4000"),), "t" * 24),
    ww.GetChunk("t" * 24, DIGEST),
    ww.Chunk(DIGEST, refusal="busy"),
    ww.GetNews("t" * 24, DIGEST, 3),
    ww.News(DIGEST, b"\x07"),
    ww.NoRoom("base", 0, 10, 3),
    training.Train(3, 3, (training.TrainGroup("p", REQUEST, (SAMPLE,)),)),
    training.Trained(3, 4, {"loss": 0.5}, (DIFFERENCE,), 1e-3, 2.0),
    training.Damaged(3, ("r",), "blob is damaged"),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda x: type(x).__name__)
def test_messages_come_back_and_msgpack_reads_them(message):
    parts = LINK.encode(message)
    assert LINK.decode(parts) == (message, [])
    plain = msgpack.unpackb(parts[0])
    assert plain["type"] == type(message).__struct_config__.tag


def test_frames_travel_beside_the_header():
    frames = {"trajectory": b"x" * 1000, "image": b"y"}
    message = m.Result("r", 1, {"ocr": 0.5}, "A", 1.0, 4, frame_specs(**frames))
    parts = LINK.encode(message, list(frames.values()))
    assert len(parts[0]) < 300
    assert LINK.decode(parts) == (message, list(frames.values()))


def test_the_sender_must_announce_its_frames():
    with pytest.raises(ValueError, match="announces"):
        LINK.encode(m.HelloAgain(), [b"x"])


def good() -> dict:
    message = m.Result("r", 1, {"ocr": 0.5}, "A", 1.0, 0)
    return msgspec.msgpack.decode(LINK.encode(message)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"type": "nope"},
        {"extra": 1},
        {"fence": 0},
        {"fence": 2**53},
        {"fence": "1"},
        {"gpu_s": -1.0},
        {"gpu_s": math.nan},
        {"gpu_s": math.inf},
        {"scores": {"ocr": math.nan}},
        {"scores": {str(i): 0.0 for i in range(17)}},
        {"request_id": ""},
        {"text": "x" * 2001},
        {"frames": [{"name": "image", "size": 5}]},
        {"frames": [{"name": "image", "size": -5}]},
    ],
    ids=str,
)
def test_a_wrong_field_is_a_wire_error(change):
    with pytest.raises(WireError):
        LINK.decode([msgpack.packb(good() | change)])


@pytest.mark.parametrize("path", ["../a", "/a", "a/../b", "a//b", ".a", "a/", "", "a b"])
def test_a_manifest_cannot_name_a_file_elsewhere(path):
    manifest = ww.Manifest("base", 0, 4096, (ww.WeightFile(path, 0, ()),))
    with pytest.raises(WireError):
        LINK.decode(LINK.encode(ww.PublishedVersion(manifest, True)))


@pytest.mark.parametrize(
    "endpoint", ["ipc:///tmp/x", "tcp://", "tcp://a:1/../b", "tcp://a b:1", "inproc://x"]
)
def test_a_peer_cannot_name_another_transport(endpoint):
    peers = ww.Peers("base", 0, (ww.WeightPeer("a", endpoint),), "t" * 24)
    with pytest.raises(WireError):
        LINK.decode(LINK.encode(peers))


def test_frames_must_be_those_announced():
    message = m.Result("r", 1, {}, "", 1.0, 0, frame_specs(image=b"12345"))
    header = LINK.encode(message, [b"12345"])[0]
    for frames in ([], [b"1234"], [b"12345", b""]):
        with pytest.raises(WireError, match="announces frames"):
            LINK.decode([header, *frames])


def test_a_huge_header_and_deep_nesting_are_refused():
    with pytest.raises(WireError, match="at most"):
        LINK.decode([b"\0" * (MAX_HEADER_BYTES + 1)])
    with pytest.raises(WireError):
        LINK.decode([b"\x91" * 1_000_000])
    with pytest.raises(WireError, match="empty message"):
        LINK.decode([])


@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_mutated_messages_are_messages_or_wire_errors(data):
    header = bytearray(LINK.encode(data.draw(st.sampled_from(MESSAGES)))[0])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        message, _ = LINK.decode([bytes(header)])
    except WireError:
        return
    assert isinstance(message, m.Message)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: ww.GetChunk("t" * 24, DIGEST + "\n"),
        lambda: ww.WeightFile("a\n", 1, (DIGEST,)),
        lambda: ww.WeightPeer("a", "tcp://10.0.0.1:4000\n"),
        lambda: m.Result("r", 1, {"ocr": 1e308}, "A", 0.5, 0),
        lambda: m.HandBack((m.HeldLease("r", 1),) * 4097, 0.5),
        lambda: m.Hello((1, 0), "agent", "vm", 1, 0, (m.HeldLease("r", 1),) * 4097),
    ],
)
def test_values_that_only_look_right_are_refused(bad):
    """A line end that `$` lets pass, a score whose square is no number, lists without end."""
    value = bad()
    message = value if isinstance(value, m.Message) else None
    if message is None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))
    else:
        with pytest.raises(WireError):
            LINK.decode([msgspec.msgpack.encode(message)])
