"""One definition for every word of privacy that options, reports and settings use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

import click
import pytest

from privctl.cli import root
from privctl.cli.groups import GroupWithCommand
from privctl.domain import events, evidence, guarantee, mechanism, verdict
from privctl.secrets import protection
from privctl.train.methods.dpquant.settings import LayerMode
from privctl.train.methods.ferret.settings import Publish, ReleaseKind, SilentMomentum, UpdateScale
from privctl.train.settings.choices import ClippingStyle, FormatName
from tests.docs.pages import anchor, headings, pages

GLOSSARY = pages()["glossary.md"]
#: Options about files, looks, speed and the model itself. Every other option is a term that the glossary defines.
_PLAIN = """
--base-bits --bf16 --beta1 --beta2 --by --cache --candidates --checkpointing --count --data --debug --derivatives
--device --dropout --dry-run --exact --exclude --export --force --format --fsdp --from-scores --from-scratch
--full-precision
--id-column --member-column --models --score-column --greedy-only --exact-only --include --init --json --keep-models
--keep-scores --float32 --precision
--kind --kinds --learning-rate --leaks --least-prefix --length --literals --long --lora-rank --luq-levels --manifest
--max-length --max-loss --min-accuracy --micro-examples
--micro-tokens --model --momentum --most-secrets --no-cache --no-exact --no-peers
--optimizer --output --pattern --pattern-seconds --presidio --plot --prefix-from --prefix-tokens --quiet --rare-least
--rare-words --report --resize --response-only --resume --save-adapter --schedule --seconds --simulate --solver
--static-layers --suffix-tokens --task --temperature --template --threads --timeout --title --tokenizer --top-k --top-p
--vectorize --verbose --warmup-steps --weight-decay --write-report --version --help --help-all
"""
PLAIN = frozenset(_PLAIN.split())
#: Words that reports and options use, all of whose values the glossary must name.
WORDS: tuple[type[StrEnum], ...] = (
    guarantee.Notion,
    guarantee.PrivacyUnit,
    guarantee.Adjacency,
    guarantee.Scope,
    guarantee.Status,
    guarantee.AssumptionState,
    guarantee.RiskMeasure,
    verdict.Outcome,
    evidence.Bound,
    events.Batches,
    mechanism.Regime,
    mechanism.Calibration,
    mechanism.Formula,
    protection.Form,
    protection.ProtectionCalibration,
    ReleaseKind,
    Publish,
    SilentMomentum,
    UpdateScale,
    ClippingStyle,
    FormatName,
    LayerMode,
)


def options(command: click.Command = root) -> Iterator[str]:
    """Every long option of every command."""
    context = click.Context(command)
    if isinstance(command, GroupWithCommand):
        yield from options(command.alone)
    yield from (
        name
        for parameter in command.get_params(context)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if "--" in name
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found)


def undefined(text: str, names: set[str]) -> set[str]:
    """The options among ``names`` that are terms of privacy and that ``text`` does not define."""
    return names - PLAIN - set(re.findall(r"`(--[a-z0-9-]+)`", text))


def test_every_option_that_is_a_term_is_defined() -> None:
    assert undefined(GLOSSARY, set(options())) == set()


def test_an_undefined_option_is_noticed() -> None:
    assert undefined(GLOSSARY, {"--epsilon", "--quiet", "--kappa"}) == {"--kappa"}


def test_options_that_are_named_exist() -> None:
    known = set(options())
    assert set(re.findall(r"`(--[a-z0-9-]+)`", GLOSSARY)) <= known
    assert known >= PLAIN - {"--version", "--help"}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: f"{kind.__module__.split('.')[-1]}.{kind.__name__}")
def test_every_value_is_explained(kind: type[StrEnum]) -> None:
    assert {value.value for value in kind} - set(re.findall(r"`([\w-]+)`", GLOSSARY)) == set()


def test_no_word_is_defined_twice() -> None:
    words = [anchor(title) for title in headings(GLOSSARY)]
    assert len(set(words)) == len(words) > 100


def test_every_word_has_a_definition() -> None:
    parts = re.split(r"^### .+\n", GLOSSARY, flags=re.MULTILINE)[1:]
    assert all(len(part.split("\n## ")[0].strip()) > 20 for part in parts)
