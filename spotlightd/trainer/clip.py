"""The clip range in both of its forms.

A log-prob is a mean over D latent elements, so one unit of it is D nats, and a clip range must be
chosen for the latent size (NUMERICS: loss).
"""

from spotlightd.sections import TrainerSection
from spotlightd.wire.sampling import SdeForm

DEFAULT_CLIP_RANGE = 1e-3
"""For the embedded model's 1,024 elements: about 1 nat."""


def resolve_clip_range(section: TrainerSection, latent_elements: int) -> float:
    """Return the clip range of the mean log-prob, from whichever form the run states."""
    if section.clip_range is not None:
        return section.clip_range
    if section.clip_range_nats is not None:
        return section.clip_range_nats / latent_elements
    return DEFAULT_CLIP_RANGE


def describe_clip_range(clip_range: float, latent_elements: int, sde_form: SdeForm) -> str:
    """Return the sentence that the start-up report prints."""
    if sde_form == "flow_cps":
        return (
            f"clip range {clip_range:g} of flow_cps's log-prob, which is a mean squared "
            f"difference and has no unit of nats"
        )
    return (
        f"clip range {clip_range:g} of the mean log-prob over {latent_elements} elements = "
        f"{clip_range * latent_elements:.3g} nats"
    )
