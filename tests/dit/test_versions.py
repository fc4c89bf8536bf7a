"""Adapter versions in memory: prepared beside the one in use, switched, and verified as bound."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from spotlightd.dit.lora import adapter_bytes, adapter_parameters, attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.versions import Versions
from spotlightd.errors import InputError
from spotlightd.models import EMBEDDED_DIR
from spotlightd.weights.tensors import files_digest


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A model, and files of two adapters for it with their digests."""
    model = load_model(EMBEDDED_DIR)
    attach_lora(model, 4, 8.0)
    rows = []
    for version in range(3):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in adapter_parameters(model).values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        path = tmp_path_factory.mktemp("adapters") / f"{version}.safetensors"
        path.write_bytes(adapter_bytes(model))
        rows.append((path, files_digest([path])))
    return model, rows


def test_what_is_bound_has_the_digest_that_was_published(adapters):
    model, rows = adapters
    versions = Versions(model)
    for version, (path, digest) in enumerate(rows[:2]):
        versions.add(version, versions.prepare(path, digest))
    for version in (0, 1, 0):
        versions.use(version)
        assert versions.digest() == rows[version][1]


def test_a_switch_moves_pointers_and_copies_nothing(adapters):
    model, rows = adapters
    versions = Versions(model)
    prepared = [versions.prepare(path, None) for path, _ in rows[:2]]
    for version, tensors in enumerate(prepared):
        versions.add(version, tensors)
    for version in (0, 1, 0):
        versions.use(version)
        for name, parameter in adapter_parameters(model).items():
            assert parameter.data_ptr() == prepared[version][name].data_ptr()


def test_the_oldest_version_goes_but_never_the_one_in_use(adapters):
    model, rows = adapters
    versions = Versions(model, kept=2)
    versions.add(0, versions.prepare(rows[0][0], None))
    versions.use(0)
    for version in (1, 2):
        versions.add(version, versions.prepare(rows[version][0], None))
    assert [v in versions for v in (0, 1, 2)] == [True, True, True]
    versions.use(2)
    versions.add(2, versions.prepare(rows[2][0], None))
    assert [v in versions for v in (0, 1, 2)] == [False, True, True]


def test_another_digest_than_the_manifests_is_an_error(adapters):
    model, rows = adapters
    with pytest.raises(InputError, match="as bound have the digest"):
        Versions(model).prepare(rows[0][0], rows[1][1])


def test_an_adapter_that_binds_nothing_is_an_error(adapters, tmp_path):
    model, _ = adapters
    path = tmp_path / "other.safetensors"
    save_file({"somewhere.else.lora_A.weight": torch.ones(4, 4)}, path)
    with pytest.raises(InputError, match="does not fit the model"):
        Versions(model).prepare(path, files_digest([path]))


READER = """
import sys
from safetensors.torch import load_file
tensors = load_file(sys.argv[1])
print(sum(float(t.sum()) for t in tensors.values()), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="proportional sizes are Linux's")
def test_processes_that_load_one_file_share_its_memory(tmp_path):
    """Two processes with all of a 32 MB file in use hold it once between them."""
    path = tmp_path / "model.safetensors"
    size = 32 * 2**20
    save_file({"weight": torch.randn(size // 4)}, path)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        for _ in range(2)
    ]
    try:
        sums = {reader.stdout.readline() for reader in readers if reader.stdout}
        assert len(sums) == 1, "they do not see the same values"
        held = [mapped(reader.pid, path) for reader in readers]
        assert all(rss >= 0.99 * size for rss, _ in held), "not all of it is in memory"
        assert sum(pss for _, pss in held) <= 1.01 * size
    finally:
        for reader in readers:
            reader.communicate(b"")


def mapped(pid: int, path: Path) -> tuple[int, int]:
    """Return resident and proportional bytes of a file in a process."""
    rows = [row for row in psutil.Process(pid).memory_maps() if row.path == str(path)]
    return sum(row.rss for row in rows), sum(row.pss for row in rows)
