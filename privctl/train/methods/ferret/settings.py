"""The settings of ``privctl retrain ferret``. Imports nothing heavy, as the command builds its options from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.ranges import AMOUNT, CHANCE, DIRECTIONS, Range
from privctl.train.settings.choices import DerivativeMethod
from privctl.train.settings.method_settings import MethodSettings, option

#: The suffix of the stream of updates, which is next to the model.
STREAM_SUFFIX = ".updates.safetensors"
#: The largest log-odds of a true sign that can be requested: e^44 + 1 is below 2^64, and e^45 + 1 is not.
MOST_BIT_EPSILON = 44.0


class ReleaseKind(StrEnum):
    """How derivatives are released.

    ``PUBLISHED`` releases signs as the paper does; ``DITHERED`` the signs of clipped derivatives plus noise;
    ``GAUSSIAN`` adds noise to sums of clipped vectors of derivatives; ``RANDOMIZED_RESPONSE`` flips signs at random.
    """

    PUBLISHED = "published"
    DITHERED = "dithered"
    GAUSSIAN = "gaussian"
    RANDOMIZED_RESPONSE = "randomized-response"


class Publish(StrEnum):
    """Whether the sign (1 bit) or the value (32 bits) of a noisy sum is published; both cost the same privacy."""

    SIGN = "sign"
    VALUE = "value"


class SilentMomentum(StrEnum):
    """What happens to a group that does not fire: COAST, an update with a zero gradient, or HOLD, nothing."""

    COAST = "coast"
    HOLD = "hold"


class UpdateScale(StrEnum):
    """The norm of a group's update: 1 as in the paper, or the square root of its dimension, for entries near 1."""

    UNIT = "unit"
    ROOT_DIMENSION = "root-dimension"


@dataclass(frozen=True, slots=True, kw_only=True)
class FerretSettings(MethodSettings):
    """How tensors are grouped, when groups publish, and what.

    ``groups`` is ``max``, ``eighth`` or a number. ``fire_probability`` None follows from the budget if bare signs are
    published; otherwise it is 1 with several ``directions``, else 1 / groups. With ``directions`` K each group occurs K
    times, each with its own coin flips and its own direction. ``dither`` is the noise's standard deviation / clip norm,
    ``bit_epsilon`` the log-odds of keeping a sign. ``public_seed`` None draws a fresh seed; a given one must not have
    been chosen by looking at the data. Raises ValueError for a dither with a release that has its own noise.
    """

    groups: str = option(
        "max", "Groups of tensors. max: one tensor each; eighth: eight tensors each; or a number of groups."
    )
    release: ReleaseKind = option(
        ReleaseKind.PUBLISHED,
        "How derivatives are released. Published signs have no (epsilon, delta) guarantee.",
        choices=("published", "gaussian", "randomized-response"),
        usual=True,
    )
    fire_probability: float | None = option(
        None, "Chance that a group publishes in a step.  [default: see above]", within=CHANCE
    )
    directions: int = option(
        1, "gaussian: directions along which a group can publish in a step; epsilon is the same.", within=DIRECTIONS
    )
    dither: float | None = option(
        None, "published: noise standard deviation / clip norm, before the sign is taken.", within=AMOUNT
    )
    bit_epsilon: float | None = option(
        None,
        "randomized-response: log-odds of a true sign, instead of --epsilon.",
        within=Range(high=MOST_BIT_EPSILON, open_low=True),
    )
    publish: Publish = option(Publish.SIGN, "gaussian: what is published, the sign or the value.")
    silent: SilentMomentum = option(SilentMomentum.COAST, "What a group's momentum does while it does not publish.")
    update_scale: UpdateScale = option(UpdateScale.UNIT, "L2 norm of a group's update before the optimizer.")
    derivatives: DerivativeMethod = option(
        DerivativeMethod.AUTO,
        "How derivatives are computed; difference needs little more memory than inference.",
        may_change=True,
    )
    public_seed: bytes | None = option(None, "Hexadecimal seed of masks and directions.  [default: a fresh one]")

    def __post_init__(self) -> None:
        MethodSettings.__post_init__(self)
        if self.dither is None:
            return
        if self.release not in (ReleaseKind.PUBLISHED, ReleaseKind.DITHERED):
            raise ValueError(f"--dither does not apply to --release {self.release}, which has its own noise; remove it")
        object.__setattr__(self, "release", ReleaseKind.DITHERED)
