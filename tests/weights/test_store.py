"""What lies on this host: serving in part, reuse between versions, room, remembered digests."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from spotlightd.errors import InputError
from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.manifest import (
    LARGEST_CHUNK,
    MANY_CHUNKS,
    build_manifest,
    chunk_places,
    chunk_size,
)
from spotlightd.weights.remembered import RememberedDigests
from spotlightd.weights.room import Room
from spotlightd.weights.tensors import TensorValue, files_digest, read_header, tensors_digest

CHUNK = 4096


@pytest.fixture
def published(tmp_path):
    root = tmp_path / "published"
    root.mkdir()
    (root / "model.bin").write_bytes(os.urandom(6 * CHUNK + 100))
    return root, build_manifest("base", 0, root, CHUNK)


def chunk(root, manifest, number):
    place = list(chunk_places(manifest))[number]
    return place.digest, (root / place.path).read_bytes()[place.offset :][: place.size]


def test_a_download_serves_what_it_has_and_goes_on_when_it_is_renamed(published, tmp_path):
    root, manifest = published
    download, store = Download(manifest, tmp_path / "to"), ChunkStore()
    version = store.begin(download)
    assert store.have(version) == 0 and store.versions("base") == []
    for number in (3, 1):
        digest, data = chunk(root, manifest, number)
        assert store.view(digest) is None
        assert download.write(digest, data)
        store.gained(version, digest)
        assert store.view(digest) == data
    assert store.have(version) == 0b1010
    (held,) = store.held()
    assert (held.chunks, held.complete) == (2, False)
    for number in range(7):
        digest, data = chunk(root, manifest, number)
        assert download.write(digest, data)
        store.gained(version, digest)
    download.finish()
    assert store.versions("base") == [0]
    assert store.view(chunk(root, manifest, 6)[0]) == chunk(root, manifest, 6)[1]


def test_unchanged_chunks_are_taken_from_the_version_before(published, tmp_path):
    root, _ = published
    store = ChunkStore()
    first = build_manifest("adapter", 1, root, CHUNK)
    store.add(first, root)
    later = tmp_path / "later"
    later.mkdir()
    data = bytearray((root / "model.bin").read_bytes())
    data[2 * CHUNK] ^= 1
    (later / "model.bin").write_bytes(data)
    second = build_manifest("adapter", 2, later, CHUNK, parent=1)
    download = Download(second, tmp_path / "to", store)
    assert download.missing == [second.files[0].chunks[2]] and download.reused == 6


def test_another_content_of_a_version_keeps_what_the_two_share(published, tmp_path):
    """A daemon that was killed may repeat an update, and get other values."""
    root, first = published
    to = tmp_path / "to"
    to.mkdir()
    before = (root / "model.bin").read_bytes()
    (to / "model.bin").write_bytes(before)
    again = tmp_path / "again"
    again.mkdir()
    (again / "model.bin").write_bytes(before[: 2 * CHUNK] + os.urandom(CHUNK) + before[3 * CHUNK :])
    second = build_manifest("base", 0, again, CHUNK)
    download = Download(second, to)
    assert download.missing == [second.files[0].chunks[2]]
    assert (to / "model.bin").read_bytes() == before, "others still map it"
    assert download.write(*chunk(again, second, 2))
    download.finish()
    assert (to / "model.bin").read_bytes() == (again / "model.bin").read_bytes()
    assert Download(first, to).missing == [first.files[0].chunks[2]]


def test_a_file_that_was_cut_off_is_served_no_more(published):
    root, manifest = published
    store = ChunkStore()
    store.add(manifest, root)
    digest, data = chunk(root, manifest, 6)
    assert store.view(digest) == data
    os.truncate(root / "model.bin", 100)
    assert store.view(digest) is None


def test_large_versions_have_larger_chunks():
    assert chunk_size(10**6, CHUNK) == CHUNK
    assert chunk_size(41 * 10**9, 4 * 2**20) == 64 * 2**20
    assert chunk_size(MANY_CHUNKS * CHUNK, CHUNK) == CHUNK
    assert chunk_size(MANY_CHUNKS * CHUNK + 1, CHUNK) == 2 * CHUNK
    assert chunk_size(10**13, CHUNK) == LARGEST_CHUNK


def test_files_are_hashed_once_until_they_change(published, tmp_path, monkeypatch):
    root, manifest = published
    table = tmp_path / "digests"
    remembered = RememberedDigests(table)
    assert build_manifest("base", 0, root, CHUNK, remembered=remembered) == manifest
    remembered.save()

    def refuse(*_, **__):
        raise AssertionError("hashed again")

    with monkeypatch.context() as patched:
        patched.setattr("spotlightd.weights.manifest.blake3", refuse)
        patched.setattr("spotlightd.weights.manifest.manifest_digest", refuse)
        again = build_manifest("base", 0, root, CHUNK, remembered=RememberedDigests(table))
        assert again == manifest
    with (root / "model.bin").open("r+b") as file:
        file.write(b"other")
    changed = build_manifest("base", 0, root, CHUNK, remembered=RememberedDigests(table))
    assert changed.files[0].chunks[0] != manifest.files[0].chunks[0]
    assert changed.files[0].chunks[1:] == manifest.files[0].chunks[1:]


def test_a_damaged_table_of_digests_costs_only_time(published, tmp_path):
    root, manifest = published
    (tmp_path / "digests").write_bytes(b"\xff not msgpack")
    remembered = RememberedDigests(tmp_path / "digests")
    assert build_manifest("base", 0, root, CHUNK, remembered=remembered) == manifest


def test_room_counts_what_is_allocated_against_the_budget(tmp_path):
    folder = tmp_path / "weights"
    assert Room(folder).free() > 0
    assert Room(folder, budget=10**6).free() == 10**6
    folder.mkdir()
    (folder / "full").write_bytes(b"x" * 400_000)
    with (folder / "sparse").open("wb") as file:
        file.truncate(10**9)
    left = Room(folder, budget=10**6).free()
    assert 10**6 - 440_000 < left <= 10**6 - 400_000
    assert Room(folder, budget=10).free() == 0


def adapter(path: Path, **tensors: np.ndarray) -> Path:
    save_file(tensors, path)
    return path


def test_the_tensors_digest_is_of_values_not_of_the_file(tmp_path):
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, np.float16)
    one = files_digest([adapter(tmp_path / "1.safetensors", a=a, b=b)])
    parts = [
        adapter(tmp_path / "2.safetensors", b=b),
        adapter(tmp_path / "3.safetensors", a=a),
    ]
    values = {
        "b": TensorValue("F16", (2,), b.tobytes()),
        "a": TensorValue("F32", (2, 3), a.tobytes()),
    }
    assert one == files_digest(parts) == tensors_digest(values)
    assert one != files_digest([adapter(tmp_path / "4.safetensors", a=a.reshape(3, 2), b=b)])
    assert one != files_digest([adapter(tmp_path / "5.safetensors", a=a, c=b)])
    assert files_digest([]) is None
    with pytest.raises(InputError, match="second time"):
        files_digest([parts[0], parts[0]])


def test_a_cut_off_safetensors_file_is_named(tmp_path):
    path = adapter(tmp_path / "a.safetensors", a=np.ones(100, np.float32))
    assert read_header(path)["a"].shape == (100,)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InputError, match=r"a\.safetensors: tensor a lies outside"):
        read_header(path)
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(InputError, match="not a safetensors file"):
        read_header(path)
