"""The model and the optimizer of a private training in the user's own loop: checks, and a margin for rounding."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from privctl.domain.errors import CommandError, InputError
from privctl.domain.guarantee import Assumption
from privctl.integrations.report import ASSERTED
from privctl.storage.reader import open_checkpoint
from privctl.train.clipping.factors import ROUNDING_MARGIN, Clipping, rounding_margin
from privctl.train.network.tensors import read_tensors
from privctl.train.settings.choices import ClippingStyle

_TRAINED_IN = (torch.float32, torch.float64)
#: Parameters of private trainings in this process, in whichever modules they are now, and whether a step was made.
_TRAINED: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()
#: Digests, by name, of the weights and buffers of a model when its private training was closed.
_ENDED: MutableMapping[nn.Module, dict[str, str]] = WeakKeyDictionary()

#: The latest private training by each optimizer.
_LATEST: MutableMapping[torch.optim.Optimizer, ReferenceType[Any]] = WeakKeyDictionary()

#: What privctl cannot check of a loop.
LOOP = Assumption(
    name="own loop",
    statement="the loop computed the loss of each row of a batch from that row alone, changed no row by random numbers "
    "of a known seed, trained on no other examples, left out no batch because of what was in it, changed these weights "
    "by the steps of this optimizer only, and computed nothing else from the examples",
    state=ASSERTED,
)

_Value = TypeVar("_Value")


class SetOnce(Generic[_Value]):
    """An attribute that is set once; setting it again raises CommandError, because all steps must use one value."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is None:
            raise AttributeError(self._name)
        return cast("_Value", vars(instance)[self._name])

    def __set__(self, instance: Any, value: _Value) -> None:
        if self._name in vars(instance):
            raise CommandError(
                f"{self._name} cannot be changed in a training: all its steps use the first value and are accounted "
                "for by it; call make_private with another"
            )
        vars(instance)[self._name] = value


class NotATuple:
    """A result that is one object, where the function of this name in Opacus returns three."""

    def __iter__(self) -> NoReturn:
        raise CommandError(
            "make_private returns one object; the model and the optimizer stay those that you gave, and the loader is "
            "its attribute loader: private = privctl.make_private(...), then for batch in private.loader"
        )


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` made the model, or compiled a module of it in place."""
    # Named here, because importing torch._dynamo takes seconds.
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def require_unstepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise CommandError where ``optimizer`` already took steps, or ``model`` was already trained privately.

    The state of an optimizer, such as its momentum, holds gradients without noise, which later steps would release. A
    second private training of the same weights would report only its own steps.
    """
    if any(_stepped(state) for state in optimizer.state.values()):
        raise CommandError(
            "the optimizer already took steps, or has the state of one that did, which holds gradients without noise; "
            "give a new optimizer, and weights from before any step on these examples: a private training cannot be "
            "continued, because its report would not count the earlier steps"
        )
    if any(parameter in _TRAINED for parameter in model.parameters()) or _is_copy(model):
        raise CommandError(
            "this model was made private before, and a new report would not count the earlier steps; continue the "
            "earlier private training, or load the starting weights into a new model"
        )


def require_same_parameters(optimizer: torch.optim.Optimizer, trained: Sequence[nn.Parameter]) -> None:
    """Raise CommandError where the parameters of ``optimizer`` are not exactly the ``trained`` ones."""
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if optimized != {id(parameter) for parameter in trained}:
        raise CommandError(
            "the parameters of the optimizer are not exactly those of the model that require a gradient; give it "
            "exactly these, in several groups if their settings differ, and freeze others before make_private"
        )


class AsBegun:
    """The ``trained`` parameters of a ``model`` when its private training began, and the devices of all."""

    def __init__(self, model: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._model, self._trained = model, trained
        self._devices = {name: parameter.device for name, parameter in model.named_parameters()}

    def require(self) -> None:
        """Raise CommandError where a trained parameter was frozen or replaced, or has a gradient.

        Such a gradient is of other code, neither clipped nor noisy. The same for a further parameter that was added or
        thawed, for a change of precision, and for a model that was moved.
        """
        for name, parameter in self._model.named_parameters():
            if parameter.device != self._devices.get(name, parameter.device):
                raise CommandError(
                    f"parameter {name!r} was moved from {self._devices[name]} to {parameter.device} after "
                    "make_private, and all steps and their noise are made where the model was then; move the model "
                    "before its optimizer is made, and after that only a copy of it (copy.deepcopy)"
                )
        known = {id(parameter) for parameter in self._trained.values()}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise CommandError(
                    f"parameter {name!r} requires a gradient and did not when make_private was called, as it was "
                    "added, replaced or thawed since then; all steps add noise to the same parameters, so add and thaw "
                    "them before make_private (an optimizer group with a learning rate of 0 is not trained yet)"
                )
        for name, parameter in self._trained.items():
            if not parameter.requires_grad:
                raise CommandError(
                    f"parameter {name!r} was frozen after make_private, and all steps add noise to the same "
                    "parameters; freeze it before make_private, or give its optimizer group a learning rate of 0"
                )
            if parameter.dtype not in _TRAINED_IN:
                raise CommandError(
                    f"parameter {name!r} is now {parameter.dtype}, in which a clipped gradient would be rounded past "
                    "the clip norm; keep the model in float32, and compute it under autocast"
                )
            if parameter.grad is not None:
                raise CommandError(
                    f"parameter {name!r} has a gradient that was not made here, neither clipped nor noised; call "
                    "backward of the private training alone, and zero_grad() before it begins"
                )

    def require_values(self) -> None:
        """Raise CommandError where a parameter was moved to ``meta``, where it has no values."""
        for name, parameter in self._model.named_parameters():
            if parameter.is_meta:
                raise CommandError(
                    f"parameter {name!r} has no values, as the model is on the device meta; call report on the model "
                    "as it was trained, and move a copy of it (copy.deepcopy)"
                )


def close_unused(optimizer: torch.optim.Optimizer, training: Any) -> None:
    """Close an earlier private training by ``optimizer`` that began no step; from now on ``training`` is its latest."""
    earlier = _LATEST[optimizer]() if optimizer in _LATEST else None
    if earlier is not None and not earlier.steps_begun:
        earlier.close()
    _LATEST[optimizer] = ref(training)


def note_training(trained: Sequence[nn.Parameter], *, stepped: bool = False) -> None:
    """Make ``require_unstepped`` refuse models with any of ``trained`` from now on, and if ``stepped``, copies too."""
    for parameter in trained:
        _TRAINED[parameter] = stepped or _TRAINED.get(parameter, False)


def fixed_digests(model: nn.Module, trained: Sequence[nn.Parameter]) -> dict[str, str]:
    """Digests, by name, of the frozen weights and buffers that ``model`` is saved with."""
    return {name: _digest(tensor) for name, tensor in _saved(model).items() if not _among(tensor, trained)}


def note_end(model: nn.Module) -> None:
    """Note the weights with which a private training of ``model`` ended, for ``require_fixed``."""
    _ENDED.setdefault(model, fixed_digests(model, ()))


def require_fixed(model: nn.Module, trained: Sequence[nn.Parameter], digests: Mapping[str, str]) -> None:
    """Raise InputError where a frozen weight or a buffer changed since ``fixed_digests`` returned ``digests``.

    Where ``note_end`` was called for ``model``, the same for any weight that changed since then.
    """
    if _ENDED.get(model, now := fixed_digests(model, ())) != now:
        raise InputError(
            "the weights changed after the private training was closed, by steps that no guarantee counts; call report "
            "before close, and train again"
        )
    now = fixed_digests(model, trained)
    changed = next((name for name in {**digests, **now} if digests.get(name) != now.get(name)), None)
    if changed is not None:
        raise InputError(
            f"{changed!r} is not trained and changed since make_private, so it may reveal data without noise (such as "
            "statistics of batch normalisation); keep it unchanged, and train again"
        )


def require_saved(model: nn.Module, trained: Mapping[str, nn.Parameter], place: Path) -> None:
    """Raise InputError where the checkpoint at ``place`` lacks a trained parameter, or differs from ``model``.

    It may hold no tensor beside those of ``model`` either: a report that lists it would speak for it. In an adapter's
    folder the tensors have the names that peft gives them.
    """
    with open_checkpoint(place) as checkpoint:
        files = [file.path for file in checkpoint.files]
    held = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
    saved = _adapter(model) if checkpoint.is_adapter and hasattr(model, "peft_config") else _saved(model)
    names = {(tensor.data_ptr(), tensor.shape): name for name, tensor in saved.items()}
    for name, parameter in trained.items():
        if names.get((parameter.data_ptr(), parameter.shape), name) not in held:
            raise InputError(f"{place} has no tensor {name!r}, which was trained; save the model there first")
    stranger = next((name for name in held if name not in saved), None)
    if stranger is not None:
        raise InputError(
            f"{place} holds {stranger!r}, which the module does not have; save the module alone there, or give the "
            "module that was saved"
        )
    for name, tensor in saved.items():
        now = tensor.detach().cpu()
        if name in held and (held[name].dtype != now.dtype or not torch.equal(held[name], now)):
            raise InputError(
                f"{place} holds another {name!r} than the model; save the model there again, or to release that "
                "checkpoint, load it into the model"
            )


def _is_copy(model: nn.Module) -> bool:
    """Whether all parameters of ``model`` to train equal ones of which private steps were made."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trained = [parameter for parameter, stepped in _TRAINED.items() if stepped]
    return bool(own) and all(any(_is_equal(each, other) for other in trained) for each in own)


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.detach().to(b.device), b.detach())


def _stepped(state: Mapping[str, object]) -> bool:
    """Whether an optimizer's ``state`` of a parameter is that after a step: a positive count, or any nonzero tensor."""
    if "step" in state:
        return bool(float(state["step"]) > 0)  # type: ignore[arg-type]
    return any(bool(value.any()) for value in state.values() if isinstance(value, Tensor))


def _saved(model: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in model.state_dict(keep_vars=True).items() if isinstance(each, Tensor)}


def _adapter(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that peft's ``save_pretrained`` writes for the active adapter."""
    from peft import get_peft_model_state_dict

    active = getattr(model, "active_adapter", "default")
    found: dict[str, Tensor] = get_peft_model_state_dict(model, adapter_name=active, save_embedding_layers=False)
    return found


def _among(tensor: Tensor, trained: Sequence[nn.Parameter]) -> bool:
    return any(tensor is each for each in trained)


def _digest(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {blake3(content.data).hexdigest()}"


class RoundingMargin:
    """The margin below the clip norm that clipping leaves for float rounding of a batch's sum.

    It is larger where something is in half precision: in a pass under autocast, or in frozen weights of the model.
    ``reduced`` is whether a weight of the model is, or is quantized, so that all passes are.
    """

    def __init__(self, model: nn.Module) -> None:
        weights = list(model.parameters())
        self.reduced = any(not each.is_floating_point() or torch.finfo(each.dtype).bits < 32 for each in weights)
        self._least: float | None = None

    def clipping(self, norm: float, style: ClippingStyle) -> Clipping:
        """How gradients are clipped for the clip norm ``norm``, which the noise is scaled to."""
        usual, more = rounding_margin(reduced=self.reduced), rounding_margin(reduced=True)
        return Clipping(norm=norm * (1 - usual), style=style, reduced_norm=norm * (1 - more))

    def note(self, *, reduced: bool) -> None:
        """Take down that a pass was added; ``reduced`` is whether something in it was in half precision."""
        margin = rounding_margin(reduced=reduced or self.reduced)
        self._least = margin if self._least is None else min(margin, self._least)

    def premise(self) -> Assumption:
        """The assumption that rounding moves no sum by more than the smallest margin that was left."""
        least = ROUNDING_MARGIN if self._least is None else self._least
        return Assumption(
            name="rounding of sums",
            statement=f"where a record is added, float rounding moves a batch's sum by no more than the {least:g} of "
            "the clip norm that clipping leaves for it",
            state=ASSERTED,
        )


#: GradScaler calls the step of an optimizer with this attribute without checking ``.grad``, which is empty here.
_SUPPORTS = "_step_supports_amp_scaling"
#: Attributes that GradScaler sets on the optimizer for that step.
_SET = ("grad_scale", "found_inf")


class ScalerRefused:
    """Refuses a GradScaler with a clear error: lets it call the step of ``optimizer``, and detects it there."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before = vars(optimizer).get(_SUPPORTS)
        setattr(optimizer, _SUPPORTS, True)
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Restore the optimizer."""
        self._hook.remove()
        if self._before is None:
            vars(self._optimizer).pop(_SUPPORTS, None)
        else:
            setattr(self._optimizer, _SUPPORTS, self._before)

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Mapping[str, Any]) -> None:
        """Raise CommandError where a GradScaler called the step. The optimizer can still be stepped without it."""
        found = [name for name in _SET if name in vars(self._optimizer)]
        for name in found:
            delattr(self._optimizer, name)
        if found:
            raise CommandError(
                "a GradScaler called optimizer.step(), and scaled losses are clipped by their scaled gradients; use no "
                "scaler, give backward unscaled losses, and call optimizer.step() directly (bfloat16 under autocast "
                "needs no scaler)"
            )
