"""Tensors on which weights and architecture disagree, and which of these disagreements are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMismatch:
    """Names of tensors on which weights and architecture disagree.

    ``mismatched`` tensors differ in shape, ``missing`` ones are not in the weights, and ``unexpected`` ones are not in
    the architecture.
    """

    mismatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def without_heads(misfits: TensorMismatch, joined: Any) -> TensorMismatch:
    """The ``misfits`` of a base, without those of modules and heads that the adapter in ``joined`` replaces."""
    own_names = {name.replace(".modules_to_save.default", "") for name, _ in joined.base_model.model.named_parameters()
           if ".modules_to_save." in name}  # fmt: skip
    heads = {name.rpartition(".")[0] for name in own_names}
    return TensorMismatch(
        mismatched=tuple(name for name in misfits.mismatched if name not in own_names),
        missing=tuple(name for name in misfits.missing if name not in own_names),
        unexpected=tuple(n for n in misfits.unexpected if not heads or of_body(joined.base_model.model, n)),
    )


def refuse(path: Path, misfits: TensorMismatch) -> None:
    """Raise InputError for weights that only partly fit: transformers has initialized the rest at random."""
    for names, fault in (
        (misfits.mismatched, "has other shapes than its config.json describes for"),
        (misfits.missing, "lacks"),
        (misfits.unexpected, "holds tensors its config.json has no place for:"),
    ):
        if names:
            suffix = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(
                f"{path} {fault} {', '.join(names[:3])}{suffix}; check that config.json belongs to these weights, and "
                "give the folder where a model has several files"
            )


def of_body(network: Any, name: str) -> bool:
    """Whether a tensor belongs to the body that all heads share; a headless checkpoint may omit the body's prefix.

    A pooler counts as part of the head, since masked language models have none.
    """
    prefix = network.base_model_prefix
    first_part = name.removeprefix(f"{prefix}.").split(".")[0]
    children = dict(getattr(network, prefix, network).named_children())
    return first_part != "pooler" and (name.startswith(f"{prefix}.") or first_part in children)
