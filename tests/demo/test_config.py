"""The demo's configuration is one that `spotlightd` takes, with and without exploration."""

import pytest

from spotlightd.config import load
from spotlightd.demo.config import write_config


@pytest.mark.parametrize(("exploration", "mode"), [(True, "fixed"), (False, "off")])
def test_the_file_loads(tmp_path, exploration, mode):
    path = tmp_path / "spotlight.toml"
    write_config(path, tmp_path, 3, 12, exploration)
    config, origins = load(path, {}, {})
    assert (config.planner.mode, config.run.seed, config.run.iterations) == (mode, 3, 12)
    assert origins["planner.mode"] == str(path)
