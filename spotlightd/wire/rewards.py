"""How rewards are scored, as it travels from the daemon's configuration to every scorer."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from spotlightd.wire.sampling import Name

HttpFormat = Literal["json", "multipart", "geneval_pickle"]


class RewardOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields are those of the configuration's section `rewards`, which explains them."""

    weights: Annotated[dict[Name, float], Meta(max_length=16)] = field(default_factory=dict)
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    http_url: Annotated[str, Meta(max_length=2000)] = ""
    http_format: HttpFormat = "json"
    http_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    http_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    trust_pickle: bool = False
    clip_score_model: Annotated[str, Meta(max_length=2000)] = ""
    pickscore_model: Annotated[str, Meta(max_length=2000)] = ""
