"""What holds for the project as a whole: imports, sizes, commands, dependencies, documents."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("spotlightd", "agent", "triton_kernels", "scripts", "benchmarks", "tests")
LONGEST_FILE = 400
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_import_contracts_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module",
    ["spotlightd.main", "spotlightd.cli", "spotlightd.control.cli", "agent.cli", "agent.main"],
)
def test_processes_on_the_network_load_no_torch(module):
    script = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'onnxruntime', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_the_daemons_command_line_is_light():
    script = (
        "import sys, spotlightd.cli\n"
        "print(*sorted({'numpy', 'zmq', 'aiohttp', 'rich', 'pydantic'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_no_file_is_too_long():
    lengths = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def commands(command, path):
    """Yield (words, command) for a typer command and everything below it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, [*path, name])


@pytest.mark.parametrize("name", sorted(PROJECT["scripts"]))
def test_every_command_has_help_with_an_example(name):
    module = importlib.import_module(PROJECT["scripts"][name].partition(":")[0])
    for words, command in commands(typer.main.get_command(module.app), [name]):
        shown = " ".join(words)
        assert command.help, shown
        assert f"Example: {shown}" in (command.epilog or command.help), shown


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements():
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]


def test_every_dependency_is_pinned_within_its_range():
    pinned = pins()
    for requirement in requirements():
        if requirement.name == "triton":
            continue  # each CUDA build of torch names its own version
        version = pinned.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), requirement


def test_links_between_documents_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_files_that_the_documents_name_exist():
    named = re.compile(r"`((?:spotlightd|agent|triton_kernels|systemd|tests)/[\w./]*\w/?)`")
    for document in DOCUMENTS:
        for path in named.findall(document.read_text()):
            assert (ROOT / path).exists(), f"{document.name}: {path}"
    readme = (ROOT / "README.md").read_text()
    block = readme.partition("as the way of one rollout")[2].partition("[Architecture]")[0]
    for path in re.findall(r"(?m)^ {4,}([a-z_/]+/(?:[a-z_]+\.py)?)(?= )", block):
        assert any((ROOT / base / path).exists() for base in ("", "spotlightd")), path


def test_license_is_the_one_that_is_declared():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0" and "Version 2.0, January 2004" in text
