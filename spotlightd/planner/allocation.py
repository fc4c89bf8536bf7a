"""Which prompt gets the next candidate: the one whose group gains most variance per GPU-second.

Anytime and sequential. A prompt's spread is learned while its candidates are scored, and w(N, K)
grows with N ever more slowly, so that taking the largest next gain is also the best allocation
as a whole (greedy is exact for sums of concave gains).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
from msgspec import Struct

from spotlightd.planner.estimators import Running
from spotlightd.planner.variance import next_gain

PRIOR_SCORES = 4.0
"""How many scores the prompt's remembered spread is worth."""
PATIENCE = 4
"""Times the group size that a prompt may score all-equal before it is called uninformative."""
SAME = 1e-8
PROMPTS_KEPT = 512
PER_VISIT = 0.5
"""Discount of a prompt's spread per visit: the policy moved on meanwhile."""


@dataclass
class PromptProgress:
    """One prompt's exploration in this iteration."""

    prompt_id: str
    steps: int
    """Denoising steps of its candidates."""
    prior_variance: float
    """Of the training reward between its seeds, before anything was scored."""
    patience: int
    """Scores after which all-equal ones are believed."""
    issued: int = 0
    """Candidates that were asked for."""
    count: int = 0
    """Candidates that were scored; the rest describes their training reward."""
    mean: float = 0.0
    scatter: float = 0.0
    """Sum of squared deviations from the mean."""
    lowest: float = math.inf
    highest: float = -math.inf
    variance: float = field(init=False)
    """Estimate of the reward's variance between seeds."""
    all_equal: bool = field(default=False, init=False)
    """At least two scores, and no difference between any."""

    def __post_init__(self) -> None:
        self.variance = self._variance()

    def score(self, reward: float) -> None:
        self.count += 1
        shift = reward - self.mean
        self.mean += shift / self.count
        self.scatter += shift * (reward - self.mean)
        self.lowest, self.highest = min(self.lowest, reward), max(self.highest, reward)
        self.variance = self._variance()
        self.all_equal = self.count > 1 and self.highest - self.lowest <= SAME

    @property
    def uninformative(self) -> bool:
        return self.all_equal and self.count >= self.patience

    def _variance(self) -> float:
        scatter = PRIOR_SCORES * self.prior_variance + self.scatter
        return scatter / (PRIOR_SCORES + max(self.count - 1, 0))


class Spreads(Struct):
    """What earlier iterations showed of each prompt's reward variance between its seeds."""

    pooled: Running = msgspec.field(default_factory=Running)
    by_prompt: dict[str, Running] = msgspec.field(default_factory=dict)
    """The latest `PROMPTS_KEPT`, oldest first."""
    flat: dict[str, int] = msgspec.field(default_factory=dict)
    """By prompt: scores that were all equal, over its explorations in a row."""

    def observe(self, prompt_id: str, variance: float) -> None:
        self.pooled.observe(variance, 0.95)
        known = self.by_prompt.pop(prompt_id, None) or Running()
        known.observe(variance, PER_VISIT)
        self.by_prompt[prompt_id] = known
        while len(self.by_prompt) > PROMPTS_KEPT:
            self.by_prompt.pop(next(iter(self.by_prompt)))

    def explored(self, progress: PromptProgress) -> None:
        if progress.all_equal:
            self.flat[progress.prompt_id] = self.flat.get(progress.prompt_id, 0) + progress.count
        elif progress.count > 1:
            self.flat.pop(progress.prompt_id, None)

    def start(self, prompt_id: str, steps: int, group_size: int) -> PromptProgress:
        """Begin a prompt's exploration; equal scores of earlier ones have cost it patience."""
        pooled = self.pooled.mean if self.pooled.weight else 1.0
        known = self.by_prompt.get(prompt_id)
        patience = max(PATIENCE * group_size - self.flat.get(prompt_id, 0), group_size)
        return PromptProgress(prompt_id, steps, known.mean if known else pooled, patience)


def next_prompt(
    prompts: Iterable[PromptProgress],
    group_size: int,
    controls: int,
    fidelity: float,
    most: int,
) -> tuple[PromptProgress | None, float]:
    """Return the prompt whose next candidate is worth most, and that gain in variance.

    Until each prompt has its K, they come by turns. A prompt whose scores were all equal so far
    counts as if its spread were the largest of all: only more seeds can show whether it has
    any, and a group without spread teaches nothing. When its patience is at an end it gets no
    more.

    Args:
        most: candidates that a prompt gets at most.

    Returns:
        (None, 0) where nothing more is to be gained.
    """
    prompts = list(prompts)
    first = min(prompts, key=attrgetter("issued"), default=None)
    if first is not None and first.issued < group_size:
        return first, float("inf")
    largest = max((p.variance for p in prompts), default=0.0)
    best, best_worth, best_gain = None, 0.0, 0.0
    for prompt in prompts:
        if prompt.issued >= most:
            continue
        variance = prompt.variance
        if prompt.all_equal:
            if prompt.count >= prompt.patience:
                continue
            variance = largest
        gain = variance * next_gain(prompt.issued, group_size, controls, fidelity)
        if gain / prompt.steps > best_worth:
            best, best_worth, best_gain = prompt, gain / prompt.steps, gain
    return best, best_gain
