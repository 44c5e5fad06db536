"""The settings of ``privctl retrain ferret``; imports nothing heavy, because the command builds its options of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.ranges import AMOUNT, CHANCE, DIRECTIONS, Range
from privctl.train.settings.choices import DerivativeMethod
from privctl.train.settings.method_settings import MethodSettings, option

#: Of the stream of updates, which lies beside the model.
STREAM_SUFFIX = ".updates.safetensors"
#: The largest log-odds of a true sign on offer: e^44 + 1 is the last such number below 2^64.
MOST_BIT_EPSILON = 44.0


class ReleaseKind(StrEnum):
    """How derivatives are released.

    ``PUBLISHED`` shows the signs as the paper does; ``DITHERED`` those of bounded derivatives with noise; ``GAUSSIAN``
    adds noise to sums of clipped vectors of derivatives; ``RANDOMIZED_RESPONSE`` flips signs at random.
    """

    PUBLISHED = "published"
    DITHERED = "dithered"
    GAUSSIAN = "gaussian"
    RANDOMIZED_RESPONSE = "randomized-response"


class Publish(StrEnum):
    """What of a noisy sum is published; both cost the same privacy, the sign a bit, the value 32."""

    SIGN = "sign"
    VALUE = "value"


class SilentMomentum(StrEnum):
    """What a group that does not fire does: its momentum goes on with a gradient of zero, or nothing happens."""

    COAST = "coast"
    HOLD = "hold"


class UpdateScale(StrEnum):
    """The length of a group's update: 1 as in the paper, or the root of its dimension, so that entries are near 1."""

    UNIT = "unit"
    ROOT_DIMENSION = "root-dimension"


@dataclass(frozen=True, slots=True, kw_only=True)
class FerretSettings(MethodSettings):
    """How groups are cut, when they publish and what.

    ``groups`` is ``max``, ``eighth`` or a number. ``fire_probability`` None follows from the budget where signs are
    published as they are; elsewhere it is 1 with several ``directions``, else 1 / groups. With ``directions`` K each
    group stands K times, and each time fires by coins of its own along a direction of its own. ``dither`` is noise
    standard deviation / clip norm, ``bit_epsilon`` the log-odds of keeping a sign. ``public_seed`` None is drawn
    afresh; the other, where given, must not have been chosen by looking at the data. Raises ValueError for a dither
    that another release has no use for.
    """

    groups: str = option(
        "max", "Groups of tensors. max: each tensor by itself; eighth: eight tensors each; or a number."
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
