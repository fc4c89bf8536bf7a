"""Sparse patches: exact, small where little changed, and refused where they do not fit."""

import os

import numpy as np
import pytest

from spotlightd.errors import InputError
from spotlightd.weights import patch
from spotlightd.weights.manifest import build_manifest

CHUNK = 4096
NAMES = ["model.bin", "sub/config.json"]


@pytest.fixture
def versions(tmp_path):
    """Two folders whose weights differ in one value of a hundred."""
    old, new = tmp_path / "old", tmp_path / "new"
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**16, 60_000, dtype=np.uint16)
    changed = words.copy()
    places = rng.choice(len(words), len(words) // 100, replace=False)
    changed[places] += 1
    for folder, data in ((old, words), (new, changed)):
        (folder / "sub").mkdir(parents=True)
        # An odd length: the last byte belongs to no word.
        (folder / NAMES[0]).write_bytes(data.tobytes() + bytes([len(folder.name)]))
        (folder / NAMES[1]).write_text("{}")
    return old, new


def same(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in NAMES)


def test_a_patch_makes_the_new_version_bit_for_bit(versions, tmp_path, monkeypatch):
    monkeypatch.setattr(patch, "BLOCK", 8192)  # many blocks, the last of them short
    old, new = versions
    size = patch.make(old, new, NAMES, tmp_path / "patch")
    assert size is not None and size < 0.05 * (new / NAMES[0]).stat().st_size
    patch.apply(tmp_path / "patch", old, tmp_path / "made")
    assert same(new, tmp_path / "made")


def test_a_patch_is_worth_it_only_where_it_is_smaller_than_the_changed_chunks(versions, tmp_path):
    old, new = versions
    manifests = [build_manifest("adapter", i, f, CHUNK) for i, f in enumerate((old, new))]
    size = patch.make(old, new, NAMES, tmp_path / "patch")
    assert size is not None and patch.worth(size, manifests[1], manifests[0])
    (new / NAMES[0]).write_bytes((old / NAMES[0]).read_bytes()[:-1] + b"x")
    one_chunk = build_manifest("adapter", 1, new, CHUNK)
    assert not patch.worth(CHUNK, one_chunk, manifests[0])


def test_where_much_changed_or_sizes_differ_there_is_no_patch(versions, tmp_path):
    old, new = versions
    (new / NAMES[0]).write_bytes(os.urandom((old / NAMES[0]).stat().st_size))
    assert patch.make(old, new, NAMES, tmp_path / "patch") is None
    (new / NAMES[0]).write_bytes(b"short")
    assert patch.make(old, new, NAMES, tmp_path / "patch") is None
    assert not (tmp_path / "patch").exists()


def test_a_damaged_or_hostile_patch_is_refused_by_name(versions, tmp_path):
    old, new = versions
    path = tmp_path / "patch"
    patch.make(old, new, NAMES, path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for bad in (b"", b"XXXX" + good[4:], good[:-5], good[:40] + b"\xff" * 9 + good[49:], flipped):
        path.write_bytes(bad)
        with pytest.raises(InputError, match="the patch"):
            patch.apply(path, old, tmp_path / "made")
    path.write_bytes(good.replace(b"sub/config.json", b"../../escape.js"))
    with pytest.raises(InputError, match="outside its folder"):
        patch.apply(path, old, tmp_path / "made")


def test_a_patch_for_another_parent_does_not_pass_for_the_right_one(versions, tmp_path):
    old, new = versions
    patch.make(old, new, NAMES, tmp_path / "patch")
    (old / NAMES[0]).write_bytes(os.urandom((old / NAMES[0]).stat().st_size))
    patch.apply(tmp_path / "patch", old, tmp_path / "made")
    # What it makes is wrong, and the manifest of the new version says so.
    manifest = build_manifest("adapter", 1, new, CHUNK)
    assert build_manifest("adapter", 1, tmp_path / "made", CHUNK).files != manifest.files
