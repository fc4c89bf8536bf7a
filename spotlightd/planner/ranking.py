"""`allocation.next_prompt` kept up as prompts change, for many prompts and many candidates."""

import heapq
import math
from collections.abc import Iterable

from spotlightd.planner.allocation import PromptProgress, step_gain

Row = tuple[float, int, int]
"""(key, place of the prompt, mark): the least key comes first, then the first prompt."""


class Ranking:
    """Prompts by what their next candidate is worth.

    Whoever changes a prompt says so (`issued`, `scored`). Rows of heaps are never taken out of the
    middle: a prompt's mark rises with each change, and rows with an older one are void.

    Invariant (see `validate`): each prompt has one row that is not void in `_spreads`; in `_turns`
    while it has fewer candidates than its group; and in `_equal` or `_unequal`, by whether all its
    scores were equal so far, while it may get more than those.
    """

    def __init__(
        self, prompts: Iterable[PromptProgress], group_size: int, controls: int, most: int
    ) -> None:
        self.group_size, self.controls = group_size, controls
        self._prompts = list(prompts)
        self._place = {prompt.prompt_id: i for i, prompt in enumerate(self._prompts)}
        self._variances = [prompt.variance() for prompt in self._prompts]
        self._sum, self._moves = math.fsum(self._variances), 0
        self._spreads: list[Row] = [(-v, i, 0) for i, v in enumerate(self._variances)]
        heapq.heapify(self._spreads)
        self._spread_marks = [0] * len(self._prompts)
        self._most = most
        self._marks = [0] * len(self._prompts)
        self._turns: list[Row] = []
        self._equal: list[Row] = []
        self._unequal: list[Row] = []
        self._rank_all()

    @property
    def total_variance(self) -> float:
        """The sum of all prompts' variances."""
        return self._sum

    def limit(self, most: int) -> None:
        """From now on a prompt gets so many candidates at most."""
        if most != self._most:
            self._most = most
            self._rank_all()

    def issued(self, prompt: PromptProgress) -> None:
        """The number of the prompt's candidates has changed."""
        self._rank(self._place[prompt.prompt_id])

    def scored(self, prompt: PromptProgress) -> None:
        """The prompt has another score."""
        place = self._place[prompt.prompt_id]
        before, now = self._variances[place], prompt.variance()
        if now != before:
            self._variances[place] = now
            self._spread_marks[place] += 1
            heapq.heappush(self._spreads, (-now, place, self._spread_marks[place]))
            self._sum, self._moves = self._sum + now - before, self._moves + 1
            if self._moves >= len(self._prompts):
                # Differences add up to rounding errors, which must not.
                self._sum, self._moves = math.fsum(self._variances), 0
        self._rank(place)

    def best(self, fidelity: float) -> tuple[PromptProgress | None, float]:
        """Return what `next_prompt` would."""
        turn = _first(self._turns, self._marks)
        if turn is not None:
            return self._prompts[turn[1]], math.inf
        spread = _first(self._spreads, self._spread_marks)
        largest = 0.0 if spread is None else -spread[0]
        equal, unequal = _first(self._equal, self._marks), _first(self._unequal, self._marks)
        rows = [(largest * equal[0], equal[1])] if equal is not None else []
        rows += [unequal[:2]] if unequal is not None else []
        worth, place = min(rows, default=(0.0, 0))
        gain = -worth * fidelity**2 * self._prompts[place].steps if rows else 0.0
        return (self._prompts[place], gain) if gain > 0 else (None, 0.0)

    def _rank_all(self) -> None:
        self._turns, self._equal, self._unequal = [], [], []
        for place in range(len(self._prompts)):
            self._rank(place)

    def _rank(self, place: int) -> None:
        prompt = self._prompts[place]
        self._marks[place] += 1
        mark = self._marks[place]
        if prompt.issued < self.group_size:
            heapq.heappush(self._turns, (prompt.issued, place, mark))
        if self._open(prompt):
            gain = step_gain(prompt.issued, self.group_size, self.controls) / prompt.steps
            if prompt.all_equal:
                heapq.heappush(self._equal, (-gain, place, mark))
            else:
                heapq.heappush(self._unequal, (-gain * self._variances[place], place, mark))

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self._variances == [prompt.variance() for prompt in self._prompts]
        assert math.isclose(self._sum, math.fsum(self._variances), abs_tol=1e-6)
        valid = {p for _, p, mark in self._spreads if mark == self._spread_marks[p]}
        assert valid == set(range(len(self._prompts)))
        for heap, wanted in (
            (self._turns, lambda p: p.issued < self.group_size),
            (self._equal, lambda p: self._open(p) and p.all_equal),
            (self._unequal, lambda p: self._open(p) and not p.all_equal),
        ):
            places = [p for _, p, mark in heap if mark == self._marks[p]]
            assert sorted(places) == [i for i, p in enumerate(self._prompts) if wanted(p)]

    def _open(self, prompt: PromptProgress) -> bool:
        return prompt.issued < self._most and not prompt.uninformative


def _first(heap: list[Row], marks: list[int]) -> Row | None:
    """Return the first row that is not void; void ones before it are dropped."""
    while heap and heap[0][2] != marks[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0] if heap else None
