"""FERRET: signs of derivatives along public random directions, noised or as published."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privctl.domain.events import Batches, Event, Ledger, RandomizedResponse, SampledGaussian, SignBits
from privctl.domain.guarantee import Guarantee, Notion
from privctl.domain.mechanism import Mechanism
from privctl.domain.report import PrivacyReport
from verify.compare import ROUNDING, compare, shown
from verify.methods.expected import ExpectedMethod, StatedTraining, of_poisson_batches
from verify.texts.accountants import RENYI, TIGHT
from verify.texts.assumptions import TESTED
from verify.texts.warnings.forms import ONE_RUN, OWNER, form

#: The most coins (a GiB of keystream) and the most steps whose coins are recomputed.
MOST_COINS, MOST_STEPS = 1 << 27, 1 << 20
#: The most groups that are listed if all of them publish in each step.
MOST_GROUPS = 1 << 22
#: The number of the keystream that holds the coins, and the counter of its first block (NIST SP 800-38D, 7.1).
_LANE, _FIRST = 3, 2


_DERIVATIVES = ("backward", "partial", "forward", "products", "difference")
_PUBLISHED, _GAUSSIAN, _RESPONSES, _DITHERED = "published", "gaussian", "randomized-response", "dithered"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTraining(StatedTraining):
    """The parameters of FERRET; ``fired`` counts the chances at which a group published, in ``fired_steps`` steps.

    A group has one chance for each of its ``directions`` in each step. Steps in which no group published do not count.
    """

    release: str
    steps: int
    sample_rate: float
    fired: int
    fired_steps: int
    number_of_groups: int
    fire_probability: float
    fired_by_group: tuple[int, ...] | None = None
    publish: str | None = None
    groups: str | None = None
    directions: int = 1
    group_sizes: tuple[int, ...] = ()
    public_seed: str | None = None
    lost_steps: tuple[tuple[int, ...], ...] = ()
    batches: str | None = None
    bit_epsilon: float | None = None
    update_scale: str | None = None
    silent: str | None = None
    derivatives: str | None = None
    derivatives_by: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCounts:
    """How often each group publishes, and in how many steps a number of groups publishes ``together``."""

    by_group: tuple[int, ...]
    together: Counter[int]


@lru_cache(maxsize=8)
def publish_counts(seed: str, groups: int, chance: float, steps: int) -> PublishCounts | None:
    """Counts which of ``groups`` groups publish in ``steps`` steps, by the coins of the public ``seed``.

    A coin is the next 64-bit word of its step's keystream; the group publishes if it is below ``chance`` * 2^64.
    Returns None if the coins are too many. Raises ValueError for a ``seed`` that is not hexadecimal.
    """
    import numpy as np  # imported here because a gate over audits must not load it

    key = hashlib.sha256(b"privctl ferret masks" + bytes.fromhex(seed)).digest()
    if chance == 1 and 1 <= groups <= MOST_GROUPS and steps >= 1:  # whatever the coins are
        return PublishCounts(by_group=(steps,) * groups, together=Counter({groups: steps}))
    if not (groups >= 1 and 1 <= steps <= MOST_STEPS and groups * steps <= MOST_COINS and 0 < chance < 1):
        return None
    limit, by_group, together = np.uint64(int(chance * 2.0**64)), np.zeros(groups, np.int64), Counter[int]()
    for step in range(steps):
        counter = _LANE << 120 | step << 80 | _FIRST
        stream = Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
        fell = np.frombuffer(stream.update(bytes(8 * groups)), "<u8") < limit
        if number := int(fell.sum()):
            by_group += fell
            together[number] += 1
    return PublishCounts(by_group=tuple(by_group.tolist()), together=together)


def _disagreements(mechanism: Mechanism | None, parameters: SignTraining) -> Iterator[str]:
    if parameters.fired_by_group is not None:
        yield from compare("fired", parameters.fired, sum(parameters.fired_by_group), "the groups together fired")
    if parameters.directions < 1:
        yield f"directions is {parameters.directions}; a group has one at least"
        return
    yield from _of_release(parameters)
    yield from _coins(mechanism, parameters)
    yield from _directions(parameters)
    if isinstance(mechanism, SignBits):
        yield from _published(mechanism, parameters)
    if isinstance(mechanism, Ledger):
        yield from _noised(mechanism, parameters)


def _coins(mechanism: Mechanism | None, parameters: SignTraining) -> Iterator[str]:
    """Compares the counts with the public seed, which decides who publishes in which step."""
    if parameters.public_seed is None:
        yield "it states no public seed, from which it follows which groups published"
        return
    found = _publish_counts(parameters)
    if found is None:
        return  # reported by ``_too_many_coins``
    source = "by the coins of the public seed it is"
    yield from compare("fired", parameters.fired, sum(found.by_group), source)
    yield from compare("fired_steps", parameters.fired_steps, found.together.total(), source)
    directions = parameters.directions
    by_group = tuple(
        sum(found.by_group[start : start + directions]) for start in range(0, len(found.by_group), directions)
    )
    if parameters.fired_by_group is not None and tuple(parameters.fired_by_group) != by_group:
        yield "fired_by_group is not what the coins of the public seed give"
    if isinstance(mechanism, Ledger) and parameters.release != _GAUSSIAN:
        together = Counter[int]()
        for event in mechanism.events:
            together[_values(event, parameters)] += event.steps
        if together != found.together:
            yield "how many groups the ledger has in a step is not what the coins of the public seed give"


def _publish_counts(parameters: SignTraining) -> PublishCounts | None:
    """The counts for each group, or for each direction of each group in order."""
    coins = parameters.number_of_groups * max(1, parameters.directions)
    return publish_counts(parameters.public_seed or "", coins, parameters.fire_probability, parameters.steps)


def _too_many_coins(parameters: SignTraining) -> Iterator[str]:
    """Yields a sentence if there are too many coins to recompute."""
    if _publish_counts(parameters) is None:
        coins = parameters.number_of_groups * parameters.directions * parameters.steps
        yield f"the public seed has {coins} coins in {parameters.steps} steps, more than are tossed again"


def _of_release(parameters: SignTraining) -> Iterator[str]:
    """The settings of one release must not be stated for another, and groups and methods must be such as a run has."""
    noised, answered = parameters.release in (_GAUSSIAN, _DITHERED), parameters.release == _RESPONSES
    applies = {
        "noise_multiplier": noised,
        "clipping": noised,
        "bit_epsilon": answered,
        "noise_source": noised or answered,
    }
    for name, applicable in applies.items():
        if (getattr(parameters, name) is not None) is not applicable:
            stated = "is not stated" if applicable else "is stated"
            yield f"parameter {name} {stated}, and the release is {parameters.release}"
    if parameters.publish not in (None, "sign") and parameters.release != _GAUSSIAN:
        yield f"parameter publish is {shown(parameters.publish)}, and the release {parameters.release} publishes signs"
    groups = parameters.groups
    if groups is not None and groups not in ("max", "eighth") and not groups.isdecimal():
        yield f"parameter groups is {shown(groups)}, which is no way to make groups of tensors"
    if odd := sorted((parameters.derivatives_by or {}).keys() - set(_DERIVATIVES)):
        yield f"derivatives are said to have been found by {shown(odd[0])}, which is no way of privctl"
    if any(count < 0 for count in (parameters.derivatives_by or {}).values()):
        yield "derivatives_by states a number of steps below 0"


def _directions(parameters: SignTraining) -> Iterator[str]:
    """Checks that the stated number of publications is possible, and that the release allows several directions."""
    directions, release = parameters.directions, parameters.release
    if directions > 1 and release != _GAUSSIAN:
        yield f"directions is {directions}, and the release {release!r} has one"
    most = parameters.number_of_groups * directions * parameters.fired_steps
    if parameters.fired > most:
        yield f"fired is {parameters.fired}, and {parameters.fired_steps} steps have {most} chances in which any fired"
    if parameters.fire_probability == 1:
        yield from compare("fired", parameters.fired, most, "at fire probability 1 all chances are taken, of")


def _published(mechanism: SignBits, parameters: SignTraining) -> Iterator[str]:
    """Compares the mechanism of published signs with the parameters."""
    yield from compare("release", parameters.release, _PUBLISHED, "signs as they are is")
    for name, in_mechanism, key, in_parameters in (
        ("groups", mechanism.groups, "number_of_groups", parameters.number_of_groups * parameters.directions),
        ("fire_probability", mechanism.fire_probability, "fire_probability", parameters.fire_probability),
        ("sample_rate", mechanism.sample_rate, "sample_rate", parameters.sample_rate),
        ("steps", mechanism.steps, "steps", parameters.steps),
    ):
        yield from compare(f"mechanism's {name}", in_mechanism, in_parameters, f"parameter {key} says")


def _noised(ledger: Ledger, parameters: SignTraining) -> Iterator[str]:
    """Compares the ledger with the steps in which groups published and with how many published in each."""
    total = sum(event.steps for event in ledger.events)
    yield from compare("number of steps in the ledger", total, parameters.fired_steps, "fired_steps says")
    values = 0
    for event in ledger.events:
        yield from _event(event, parameters)
        values += _values(event, parameters) * event.steps
    kinds = {type(event) for event in ledger.events}
    if kinds != {RandomizedResponse if parameters.release == _RESPONSES else SampledGaussian}:
        yield f"the ledger's events are not those of the release {parameters.release!r}"
    if parameters.release != _GAUSSIAN:
        yield from compare("number of values in the ledger", values, parameters.fired, "fired says")


def _event(event: Event, parameters: SignTraining) -> Iterator[str]:
    if isinstance(event, (SampledGaussian, RandomizedResponse)):
        yield from compare("rate in the ledger", event.sample_rate, parameters.sample_rate, "the parameters say")
    if isinstance(event, RandomizedResponse):
        yield from compare("log-odds in the ledger", event.epsilon, parameters.bit_epsilon, "bit_epsilon says")
    if isinstance(event, SampledGaussian):
        yield from of_poisson_batches(event)
        noise, found = parameters.noise_multiplier, event.noise_multiplier
        if parameters.release == _GAUSSIAN:
            yield from compare("noise multiplier in the ledger", found, noise, "the parameters say")
        elif noise is not None:
            wanted = noise / (2 * math.sqrt(max(1, _values(event, parameters))))
            if not math.isclose(found, wanted, rel_tol=ROUNDING):
                yield f"noise multiplier {found:g} in the ledger is not {noise:g} / (2 sqrt(a number of groups))"


def _values(event: Event, parameters: SignTraining) -> int:
    """How many groups published together in each of the event's steps."""
    if isinstance(event, RandomizedResponse):
        return event.bits
    if not isinstance(event, SampledGaussian) or parameters.noise_multiplier is None:
        return 0
    return round((parameters.noise_multiplier / (2 * event.noise_multiplier)) ** 2)


def _premises(parameters: SignTraining, guarantee: Guarantee) -> Iterator[str]:
    if guarantee.notion is not Notion.MUTUAL_INFORMATION:
        yield "public masks"
    elif parameters.batches != Batches.POISSON:
        yield "whole passes"


def _signs(parameters: SignTraining) -> SignBits:
    """The published signs, one bit each with or without noise. Raises ValueError for numbers that no run has."""
    return SignBits(
        groups=parameters.number_of_groups * parameters.directions,
        fire_probability=parameters.fire_probability,
        sample_rate=parameters.sample_rate,
        steps=parameters.steps,
    )


def _unbounded(parameters: SignTraining, adaptive: bool) -> str:
    if adaptive and parameters.silent == "coast":
        return ""
    return "no bound is derived here for these updates; privctl retrain ferret --replay makes them again"


_AVERAGE = form(
    "signs as published have no (epsilon, delta) guarantee: the nats are an average over the data, and one record that "
    "decides the sign of its batch shows itself; --release gaussian has a guarantee at the same cost in time"
)
_UNTESTED = form(
    "derivatives were found by differences that could be compared with no backward pass, so nothing tells whether "
    "their signs are right"
)


def _warned(report: PrivacyReport, _: SignTraining) -> Iterator[str]:
    yield OWNER
    if isinstance(report.mechanism, (SignBits, Ledger)):
        yield _AVERAGE if isinstance(report.mechanism, SignBits) else ONE_RUN


EXPECTED = ExpectedMethod(
    parameters=SignTraining,
    mechanisms=(Ledger, SignBits, NoneType),
    disagreements=_disagreements,
    premises=_premises,
    statements={
        "contribution": (
            f"one example changes each derivative by twice the clip norm at most: all are brought within it{TESTED}",
            f"one example may turn every sign of the batches it is in, and no other{TESTED}",
        ),
    },
    accountants={"ferret, .+, Renyi DP": RENYI, "ferret, [a-z-]+": TIGHT},
    warnings={"average case": _AVERAGE, "untested differences": _UNTESTED},
    warned=_warned,
    choices={
        "release": (_PUBLISHED, _GAUSSIAN, _RESPONSES, _DITHERED),
        "clipping": ("derivatives",),
        "publish": ("sign", "value"),
        "silent": ("coast", "hold"),
        "update_scale": ("unit", "root-dimension"),
        "derivatives": ("auto", *_DERIVATIVES),
    },
    released=lambda parameters: parameters.fired,
    signs=_signs,
    # These releases bound the change of a whole batch's signs, whatever is clipped.
    unclipped=lambda parameters: parameters.release in (_RESPONSES, _DITHERED),
    unbounded=_unbounded,
    undecided=_too_many_coins,
)
