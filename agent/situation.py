"""What sequence-parallel views on one VM have before them, as plans are made of it."""

from dataclasses import dataclass
from typing import NamedTuple

from agent.arrange import Arrangement, arrange
from agent.notice_race import COMMIT_NOW, Race, race
from agent.speeds import Speeds
from spotlightd.dit.degrees import Group
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer


@dataclass
class Kept:
    """A trajectory's last state that this agent saw, for the next view."""

    state: Buffer | None
    steps: float
    """Done as far as this agent can tell: those of `state`, and boundaries reported since."""
    handed: w.Handed | None = None
    """What `state` came with; None where it came from the daemon, or was committed."""
    breaks: int = 0


class Situation(NamedTuple):
    names: tuple[str, ...]
    """Requests that are being denoised."""
    left: tuple[float, ...]
    """Denoising steps of each."""
    indexes: tuple[int, ...]
    """Workers that run."""
    size: tuple[int, int]
    """Height and width of the images."""
    groups: tuple[Group, ...]
    """Views with images, by index into `names`."""
    holders: dict[str, int]
    """Request -> worker that leads its view."""

    def arrange(self, groups: tuple[Group, ...]) -> list[Arrangement]:
        """Return which workers make up these groups."""
        wanted = [(g.degree, tuple(self.names[i] for i in g.images)) for g in groups]
        return arrange(wanted, self.indexes, self.holders)

    def race(self, speeds: Speeds, most: int, regroup_s: float, deadline_s: float) -> Race:
        """Decide upon a notice (`notice_race`), by what was measured of degrees up to `most`."""
        curve, step_s = speeds.measured(self.size, most), speeds.step_s(self.size)
        if curve is None or step_s is None or len(self.names) >= 2 * len(self.indexes):
            return COMMIT_NOW
        if not {group.degree for group in self.groups} <= set(curve.degrees(most)):
            return COMMIT_NOW
        workers = len(self.indexes)
        return race(self.left, self.groups, workers, curve, step_s, regroup_s, deadline_s)
