"""Derivatives in many groups by one backward pass: when it is chosen, what it checks, and what it leaves to others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import check
from privctl.train.clipping.embedding import Lookup
from privctl.train.directional import Derivatives, FiredGroup, direction, products
from privctl.train.settings.choices import DerivativeMethod
from tests.train.clipping.support import looped
from tests.train.clipping.test_families import gpt2
from tests.train.directional.support import case, groups, product


def test_several_groups_are_asked_for_together() -> None:
    model = gpt2(n_layer=4, tie_word_embeddings=False)
    derivatives = Derivatives(model)
    late = groups(("transformer.h.3.mlp.c_fc.weight",), ("transformer.h.3.mlp.c_proj.weight",))
    every = groups(*((name,) for name, _ in model.named_parameters()))
    for fired in (late, every):
        assert derivatives.choose_method(fired, per_example=True) is DerivativeMethod.PRODUCTS
    assert derivatives.choose_method(late[:1], per_example=True) is not DerivativeMethod.PRODUCTS
    assert derivatives.choose_method(every) is DerivativeMethod.PARTIAL  # a sum has a gradient


def test_many_directions_of_a_tensor_are_the_products_of_its_gradients() -> None:
    """Formed gradients give what products one by one do, and autograd; a tied weight includes both of its uses."""
    setup = case("gpt2")
    names = [name for group in setup.fired for name in group.parameters]
    fired = groups(*((name,) for name in names for _ in range(products._SEVERAL)))
    shapes = {name: setup.model.get_parameter(name).shape for name in names}
    along = [direction(b"many", 0, g.index, {name: shapes[name] for name in g.parameters}) for g in fired]
    found = Derivatives(setup.model, "products").per_example(setup.losses_of, fired, along)
    whole = looped(setup.model, setup.losses, setup.batch)
    expected = torch.tensor([[product(gradients, each) for each in along] for gradients in whole])
    assert torch.allclose(found, expected.double(), rtol=1e-3, atol=1e-5)
    assert len({*found[0].tolist()}) == len(fired), "each along its own direction"


def test_each_parameter_is_compared_with_autograd_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, compared = case("gpt2"), []
    genuine = check.reference

    def counted(losses: Tensor, trainable: Any) -> check.Reference:
        compared.append(set(trainable))
        return genuine(losses, trainable)

    monkeypatch.setattr(check, "reference", counted)
    derivatives = Derivatives(setup.model, "products")
    for fired in (1, 3, 3, 4, 4, 2):
        found = derivatives.per_example(setup.losses_of, setup.fired[:fired], setup.directions()[:fired])
        assert torch.allclose(found, setup.expected()[:, :fired], rtol=1e-3, atol=1e-5)
    assert len(compared) == 3, "with one, three and four groups"


def test_a_forgotten_use_of_a_tied_weight_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("gpt2")
    genuine = products.product

    def without_lookups(term: Any, along: Tensor) -> Tensor:
        found = genuine(term, along)
        return torch.zeros_like(found) if isinstance(term, Lookup) else found

    monkeypatch.setattr(products, "product", without_lookups)
    found = Derivatives(setup.model, "products").per_example(setup.losses_of, setup.fired, setup.directions())
    assert not torch.allclose(found, setup.expected(), rtol=0.1)


class Borrowing(nn.Module):
    """Uses the weight of a child outside the child."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(rows @ self.first.weight + self.first(rows))


def test_a_weight_used_outside_its_module_is_left_to_other_methods() -> None:
    torch.manual_seed(0)
    model, rows = Borrowing(), torch.randn(4, 3)
    fired = [FiredGroup(index=i, parameters=(name,)) for i, name in enumerate(("first.weight", "last.weight"))]
    along = [direction(b"test", 0, g.index, {n: model.get_parameter(n).shape for n in g.parameters}) for g in fired]

    def losses_of() -> Tensor:
        return model(rows).square().sum(1)

    expected = Derivatives(model, "backward").per_example(losses_of, fired, along)
    with pytest.raises(InputError, match="take the method partial or difference"):
        Derivatives(model, "products").per_example(losses_of, fired, along)
    derivatives = Derivatives(model)
    assert torch.allclose(derivatives.per_example(losses_of, fired, along), expected, rtol=1e-4)
    assert derivatives.choose_method(fired, per_example=True) is not DerivativeMethod.PRODUCTS
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
