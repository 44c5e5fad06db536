"""The budget of each secret in nats, from its prior and posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from privctl.accounting.secrets.fano import binary_kl
from privctl.domain.checks import fraction
from privctl.domain.errors import CommandError
from privctl.secrets.table import SecretTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorTarget:
    """``prior``: the largest probability that an adversary gives any value before; ``posterior``: the limit after.

    Raises ValueError unless 0 < prior < posterior < 1.
    """

    prior: float = 0.001
    posterior: float = 0.1

    def __post_init__(self) -> None:
        fraction("prior", self.prior)
        fraction("posterior", self.posterior)
        if self.posterior <= self.prior:
            raise ValueError(f"posterior is {self.posterior!r}; it must be above the prior, {self.prior!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorTargets:
    """The target of a secret: its own in the book, else its kind's, else the ``default``."""

    default: PosteriorTarget = PosteriorTarget()
    by_kind: Mapping[str, PosteriorTarget] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Budgets:
    """For each secret, float64: ``priors``, ``posteriors``, and the budget in ``nats`` that these allow."""

    priors: NDArray[np.float64]
    posteriors: NDArray[np.float64]
    nats: NDArray[np.float64]


def budgets_of(table: SecretTable, targets: PosteriorTargets) -> Budgets:
    """The budget kl(posterior, prior) of every secret (Hush, definition 3.1 and lemma 3.2 with the KL divergence).

    Raises CommandError, naming the secret, if a posterior is not above the prior, and for a target of a kind that no
    secret has.
    """
    unknown = sorted(set(targets.by_kind) - set(table.kinds))
    if unknown:
        raise CommandError(
            f"--target names the kind {unknown[0]!r}, of which the book has no secret; it has "
            + ", ".join(sorted(set(table.kinds))[:8])
        )
    targets_by_secret = [targets.by_kind.get(kind, targets.default) for kind in table.kinds]
    priors = np.where(np.isnan(table.priors), [target.prior for target in targets_by_secret], table.priors)
    posteriors = np.where(
        np.isnan(table.posteriors), [target.posterior for target in targets_by_secret], table.posteriors
    )
    faulty = np.flatnonzero(posteriors <= priors)
    if len(faulty):
        j = int(faulty[0])
        raise CommandError(
            f"the secret {table.ids[j]!r} has the posterior {posteriors[j]:g}, which must be above its prior, "
            f"{priors[j]:g}: change it in the book, or with --posterior or --target"
        )
    nats_by_pair: dict[tuple[float, float], float] = {}
    nats = np.empty(len(table))
    for j, pair in enumerate(zip(posteriors.tolist(), priors.tolist(), strict=True)):
        if pair not in nats_by_pair:
            nats_by_pair[pair] = binary_kl(*pair)
        nats[j] = nats_by_pair[pair]
    return Budgets(priors=priors, posteriors=posteriors, nats=nats)
