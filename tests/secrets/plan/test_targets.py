"""From priors and posteriors to nats (docs/papers.md#protection-of-a-secret), and which target is whose."""

import math

import numpy as np
import pytest

from privctl.domain.errors import CommandError
from privctl.secrets.plan.targets import PosteriorTarget, PosteriorTargets, budgets_of
from privctl.secrets.table import Secret, SecretTable, table_of


def table(*rows: tuple[str, float | None, float | None]) -> SecretTable:
    return table_of(
        Secret(id=f"s{j}", kind=kind, records=np.array([j]), prior=prior, posterior=posterior)
        for j, (kind, prior, posterior) in enumerate(rows)
    )


@pytest.mark.parametrize(
    ("posterior", "prior", "nats"),
    [(0.1, 0.001, 0.366593004807), (0.5, 0.01, 1.614463080361), (0.02, 0.001, 0.041096482627)],
)
def test_a_posterior_target_becomes_a_budget_in_nats(posterior: float, prior: float, nats: float) -> None:
    found = budgets_of(table(("a", prior, posterior)), PosteriorTargets())
    assert found.nats[0] == pytest.approx(nats, abs=1e-12)


def test_a_secrets_own_target_goes_before_its_kinds_and_that_before_the_default() -> None:
    targets = PosteriorTargets(
        default=PosteriorTarget(prior=0.01, posterior=0.1), by_kind={"b": PosteriorTarget(prior=0.02, posterior=0.2)}
    )
    found = budgets_of(table(("a", None, None), ("b", None, None), ("b", 0.001, None), ("b", None, 0.5)), targets)
    assert found.priors.tolist() == [0.01, 0.02, 0.001, 0.02]
    assert found.posteriors.tolist() == [0.1, 0.2, 0.2, 0.5]


@pytest.mark.parametrize(("prior", "posterior"), [(0.2, 0.1), (0.1, 0.1), (0.5, None)])
def test_a_posterior_below_the_prior_names_the_secret(prior: float, posterior: float | None) -> None:
    with pytest.raises(CommandError, match="'s1' has the posterior"):
        budgets_of(table(("a", None, None), ("a", prior, posterior)), PosteriorTargets())


def test_a_kind_that_nobody_is_of_is_a_mistake() -> None:
    with pytest.raises(CommandError, match="'emial'.*it has a"):
        budgets_of(table(("a", None, None)), PosteriorTargets(by_kind={"emial": PosteriorTarget()}))


@pytest.mark.parametrize("pair", [(0.0, 0.1), (0.1, 1.0), (math.nan, 0.5), (0.3, 0.2)])
def test_targets_are_checked(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="prior|posterior"):
        PosteriorTarget(prior=pair[0], posterior=pair[1])
