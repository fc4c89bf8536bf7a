"""From the run's settings to requests: which prompts, which seeds, under which sampler settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Literal

import msgspec
import msgspec.structs

from spotlightd.config import Config
from spotlightd.planner.mixing import group_mix
from spotlightd.planner.seeds import (
    derive_seed,
    draw_prompts,
    draw_window,
    evaluation_seed,
    keyed_hash,
    shorten_tail,
)
from spotlightd.planner.selection import Candidate, Selected, select_seeds
from spotlightd.wire.sampling import AVERAGES_FROM, Request, RequestKind, SamplerSettings

Role = Literal["low", "high", "random", "control"]


class GroupMember(msgspec.Struct, frozen=True):
    """One seed of a rollout group."""

    seed: int
    index: int
    """Which candidate of its prompt and iteration it is."""
    role: Role
    stale_scores: dict[str, float] | None = None
    """What exploration with the version before scored; None where it did not finish."""


class GroupPlan(msgspec.Struct):
    """A prompt's seeds in one iteration: candidates to explore, or the group that rolls out."""

    prompt_id: str
    members: list[GroupMember]
    next_index: int
    """The next unused candidate index, for replacements."""
    informative: bool = False
    """Whether exploration told the seeds apart."""
    scored: int = 0
    """Candidates that exploration scored in time."""
    rank_spread: float = 0.0
    """Standard deviation of the ranking score over them."""
    reward_spread: float = 0.0
    """The same of the training reward."""


@dataclass(frozen=True)
class PromptSpec:
    prompt_id: str
    text: str
    target: str


class CyclePlan:
    """What a run asks for: its prompts, seeds and requests, whoever decides how many.

    Args:
        config: sections run, sampler, planner and rewards are read.
        sigmas: the model's sigma array, stored with the run.
        train_prompts, held_out: in file order.
    """

    def __init__(
        self,
        config: Config,
        sigmas: tuple[float, ...],
        train_prompts: Sequence[PromptSpec],
        held_out: Sequence[PromptSpec],
    ) -> None:
        self.config = config
        self.iterations = config.run.iterations
        self.train_reward = config.rewards.train
        self._sigmas = sigmas
        self._prompts = {p.prompt_id: p for p in train_prompts}
        self._held_out = list(held_out)[: config.run.evaluate_prompts]
        planner = config.planner
        self.controls = int(planner.control_fraction * planner.group_size)
        first_end = min(config.sampler.sde_window_starts) + config.sampler.sde_window_size
        self.full_tail = len(sigmas) - 1 - first_end
        """ODE steps after the SDE window, at most."""

    def evaluates_before(self, iteration: int) -> bool:
        every = self.config.run.evaluate_every
        return every > 0 and iteration % every == 0

    def train_rewards(self, rows: Sequence[Mapping[str, float]]) -> list[float]:
        """Return what each rollout of one group trains with, from its scores."""
        if self.train_reward == "mix":
            return group_mix(rows, self.config.rewards.weights)
        return [row[self.train_reward] for row in rows]

    # --- requests -----------------------------------------------------------------------------

    def evaluation(self, version: int) -> list[Request]:
        """ODE samples of the held-out prompts, always with the same seeds.

        Where the trainer keeps an average of the weights, it is the average that is evaluated.
        """
        averaged = AVERAGES_FROM if self.config.trainer.ema_decay else 0
        settings = self._settings(())
        seeds = range(self.config.run.evaluate_seeds)
        return [
            Request(
                f"e{version}-{prompt.prompt_id}-{index}",
                "evaluate",
                version,
                prompt.prompt_id,
                prompt.text,
                prompt.target,
                evaluation_seed(self.config.run.seed, prompt.prompt_id, index),
                averaged + version,
                settings,
            )
            for index in seeds
            for prompt in self._held_out
        ]

    def rollouts(self, groups: Iterable[GroupPlan], iteration: int) -> list[Request]:
        return [
            self._request("rollout", group, member, iteration, policy_version=iteration)
            for group in groups
            for member in group.members
        ]

    def explorations(
        self, groups: Sequence[GroupPlan], iteration: int, version: int, tail: int
    ) -> list[Request]:
        """Candidates by turns over the prompts, so that a stop at any time is fair to all.

        Control seeds have the lowest indices and so are scored first.
        """
        requests = [
            (member.index, self.exploration(group, member, iteration, version, tail))
            for group in groups
            for member in group.members
        ]
        return [request for _, request in sorted(requests, key=lambda item: item[0])]

    def exploration(
        self, group: GroupPlan, member: GroupMember, iteration: int, version: int, tail: int
    ) -> Request:
        """One candidate, scored with `version` and `tail` ODE steps after its window."""
        request = self._request("explore", group, member, iteration, version)
        sampler = request.sampler
        sigmas = shorten_tail(sampler.sigmas, sampler.sde_window, tail)
        return msgspec.structs.replace(
            request, sampler=msgspec.structs.replace(sampler, sigmas=sigmas)
        )

    def explore_id(self, group: GroupPlan, member: GroupMember, iteration: int) -> str:
        return _request_id("explore", iteration, group.prompt_id, member.index)

    def steps_by_tail(self, prompt_id: str, iteration: int, tails: Iterable[int]) -> dict[int, int]:
        """Return a candidate's denoising steps for each tail."""
        window = self._window(prompt_id, iteration)
        return {t: len(shorten_tail(self._sigmas, window, t)) - 1 for t in tails}

    def replacement(self, group: GroupPlan, iteration: int) -> Request:
        """A fresh seed in place of a rollout that failed for good."""
        member = self._member(group.prompt_id, iteration, group.next_index, "random")
        group.members.append(member)
        group.next_index += 1
        return self._request("rollout", group, member, iteration, iteration)

    # --- groups -------------------------------------------------------------------------------

    def candidate_groups(self, iteration: int, count: int) -> list[GroupPlan]:
        """The iteration's prompts with their first `count` candidates each."""
        return [self._fresh_group(p, iteration, count) for p in self._prompts_of(iteration)]

    def next_candidate(self, group: GroupPlan, iteration: int) -> GroupMember:
        """Add a prompt's next candidate to its group."""
        role: Role = "control" if group.next_index < self.controls else "random"
        member = self._member(group.prompt_id, iteration, group.next_index, role)
        group.members.append(member)
        group.next_index += 1
        return member

    def select_groups(
        self,
        iteration: int,
        explored: Sequence[GroupPlan],
        scores: Mapping[str, Mapping[str, float] | None],
    ) -> list[GroupPlan]:
        """Choose each group's seeds from what exploration scored, by request id.

        Without exploration every seed is random, and the first ones are the control seeds.
        """
        if not explored:
            return self.candidate_groups(iteration, self.config.planner.group_size)
        return [self._select_group(group, iteration, scores) for group in explored]

    def _select_group(
        self,
        group: GroupPlan,
        iteration: int,
        scores: Mapping[str, Mapping[str, float] | None],
    ) -> GroupPlan:
        planner = self.config.planner
        stale = {
            m.seed: scores.get(_request_id("explore", iteration, group.prompt_id, m.index))
            for m in group.members
        }
        by_seed = {m.seed: m for m in group.members}
        candidates = [
            Candidate(seed, row.get(planner.rank_by) if row else None)
            for seed, row in stale.items()
        ]
        # Too few candidates were asked for: new ones make the group complete.
        while len(by_seed) < planner.group_size:
            member = self.next_candidate(group, iteration)
            by_seed[member.seed], stale[member.seed] = member, None
            candidates.append(Candidate(member.seed, None))
        # Seeds that were not explored in time are as fresh as new ones.
        fresh = [c.seed for c in candidates[self.controls :] if c.score is None]
        selected, informative = select_seeds(
            candidates,
            fresh,
            planner.group_size,
            self.controls,
            keyed_hash("ties", self.config.run.seed, iteration, group.prompt_id),
        )
        members = [_member_of(choice, by_seed, stale) for choice in selected]
        rows = [row for row in stale.values() if row is not None]
        return GroupPlan(
            group.prompt_id,
            members,
            group.next_index,
            informative,
            len(rows),
            _spread([row[planner.rank_by] for row in rows]),
            _spread([row[self.train_reward] for row in rows]),
        )

    # --- inside -------------------------------------------------------------------------------

    def _prompts_of(self, iteration: int) -> list[str]:
        count = self.config.planner.prompts_per_iteration
        return draw_prompts(self.config.run.seed, iteration, list(self._prompts), count)

    def _fresh_group(self, prompt_id: str, iteration: int, count: int) -> GroupPlan:
        members = [
            self._member(prompt_id, iteration, i, "control" if i < self.controls else "random")
            for i in range(count)
        ]
        return GroupPlan(prompt_id, members, next_index=count)

    def _member(self, prompt_id: str, iteration: int, index: int, role: Role) -> GroupMember:
        seed = derive_seed(self.config.run.seed, iteration, prompt_id, index)
        return GroupMember(seed, index, role)

    def _settings(self, window: tuple[int, ...]) -> SamplerSettings:
        sampler = self.config.sampler
        return SamplerSettings(
            self._sigmas,
            sampler.sde_form,
            sampler.noise_level,
            window,
            sampler.guidance_scale,
            sampler.height,
            sampler.width,
            sampler.num_frames,
        )

    def _request(
        self,
        kind: RequestKind,
        group: GroupPlan,
        member: GroupMember,
        iteration: int,
        policy_version: int,
    ) -> Request:
        prompt = self._prompts[group.prompt_id]
        return Request(
            _request_id(kind, iteration, group.prompt_id, member.index),
            kind,
            iteration,
            prompt.prompt_id,
            prompt.text,
            prompt.target,
            member.seed,
            policy_version,
            self._settings(self._window(group.prompt_id, iteration)),
        )

    def _window(self, prompt_id: str, iteration: int) -> tuple[int, ...]:
        sampler = self.config.sampler
        return draw_window(
            self.config.run.seed,
            iteration,
            prompt_id,
            sampler.sde_window_starts,
            sampler.sde_window_size,
        )


def _spread(values: Sequence[float]) -> float:
    return pstdev(values) if len(values) > 1 else 0.0


def _request_id(kind: RequestKind, iteration: int, prompt_id: str, index: int) -> str:
    letter = {"explore": "x", "rollout": "r", "evaluate": "e"}[kind]
    return f"{letter}{iteration}-{prompt_id}-{index}"


def _member_of(
    choice: Selected,
    by_seed: Mapping[int, GroupMember],
    stale: Mapping[int, Mapping[str, float] | None],
) -> GroupMember:
    row = stale[choice.seed]
    index = by_seed[choice.seed].index
    return GroupMember(choice.seed, index, choice.role, dict(row) if row else None)
