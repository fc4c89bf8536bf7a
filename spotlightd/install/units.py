"""The unit files of both services, and how a command becomes a line of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNIT_DIR = PurePosixPath("/etc/systemd/system")

_PACKAGED = Path(__file__).with_name("systemd")
_CHECKOUT = Path(__file__).parents[2] / "systemd"
_PLAIN = re.compile(r"[\w@%+=:,./-]+\Z", re.ASCII)


@dataclass(frozen=True)
class Service:
    """One of the two services."""

    program: str
    units: tuple[str, ...]
    """Names of its unit files; the first is the service."""
    data: tuple[PurePosixPath, ...]
    """Folders that a run fills."""

    def unit_files(self, command: Sequence[str]) -> dict[PurePosixPath, str]:
        """Return the content of each unit file by its place; the service starts `command`."""
        texts = {UNIT_DIR / name: template(name) for name in self.units}
        service = UNIT_DIR / self.units[0]
        line = "ExecStart=" + " ".join(map(quoted, command))
        texts[service] = re.sub(r"(?m)^ExecStart=.*$", lambda _: line, texts[service])
        return texts


STATE = PurePosixPath("/var/lib")
DAEMON = Service("spotlightd", ("spotlightd.service", "spotlightd.socket"), (STATE / "spotlight",))
AGENT = Service("spotlight-agent", ("spotlight-agent.service",), (STATE / "spotlight-agent",))
SERVICES = (DAEMON, AGENT)


def template(name: str) -> str:
    """Return a file of `systemd/`, from the wheel or from the checkout."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    return (folder / name).read_text(encoding="utf-8")


def shared_files() -> dict[PurePosixPath, str]:
    """Return what both services need: who they run as (first), and the folders' owners."""
    return {
        PurePosixPath("/etc") / kind / "spotlight.conf": template(f"{kind}/spotlight.conf")
        for kind in ("sysusers.d", "tmpfiles.d")
    }


def packaged_command(service: Service) -> list[str]:
    """Return the words after `ExecStart=` in the unit as it ships, without the program's path."""
    found = re.search(r"(?m)^ExecStart=\S+ ?(.*)$", template(service.units[0]))
    assert found, service.units[0]
    return found[1].split()


def quoted(word: str) -> str:
    """Return one word of a command as systemd reads it (systemd.service(5), systemd.syntax(7))."""
    word = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.match(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
