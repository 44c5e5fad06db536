"""The base class of a method's own settings, whose fields are options of its command.

Imports nothing heavy, as the command line builds a method's options from its settings.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from privctl.domain.ranges import Range

#: Key of a field's metadata that marks it as an option.
OPTION = "option"
#: Groups of options that several methods share, with the names of their options.
GROUPS = {
    "clipping": ("clip_norm", "clipping"),
    "clip-norm": ("clip_norm",),
    "passes": ("clipping_passes",),
    "schedule": ("schedule", "warmup_steps"),
    "budget": ("epsilon", "noise_multiplier", "delta"),
    "secrets": ("secrets",),
    "public": ("public", "public_weight", "public_batch_size", "public_overlap"),
    "convert": ("convert",),
    "adapters": ("base", "save_adapter", "base_bits"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How the command line presents a field.

    ``flag`` defaults to the field's name, ``choices`` to all enum members. ``within`` is the range of a number. With
    ``usual``, ``--help`` shows the option, and not only ``--help-all``. With ``may_change``, a run may be resumed with
    another value.
    """

    help: str
    flag: str | None = None
    choices: tuple[str, ...] | None = None
    required: bool = False
    may_change: bool = False
    within: Range | None = None
    usual: bool = False


def flag_of(setting: Field[Any]) -> str:
    """The flag of a field that is an option."""
    stated: Option = setting.metadata[OPTION]
    return stated.flag or "--" + setting.name.replace("_", "-")


def option(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    choices: tuple[str, ...] | None = None,
    may_change: bool = False,
    within: Range | None = None,
    usual: bool = False,
) -> Any:
    """A field of a method's settings that is an option of its command."""
    presented = Option(help=help_text, flag=flag, choices=choices, may_change=may_change, within=within, usual=usual)
    return field(default=default, metadata={OPTION: presented})


def required(help_text: str) -> Any:
    """Like ``option``, for a field without a default."""
    return field(metadata={OPTION: Option(help=help_text, required=True)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """The settings of one method in addition to the shared ones; subclasses are frozen dataclasses of plain values.

    Raises ValueError, with the flag, for a number out of range.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            stated: Option | None = setting.metadata.get(OPTION)
            if stated is not None and stated.within is not None and value is not None:
                stated.within.require(flag_of(setting), value)


Settings = TypeVar("Settings", bound=MethodSettings)
