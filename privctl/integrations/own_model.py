"""Checks of the model and the optimizer before and after a private training in the user's own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from privctl.domain.errors import CommandError, InputError
from privctl.storage.reader import open_checkpoint
from privctl.train.network.tensors import read_tensors

#: Parameters that were trained privately in this process, in whichever modules they are now.
_TRAINED = WeakIdKeyDictionary()

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


def require_unstepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise CommandError where ``optimizer`` already took steps, or ``model`` was already trained privately.

    The state of an optimizer, such as its momentum, holds gradients without noise, which later steps would release. A
    second private training of the same weights would report only its own steps.
    """
    if any(_has_stepped(state) for state in optimizer.state.values()):
        raise CommandError(
            "the optimizer already took steps, or has the state of one that did, which holds gradients without noise; "
            "give a new optimizer, and load weights only"
        )
    if any(parameter in _TRAINED for parameter in model.parameters()):
        raise CommandError(
            "this model was made private before, and a new report would not count the earlier steps; continue the "
            "earlier private training, or load the starting weights into a new model"
        )


def note_training(trained: Sequence[nn.Parameter]) -> None:
    """Make ``require_unstepped`` refuse models with any of the ``trained`` parameters from now on."""
    for parameter in trained:
        _TRAINED[parameter] = True


def fixed_digests(model: nn.Module, trained: Sequence[nn.Parameter]) -> dict[str, str]:
    """Digests, by name, of the frozen weights and buffers that ``model`` is saved with."""
    return {name: _digest(tensor) for name, tensor in _saved(model).items() if not _is_among(tensor, trained)}


def require_fixed(model: nn.Module, trained: Sequence[nn.Parameter], digests: Mapping[str, str]) -> None:
    """Raise InputError where a frozen weight or a buffer changed since ``fixed_digests`` returned ``digests``."""
    now = fixed_digests(model, trained)
    changed = next((name for name in {**digests, **now} if digests.get(name) != now.get(name)), None)
    if changed is not None:
        raise InputError(
            f"{changed!r} is not trained and changed since make_private, so it may reveal data without noise (such as "
            "statistics of batch normalisation); keep it unchanged, and train again"
        )


def require_saved(model: nn.Module, trained: Mapping[str, nn.Parameter], place: Path) -> None:
    """Raise InputError where the checkpoint at ``place`` lacks a trained parameter, or differs from ``model``.

    In an adapter's folder the tensors have the names that peft gives them.
    """
    with open_checkpoint(place) as checkpoint:
        files = [file.path for file in checkpoint.files]
    in_files = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
    saved = _adapter(model) if checkpoint.is_adapter and hasattr(model, "peft_config") else _saved(model)
    names = {(tensor.data_ptr(), tensor.shape): name for name, tensor in saved.items()}
    for name, parameter in trained.items():
        if names.get((parameter.data_ptr(), parameter.shape), name) not in in_files:
            raise InputError(f"{place} has no tensor {name!r}, which was trained; save the model there first")
    for name, tensor in saved.items():
        now = tensor.detach().cpu()
        if name in in_files and (in_files[name].dtype != now.dtype or not torch.equal(in_files[name], now)):
            raise InputError(
                f"{place} holds another {name!r} than the model; save the model there again, or to release that "
                "checkpoint, load it into the model"
            )


def _has_stepped(state: Mapping[str, object]) -> bool:
    """Whether an optimizer's ``state`` of a parameter is that after a step: a positive count, or any nonzero tensor."""
    if "step" in state:
        return bool(float(state["step"]) > 0)  # type: ignore[arg-type]
    return any(bool(value.any()) for value in state.values() if isinstance(value, Tensor))


def _saved(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}


def _adapter(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that peft's ``save_pretrained`` writes for the active adapter."""
    from peft import get_peft_model_state_dict

    active = getattr(model, "active_adapter", "default")
    tensors: dict[str, Tensor] = get_peft_model_state_dict(model, adapter_name=active, save_embedding_layers=False)
    return tensors


def _is_among(tensor: Tensor, trained: Sequence[nn.Parameter]) -> bool:
    return any(tensor is parameter for parameter in trained)


def _digest(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {blake3(content.data).hexdigest()}"


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
        overridden = [name for name in _SET if name in vars(self._optimizer)]
        for name in overridden:
            delattr(self._optimizer, name)
        if overridden:
            raise CommandError(
                "a GradScaler called optimizer.step(), and scaled losses are clipped by their scaled gradients; use no "
                "scaler, give backward unscaled losses, and call optimizer.step() directly (bfloat16 under autocast "
                "needs no scaler)"
            )
