"""The page on mechanisms says of every two options of ``retrain dp-sgd`` whether they can be given together."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.events import Batches
from privctl.train.methods import method_named
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.settings.choices import ClippingStyle
from privctl.train.settings.request import (
    BudgetRequest,
    DataRequest,
    ModelRequest,
    PublicRequest,
    RetrainRequest,
    SecretsRequest,
)
from tests.docs.pages import pages, table

ROWS = table(pages()["mechanisms.md"], "What can be combined")
#: Settings of the method that each option stands for.
SETTINGS: dict[str, dict[str, Any]] = {
    "--bands": {"bands": 2},
    "--buffers": {"buffers": 2},
    "--batches": {"batches": Batches.BALLS_AND_BINS},
    "--largest-batch": {"largest_batch": 100},
    "--target-unclipped-quantile": {"target_unclipped_quantile": 0.5},
    "--max-records-per-user": {"max_records_per_user": 2},
    "--records-per-draw": {"records_per_draw": 2},
    "--search": {"search": "learning-rate=1e-3,1e-4"},
    "--gradient-canaries": {"gradient_canaries": 11},
}
#: Options of all methods: the fields of the request.
SHARED: dict[str, dict[str, Any]] = {
    "--secrets": {"secrets": SecretsRequest(plan=Path("plan"))},
    "--public": {"public": PublicRequest(data=Path("public"))},
    "--clipping": {"clipping": ClippingStyle.PER_LAYER},
}
OPTIONS = [*SETTINGS, *SHARED]


def refused(*options: str) -> bool:
    """Whether the method refuses a request with these options."""
    own: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for option in options:
        own |= SETTINGS.get(option, {})
        shared |= SHARED.get(option, {})
    unit = "user" if {"--max-records-per-user", "--records-per-draw"} & set(options) else None
    method = method_named("dp-sgd")
    request = RetrainRequest(
        method=method,
        settings=DpSgdSettings(**own),
        model=ModelRequest(path=Path("model")),
        data=DataRequest(train=Path("data"), held_out=Path("held-out"), unit=unit),
        budget=BudgetRequest(epsilon=8),
        output=Path("out"),
        batch_size=64,
        epochs=1,
        steps=None,
        learning_rate=1e-3,
        **shared,
    )
    try:
        method.check(request)
    except CommandError:
        return True
    return False


def test_the_table_has_every_option() -> None:
    assert [row["option"].strip("`") for row in ROWS] == OPTIONS
    assert not any(refused(option) for option in OPTIONS)


@pytest.mark.parametrize("option", OPTIONS)
def test_what_the_table_says_is_refused(option: str) -> None:
    (row,) = (row for row in ROWS if row["option"] == f"`{option}`")
    said = re.findall(r"`(--[a-z-]+)`", row["refused with"])
    assert sorted(said) == sorted(other for other in OPTIONS if other != option and refused(option, other))


def test_every_refusal_is_found() -> None:
    """Some pairs are refused and others are not, so the comparison above can fail both ways."""
    found = [refused(*pair) for pair in combinations(OPTIONS, 2)]
    assert 25 < sum(found) < len(found) - 25
