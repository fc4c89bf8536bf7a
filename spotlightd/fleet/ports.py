"""Ports that the system chose once stay: agents find a restarted daemon where it was."""

import logging
from pathlib import Path

import msgspec

from spotlightd.atomic import write_file
from spotlightd.sections import LinkSection

logger = logging.getLogger(__name__)


class Ports(msgspec.Struct, frozen=True):
    """0 where the system may choose."""

    enrol_port: int = 0
    link_port: int = 0
    chunk_port: int = 0
    second_enrol_port: int = 0
    second_link_port: int = 0

    def of(self, slot: int) -> tuple[int, int]:
        """Return (link port, enrolment port) of a server key's slot."""
        if slot == 0:
            return self.link_port, self.enrol_port
        return self.second_link_port, self.second_enrol_port

    def taken(self, slot: int, link_port: int, enrol_port: int) -> "Ports":
        """Return these ports with the ones that a slot got."""
        if slot == 0:
            return msgspec.structs.replace(self, link_port=link_port, enrol_port=enrol_port)
        return msgspec.structs.replace(
            self, second_link_port=link_port, second_enrol_port=enrol_port
        )


def choose_ports(section: LinkSection, state_dir: Path) -> Ports:
    """Return the configured ports, and for those left open the ones of the last start."""
    try:
        last = msgspec.json.decode((state_dir / "ports.json").read_bytes(), type=Ports)
    except FileNotFoundError:
        last = Ports()
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s is unreadable (%s): new ports are chosen", state_dir, error)
        last = Ports()
    return Ports(
        section.enrol_port or last.enrol_port,
        section.link_port or last.link_port,
        section.chunk_port or last.chunk_port,
        section.second_enrol_port or last.second_enrol_port,
        section.second_link_port or last.second_link_port,
    )


def remember_ports(ports: Ports, state_dir: Path) -> None:
    write_file(state_dir / "ports.json", msgspec.json.encode(ports))
