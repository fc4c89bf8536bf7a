"""Which workers form which sequence-parallel group, and what follows when one leaves. Pure.

A *view* is one incarnation of a group: a generation, its members in rank order, and the requests
that they denoise together. Workers persist, views come and go:

    form -> every member enters -> steps -> every member leaves -> Closed
                                     |-- asked to part, or all done: at a boundary
                                     '-- a member died or hangs: the others break off that step

Whoever has not left `patience_s` after the first member broke off, or died, is frozen: it is
killed, which frees those who still wait for it. What a member says of another generation than its
own view's is old, and changes nothing.

Events go in, instructions come out; time comes in as an argument.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Why = Literal["asked", "done", "broken"]

CACHED_GROUPS = 8
"""A VM of eight has seven aligned groups; each costs descriptors and, with NCCL, buffers."""


@dataclass(frozen=True)
class Member:
    index: int
    """The worker's slot."""
    life: int
    """Rises with every process that fills the slot: a replacement is somebody else."""


@dataclass
class View:
    """Invariant: `left` holds indexes of `members`; the view is over when it holds all."""

    generation: int
    members: tuple[Member, ...]
    requests: tuple[str, ...]
    name: str
    """Of the process group; views of the same members share it while it is whole."""
    entered: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    broken: bool = False
    parting: bool = False
    deadline: float | None = None
    """When members that have not left are taken for frozen; None: nobody is waited for."""

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(member.index for member in self.members)

    @property
    def leader(self) -> int:
        return self.members[0].index


# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Enter:
    """Tell a worker to take its place in a view, and which groups it may close."""

    index: int
    rank: int
    view: View
    forget: tuple[str, ...]


@dataclass(frozen=True)
class AskToPart:
    """Tell a view's leader to end it at the next boundary."""

    index: int
    generation: int


@dataclass(frozen=True)
class Kill:
    """End a worker that hangs."""

    index: int
    reason: str


@dataclass(frozen=True)
class Closed:
    """Every member left: its requests, where unfinished, are free to be placed again."""

    view: View


Instruction = Enter | AskToPart | Kill | Closed


class Views:
    """Invariants (see `validate`): a worker is in one view at most; generations rise; the cache
    of group names holds live members alone, and `CACHED_GROUPS` at most that are not in use.

    Args:
        patience_s: between the first sign of a broken view and the last member's leaving.
        part_s: for a leader to reach a boundary after it was asked to.
    """

    def __init__(self, patience_s: float, part_s: float) -> None:
        self._patience_s = patience_s
        self._part_s = part_s
        self.generation = 0
        self._lives: dict[int, int] = {}
        self.present: dict[int, Member] = {}
        """Workers that run, by index."""
        self.views: dict[int, View] = {}
        """Open views by generation."""
        self._cached: OrderedDict[tuple[Member, ...], str] = OrderedDict()
        self._forget: dict[int, list[str]] = {}
        """What each worker is to close when it is next told anything."""

    # --- what is ------------------------------------------------------------------------------

    def view_of(self, index: int) -> View | None:
        member = self.present.get(index)
        for view in self.views.values():
            if member in view.members and index not in view.left:
                return view
        return None

    def free(self) -> tuple[int, ...]:
        """Return the workers that are in no view."""
        return tuple(index for index in sorted(self.present) if self.view_of(index) is None)

    # --- events -------------------------------------------------------------------------------

    def ready(self, index: int) -> None:
        """A worker's process runs and can be a member."""
        self._lives[index] = self._lives.get(index, 0) + 1
        self.present[index] = Member(index, self._lives[index])
        self._forget[index] = []

    def gone(self, index: int, now: float) -> list[Instruction]:
        """A worker's process ended."""
        member = self.present.pop(index, None)
        if member is None:
            return []
        for members in [members for members in self._cached if member in members]:
            self._drop_group(members)
        self._forget.pop(index, None)
        for view in list(self.views.values()):
            if member in view.members:
                return self._leave(view, index, broken=True, now=now)
        return []

    def form(self, indexes: Sequence[int], requests: Sequence[str]) -> list[Instruction]:
        """Open a view over free workers; the first becomes its leader.

        Raises ValueError where one of them is not free.
        """
        if not indexes or not set(indexes) <= set(self.free()) or len(set(indexes)) < len(indexes):
            raise ValueError(f"workers {list(indexes)} are not all free: {self.free()} are")
        self.generation += 1
        members = tuple(self.present[index] for index in indexes)
        view = View(self.generation, members, tuple(requests), self._group_name(members))
        self.views[view.generation] = view
        return [
            Enter(index, rank, view, self._to_forget(index)) for rank, index in enumerate(indexes)
        ]

    def part(self, generation: int, now: float) -> list[Instruction]:
        """End a view at its next boundary."""
        view = self.views.get(generation)
        if view is None or view.parting or view.broken:
            return []
        view.parting = True
        view.deadline = now + self._part_s
        return [AskToPart(view.leader, generation)]

    def entered(self, index: int, generation: int) -> None:
        view = self.view_of(index)
        if view is not None and view.generation == generation:
            view.entered.add(index)

    def left(self, index: int, generation: int, why: Why, now: float) -> list[Instruction]:
        """A member left its view and is free; `broken` where it broke off a step."""
        view = self.view_of(index)
        if view is None or view.generation != generation:
            return []
        return self._leave(view, index, broken=why == "broken", now=now)

    def tick(self, now: float) -> list[Instruction]:
        """Kill who is overdue. The death comes back as `gone`."""
        said: list[Instruction] = []
        for view in self.views.values():
            if view.deadline is None or now < view.deadline:
                continue
            # Members of a view that was asked to part wait for the leader.
            late = set(view.indexes) - view.left if view.broken else {view.leader} - view.left
            view.deadline = now + self._part_s
            said += [
                Kill(index, f"it does not leave generation {view.generation}")
                for index in sorted(late)
                if index in self.present
            ]
        return said

    def next_deadline(self) -> float | None:
        """Return when `tick` next has something to decide."""
        return min(
            (v.deadline for v in self.views.values() if v.deadline is not None), default=None
        )

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        inside = [i for view in self.views.values() for i in set(view.indexes) - view.left]
        assert len(inside) == len(set(inside)), inside
        assert all(view.left < set(view.indexes) for view in self.views.values())
        assert all(generation <= self.generation for generation in self.views)
        assert len(self._unused()) <= CACHED_GROUPS
        alive = set(self.present.values())
        assert all(set(members) <= alive for members in self._cached), self._cached

    # --- in common ----------------------------------------------------------------------------

    def _leave(self, view: View, index: int, broken: bool, now: float) -> list[Instruction]:
        view.left.add(index)
        if broken and not view.broken:
            view.broken = True
            view.deadline = now + self._patience_s
            self._drop_group(view.members)
        if view.left < set(view.indexes):
            return []
        del self.views[view.generation]
        for unused in self._unused()[:-CACHED_GROUPS]:
            self._drop_group(unused)
        return [Closed(view)]

    def _group_name(self, members: tuple[Member, ...]) -> str:
        if len(members) == 1:
            return ""
        name = self._cached.pop(members, None)
        if name is None:
            where = "-".join(f"{member.index}.{member.life}" for member in members)
            name = f"{self.generation}/{where}"
        self._cached[members] = name
        for unused in self._unused(besides=members)[:-CACHED_GROUPS]:
            self._drop_group(unused)
        return name

    def _unused(self, besides: tuple[Member, ...] = ()) -> list[tuple[Member, ...]]:
        """Return groups that no view uses, the longest unused first."""
        in_use = {view.members for view in self.views.values()} | {besides}
        return [members for members in self._cached if members not in in_use]

    def _drop_group(self, members: tuple[Member, ...]) -> None:
        name = self._cached.pop(members, None)
        if name is not None:
            for member in members:
                if self.present.get(member.index) == member:
                    self._forget[member.index].append(name)

    def _to_forget(self, index: int) -> tuple[str, ...]:
        names, self._forget[index] = tuple(self._forget[index]), []
        return names


def survivors(view: View, free: Iterable[int]) -> tuple[int, ...]:
    """Return a closed view's members that live and are free, in rank order."""
    able = set(free)
    return tuple(index for index in view.indexes if index in able)
