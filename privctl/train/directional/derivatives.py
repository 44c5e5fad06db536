"""Directional derivatives of a batch's losses in the fired groups, by the cheapest method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.parallel import is_out_of_memory
from privctl.train.clipping import rules
from privctl.train.directional import cost, reverse
from privctl.train.directional.difference import STEP, difference_by_example
from privctl.train.directional.forward import forward_by_example
from privctl.train.directional.passes import Losses, Randomness
from privctl.train.directional.products import Products
from privctl.train.directional.queries import DirectionalQuery, FiredGroup, MethodUnavailableError, queries_for
from privctl.train.settings.choices import DerivativeMethod


class Derivatives:
    """Computes <g, u> for directions u in some tensors of ``network``, for a batch or for each of its examples.

    The network is restored: its weights bit for bit, ``requires_grad`` and every ``grad``; the random state is that
    after one forward pass. All results of a call belong to the same losses, with the same dropout. Parameters need not
    require a gradient. A tied weight is given by its first name, and all its uses are included.

    ``method`` AUTO takes the fastest, see ``choose_method``, and if memory runs out the next, down to finite
    differences, which need little more memory than inference. ``step`` is the step of differences relative to the
    weights.
    """

    def __init__(
        self, network: nn.Module, method: DerivativeMethod | str = DerivativeMethod.AUTO, *, step: float = STEP
    ) -> None:
        """Raises InputError for an unknown method or a step that is not between 0 and 1."""
        if method not in tuple(DerivativeMethod):
            raise InputError(f"the method {method!r} is not one of {', '.join(DerivativeMethod)}; choose one of these")
        if not 0 < step < 1:
            raise InputError(f"the step of differences is {step}; choose a step between 0 and 1, such as {STEP}")
        self.network, self.method, self.step = network, DerivativeMethod(method), step
        self._products = Products(network)
        #: Methods that failed, each with whether the call was per example.
        self._failed: set[tuple[DerivativeMethod, bool]] = set()

    def batch(
        self, losses_of: Losses, fired: Sequence[FiredGroup], directions: Sequence[Mapping[str, Tensor]]
    ) -> Tensor:
        """For each group, the sum over the batch of <gradient of the example's loss, u>, (fired,) float64.

        ``losses_of`` runs the network on a batch and returns losses (n,) in nats, n > 0; it is not called if there are
        no groups. Raises InputError for what the network or its parameters do not support. Does not check that losses
        are finite.
        """
        queries = queries_for(self.network, fired, directions)
        if not queries:
            return torch.zeros(0, dtype=torch.float64)

        def by_method(method: DerivativeMethod) -> Tensor:
            match method:
                case DerivativeMethod.BACKWARD:
                    return reverse.backward(self.network, losses_of, queries)
                case DerivativeMethod.PARTIAL:
                    return reverse.partial(self.network, losses_of, queries)
            return self._by_example(method, losses_of, queries).sum(0)

        return self._by_best_method(by_method, fired, per_example=False)

    def per_example(
        self, losses_of: Losses, fired: Sequence[FiredGroup], directions: Sequence[Mapping[str, Tensor]]
    ) -> Tensor:
        """For each example and group, <gradient of the example's loss, u>, (n, fired) float64; see ``batch``.

        ``fired`` must not be empty. Raises InputError also for a network in which examples share statistics.
        """
        if not fired:
            raise ValueError("no group fired; there is nothing to differentiate by")
        queries = queries_for(self.network, fired, directions)
        for name, module in self.network.named_modules():
            rules.check(name, module, trained=False)
        return self._by_best_method(
            lambda method: self._by_example(method, losses_of, queries), fired, per_example=True
        )

    def choose_method(self, fired: Sequence[FiredGroup], *, per_example: bool = False) -> DerivativeMethod:
        """The method for these groups: the user's choice or, for AUTO, the best ranked that has not failed."""
        return self._candidates(fired, per_example=per_example)[0]

    def _candidates(self, fired: Sequence[FiredGroup], *, per_example: bool) -> list[DerivativeMethod]:
        if self.method is not DerivativeMethod.AUTO:
            return [self.method]
        ranking = cost.rank_methods(self.network, [group.parameters for group in fired], per_example=per_example)
        return [method for method in ranking if (method, per_example) not in self._failed] or ranking[-1:]

    def _by_best_method(
        self, by_method: Callable[[DerivativeMethod], Tensor], fired: Sequence[FiredGroup], *, per_example: bool
    ) -> Tensor:
        """The result of the best method that the network supports and memory allows; remembers those that fail."""
        randomness = Randomness(next(self.network.parameters()).device)
        *others, last = self._candidates(fired, per_example=per_example)
        for method in others:
            try:
                return by_method(method)
            except MethodUnavailableError:
                pass
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._failed.add((method, per_example))
            randomness.rewind()
        return by_method(last)

    def _by_example(self, method: DerivativeMethod, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
        match method:
            case DerivativeMethod.BACKWARD:
                return reverse.backward_by_example(self.network, losses_of, queries)
            case DerivativeMethod.PARTIAL:
                return reverse.partial_by_example(self.network, losses_of, queries)
            case DerivativeMethod.PRODUCTS:
                return self._products.by_example(losses_of, queries)
            case DerivativeMethod.FORWARD:
                return forward_by_example(self.network, losses_of, queries)
            case _:
                return difference_by_example(self.network, losses_of, queries, self.step)
