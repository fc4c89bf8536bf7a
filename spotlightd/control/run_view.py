"""A run as its state directory tells it: pages, curves, pictures, money. Reads, never writes.

The daemon asks it in a thread of its own (`Answers`), so that no question about a long run ever
holds up a heartbeat.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from spotlightd.config import Config
from spotlightd.control import api, fleet_view, views
from spotlightd.control.alarms import RECENT, judge, means
from spotlightd.control.rows import ended_runs
from spotlightd.control.timeline import chrome_trace
from spotlightd.errors import InputError, TryAgainError, UsageError
from spotlightd.store.blobs import Blobs
from spotlightd.store.history import History, SampleRow

T = TypeVar("T")

EVALUATED_SHOWN = 200
NO_RUN = "no run goes on here, and none has yet: spotlightctl runs submit CONFIG begins one"


class NotFoundError(UsageError):
    """The address names something that does not exist."""


class RunView:
    """Answers from one state directory; for one thread at a time.

    Raises InputError where there is no run, or it cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._history = History(state_dir)
        self._blobs = Blobs(state_dir / "blobs")

    def close(self) -> None:
        self._history.close()

    def config(self) -> Config:
        rows = self._history.read("SELECT config FROM run")
        if not rows:
            raise NotFoundError(f"{self._state_dir} holds no run yet")
        return msgspec.json.decode(str(rows[0][0]), type=Config)

    # --- trajectories -------------------------------------------------------------------------

    def samples(
        self,
        iteration: int | None = None,
        kind: str | None = None,
        prompt: str | None = None,
        after: int = 0,
        limit: int = 50,
    ) -> views.SamplePage:
        rows, next_after = self._history.samples(iteration, kind, prompt, after, limit)
        return views.SamplePage(samples=tuple(map(_sample, rows)), next_after=next_after)

    def sample(self, request_id: str) -> views.Sample:
        """Raises NotFoundError."""
        return _sample(self._row(request_id))

    def image(self, request_id: str) -> bytes:
        """Return a trajectory's picture as PNG. Raises NotFoundError where none is kept."""
        row = self._row(request_id)
        if not row.image:
            raise NotFoundError(
                f"no image of '{request_id}' is kept: it is {row.state}, or older than the "
                f"iterations whose images are"
            )
        try:
            return self._blobs.get(row.image)
        except InputError as error:
            raise NotFoundError(str(error)) from None

    def _row(self, request_id: str) -> SampleRow:
        row = self._history.sample(request_id)
        if row is None:
            raise NotFoundError(f"no trajectory '{request_id}'; `spotlightctl samples` lists them")
        return row

    def grid(self, after: int | None, offset: int, limit: int) -> views.Grid:
        """Held-out pictures of the first evaluated version beside those of another.

        Args:
            after: the other version; None for the newest that was evaluated.
        """
        train = self.config().rewards.train
        versions = self._history.iterations_with(f"held_out.{train}") or [0]
        chosen = versions[-1] if after is None else after
        first = _by_prompt(self._history.evaluated(versions[0]), train)
        later = _by_prompt(self._history.evaluated(chosen), train) if chosen != versions[0] else {}
        prompts = list(first or later)
        rows = []
        for prompt_id in prompts[offset : offset + limit]:
            request = (first.get(prompt_id) or later[prompt_id])[0][0].request
            rows.append(
                views.GridRow(
                    prompt_id=prompt_id,
                    prompt=request.prompt,
                    target=request.target,
                    before=tuple(cell for _, cell in first.get(prompt_id, ())),
                    after=tuple(cell for _, cell in later.get(prompt_id, ())),
                )
            )
        step = len(versions) // EVALUATED_SHOWN + 1
        return views.Grid(
            before=versions[0],
            after=chosen,
            versions=tuple(sorted({*versions[::step], versions[-1]})),
            prompts=len(prompts),
            rows=tuple(rows),
        )

    # --- figures ------------------------------------------------------------------------------

    def curves(self, names: str, points: int) -> views.Curves:
        """Return metrics over iterations.

        Args:
            names: separated by commas; one that ends with `*` stands for all that begin so.
        """
        known = self._history.metric_names()
        wanted: list[str] = []
        for name in filter(None, names.split(",")):
            begin = name.removesuffix("*")
            wanted += [n for n in known if n == name or (begin != name and n.startswith(begin))]
        curves = tuple(
            views.Curve(
                name=name,
                points=tuple(
                    (p.iteration, p.mean, p.least, p.most)
                    for p in self._history.curve(name, points)
                ),
            )
            for name in dict.fromkeys(wanted)
        )
        return views.Curves(last_iteration=self._history.last_iteration(), curves=curves)

    def metric_names(self) -> list[str]:
        return self._history.metric_names()

    def alarms(self, agents_present: int | None = None) -> list[views.Alarm]:
        rewards = self.config().rewards
        control = f"control.{rewards.train}"
        start = self._history.ends_of(control, 1)[:1]
        first = [self._history.figures(start[0] + i, "") for i in range(RECENT)] if start else []
        reports = [name for name in rewards.names if name != rewards.train]
        return list(
            judge(
                self._history.recent(RECENT),
                means(first),
                rewards.train,
                reports,
                self._history.lost(),
                agents_present,
            )
        )

    def strips(self, since: float | None, seconds: float, slots: int, most: int) -> views.Strips:
        return fleet_view.strips(self._history, since, seconds, slots, most)

    def ledger(self, points: int) -> views.LedgerView:
        return fleet_view.ledger_view(self._history, self.config(), points)

    def timeline(self, since: float | None, seconds: float, limit: int) -> bytes:
        """Return a trace for Perfetto, as JSON. Times as in `strips`."""
        return chrome_trace(self._history, since, seconds, limit)

    def kept_versions(self) -> tuple[int, ...]:
        """Return the adapter versions that can be exported, oldest first."""
        folders = (self._state_dir / "weights").glob("*/adapter.safetensors")
        names = [path.parent.name for path in folders]
        return tuple(sorted(int(name) for name in names if re.fullmatch(r"\d{1,10}", name)))


class Answers:
    """Asks a RunView in one thread of its own.

    Args:
        state_dir: of the run that is asked about; None: there has been none.
        home: folder of a daemon that takes runs, where ended ones are.
    """

    def __init__(self, state_dir: Path | None, home: Path | None = None) -> None:
        self._state_dir = state_dir
        self._home = home
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._view: RunView | None = None

    @property
    def state_dir(self) -> Path:
        """Raises TryAgainError where there has been no run."""
        if self._state_dir is None:
            raise TryAgainError(NO_RUN)
        return self._state_dir

    async def ask(self, question: Callable[[RunView], T]) -> T:
        """Return the answer to a question, which may raise what RunView raises."""
        return await self._in_thread(lambda: question(self._opened()))

    async def ended(self) -> list[api.RunRow]:
        """Return the runs in the daemon's folder, the newest first."""
        home = self._home
        return [] if home is None else await self._in_thread(lambda: ended_runs(home))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _opened(self) -> RunView:
        if self._view is None:
            self._view = RunView(self.state_dir)
        return self._view

    def close(self) -> None:
        """Let the question that is being answered end, then close the database."""
        self._thread.submit(lambda: self._view.close() if self._view else None)
        self._thread.shutdown(wait=True)


def _sample(row: SampleRow) -> views.Sample:
    request = row.request
    return views.Sample(
        request_id=request.request_id,
        kind=request.kind,
        iteration=request.iteration,
        policy_version=request.policy_version,
        prompt_id=request.prompt_id,
        prompt=request.prompt,
        target=request.target,
        seed=str(request.seed),
        state=row.state,
        agent_id=row.agent_id,
        leased_at=row.leased_at,
        gpu_s=row.gpu_s,
        scores=row.scores,
        text=row.text,
        committed_at=row.committed_at,
        resumed_from=row.resumed_from,
        has_image=bool(row.image),
        has_trajectory=bool(row.trajectory),
    )


def _by_prompt(
    rows: list[SampleRow], train: str
) -> dict[str, list[tuple[SampleRow, views.GridCell]]]:
    found: dict[str, list[tuple[SampleRow, views.GridCell]]] = {}
    for row in rows:
        if row.scores is None:
            continue
        cell = views.GridCell(
            request_id=row.request.request_id,
            seed=str(row.request.seed),
            reward=row.scores.get(train, 0.0),
            text=row.text,
            has_image=bool(row.image),
        )
        found.setdefault(row.request.prompt_id, []).append((row, cell))
    return found
