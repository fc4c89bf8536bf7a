"""Rank 0 and the ranks that follow it.

    rank 0:  daemon's message --> command to all --> the same action, on every rank
    others:  command --> action --> next command

Alone, rank 0 has nobody to tell. Commands are MessagePack, tensors beside them safetensors.
"""

from typing import Any, cast

import msgspec
from safetensors.torch import load, save
from torch import Tensor

from spotlightd.dit.models import DiffusionModel, PromptEmbeds
from spotlightd.trainer.actions import Actions
from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.update import OnChecked, OnProgress, UpdateReport
from spotlightd.wire.sampling import SamplerSettings
from spotlightd.wire.training import Train


class Update(msgspec.Struct, frozen=True, tag=True):
    message: Train


class Publish(msgspec.Struct, frozen=True, tag=True):
    version: int


class Select(msgspec.Struct, frozen=True, tag=True):
    averages: bool


class Velocity(msgspec.Struct, frozen=True, tag=True):
    """Latents, sigmas and prompts follow."""

    settings: SamplerSettings


class Leave(msgspec.Struct, frozen=True, tag=True):
    pass


Command = Update | Publish | Select | Velocity | Leave


class Crew:
    """Rank 0's hands: each method acts on every rank."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions
        self.policy = actions.policy
        self._averages = False
        self.model = self.policy.model
        """What rollouts are sampled with: all ranks' share of each denoising step."""
        if actions.ranks.count > 1:
            self.model = cast(DiffusionModel, _SharedModel(self))

    def update(
        self,
        message: Train,
        batch: WindowBatch,
        progress: OnProgress,
        checked: OnChecked,
    ) -> UpdateReport:
        """Train on `batch`, which `message` describes and the others load themselves."""
        self._averages = False
        self._tell(Update(message))
        return self.actions.update(batch, message.policy_version, progress, checked)

    def publish(self, version: int) -> None:
        self._averages = False
        self._tell(Publish(version))
        self.actions.publish(version)

    def select(self, averages: bool) -> None:
        """Put the weights' average into the model, or the live weights back."""
        if averages != self._averages:
            self._averages = averages
            with self.actions.ranks.together():
                self._tell(Select(averages))
                self.policy.select(averages)

    def leave(self) -> None:
        """Nothing more will come."""
        self._tell(Leave())

    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """As the model's, by all ranks. Raises SpotlightError where one of them is gone."""
        fields = {name: t for name, t in prompts._asdict().items() if t is not None}
        tensors = {"latents": latents_BLD, "sigma": sigma_B} | {
            f"prompts.{name}": tensor for name, tensor in fields.items()
        }
        with self.actions.ranks.together():
            self._tell(Velocity(settings))
            self.actions.ranks.share(save({k: t.cpu().contiguous() for k, t in tensors.items()}))
            return self.actions.velocity(latents_BLD, sigma_B, prompts, settings)

    def _tell(self, command: Command) -> None:
        self.actions.ranks.share(msgspec.msgpack.encode(command))


class _SharedModel:
    """The model, except that its velocities come from all ranks."""

    def __init__(self, crew: Crew) -> None:
        self.velocity = crew.velocity
        self._model = crew.policy.model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def follow(actions: Actions) -> None:
    """Do what rank 0 does, until it leaves. Every rank but 0 calls this."""
    decoder = msgspec.msgpack.Decoder(Command)
    while True:
        command = decoder.decode(actions.ranks.share())
        match command:
            case Update():
                batch = actions.load(command.message)
                assert batch is not None, "rank 0 trains only where groups have spread"
                actions.update(batch, command.message.policy_version)
            case Publish():
                actions.publish(command.version)
            case Select():
                actions.policy.select(command.averages)
            case Velocity():
                _velocity(actions, command.settings)
            case Leave():
                return


def _velocity(actions: Actions, settings: SamplerSettings) -> None:
    tensors = {k: t.to(actions.ranks.device) for k, t in load(actions.ranks.share()).items()}
    prefix = "prompts."
    prompts = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    actions.velocity(tensors["latents"], tensors["sigma"], PromptEmbeds(**prompts), settings)
