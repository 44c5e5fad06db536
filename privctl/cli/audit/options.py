"""The options of ``privctl audit`` and its subcommands, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from audits import ATTACKS, FUSED, THOROUGH
from privctl.cli.groups import complete_subcommands
from privctl.cli.numbers import AMOUNT, BELOW_ONE, CHANCE, COUNT, FRACTION, SEED32, Number, Whole
from privctl.cli.options import (
    LABEL_COLUMN,
    MODEL,
    PATH,
    TEXT_COLUMN,
    AliasedOption,
    Command,
    OnceOption,
    common,
    data_option,
    force,
)
from privctl.domain import ranges
from privctl.domain.ranges import Range
from privctl.models.choices import TASKS, FloatFormat

Decorator = Callable[[Any], Any]

_BITS = click.Choice(["4"])

MODEL_OR_SUBCOMMAND = click.argument("model", type=MODEL, required=False, shell_complete=complete_subcommands)
A_MODEL = click.argument("model", type=MODEL)
OUTPUT = click.option("-o", "--output", type=PATH, help="Report to write; NAME.audit.report.json by default.")
SEED = click.option(
    "--seed", type=SEED32, metavar="N", default=0, show_default=True, help="Seed of splits; not private."
)
DEVICE = click.option("--device", help="cpu, cuda:0, ...; a GPU by default if there is one.")
PRECISION = click.option(
    "--precision", type=click.Choice([str(float_format) for float_format in FloatFormat]), metavar="FORMAT",
    help="Format of forward passes: float32 or bfloat16.",
)  # fmt: skip
#: Options of every audit of a model.
OF_ANY_MODEL: tuple[Decorator, ...] = (
    OUTPUT,
    click.option("--log", type=PATH, help="Log of audits; NAME.audits.jsonl by default."),
    SEED,
    click.option(
        "--keep-scores", is_flag=True,
        help="Keep scores of tokens, which reveal texts.",
    ),
    click.option("--cache", type=PATH, help="Folder to keep scores in; implies --keep-scores."),
    click.option("--no-cache", is_flag=True, hidden=True),  # the default; accepted because scripts may give it
    TEXT_COLUMN,
    DEVICE,
    PRECISION,
)  # fmt: skip
TASK = click.option(
    "--task",
    type=click.Choice(TASKS),
    metavar="TASK",
    help="As in privctl retrain; from config.json by default.",
)
MAX_LENGTH = click.option(
    "--max-length", type=Whole(Range(low=2, high=1e12, whole=True)), metavar="N",
    help="Tokens kept of a record; at most 2048 by default.",
)  # fmt: skip
RESIZE = click.option("--resize", type=COUNT, nargs=2, metavar="N", help="Height and width to resize images to.")
LEAKS = click.option(
    "--leaks", type=PATH,
    help="Private list of records to write, worst leak first.",
)  # fmt: skip


def _sides(required: bool) -> tuple[Decorator, ...]:
    return (
        data_option("--members", "Records the model was trained on; repeatable.", required=required),
        data_option("--nonmembers", "Records it was not trained on; repeatable.", required=required),
    )


_TRAIN = (
    data_option("--train", "Training records to test; repeatable."),
    data_option("--held-out", "Similar records not trained on; repeatable.", alias="--heldout"),
)


def _manifest(required: bool) -> Decorator:
    return click.option("--canaries", type=PATH, required=required, help="Manifest from privctl canary plant.")


def _book(required: bool) -> tuple[Decorator, ...]:
    return (
        click.option("--secrets", type=PATH, required=required, help="Book, from privctl secrets scan."),
        data_option("--data", "Data of that book; repeatable.", required=required),
    )


SPLIT = click.option("--split", type=PATH, metavar="FILE", help="Split from privctl audit split.")
_EXTRACTION_SPLIT = click.option(
    "--split", "extraction_split", type=PATH, metavar="FILE", help="Both, from privctl audit split."
)
LEAST_AUC = click.option(
    "--least-auc", type=Number(Range(low=0.5, high=1, open_low=True, open_high=True)), metavar="AUC",
    default=0.55, show_default=True, help="AUC that must be detectable.",
)  # fmt: skip
THOROUGH_FLAG = click.option("--thorough", is_flag=True, help="Run more attacks (docs/attacks.md); slower.")
_REFERENCE = click.option("--reference", type=MODEL, help="Model trained on neither file.")
_MEMBERSHIP: tuple[Decorator, ...] = (
    click.option(
        "--attack", "attacks", multiple=True, type=click.Choice([*ATTACKS, *THOROUGH, FUSED]), metavar="NAME",
        help=f"Attack; repeatable. By default {', '.join(ATTACKS)}, {FUSED} (all as one).",
    ),
    THOROUGH_FLAG,
    _REFERENCE,
    click.option("--shadow", type=PATH, help="Folder of shadow models from privctl shadow."),
    click.option(
        "--group-by", metavar="FIELD",
        help="Judge groups, such as users; none: single records.",
    ),
    LEAST_AUC,
)  # fmt: skip
COMMITMENT = click.option("--commitment", help="Hash of the manifest, published before training.")
_CANARIES: tuple[Decorator, ...] = (
    click.option("--canary-data", type=PATH, help="Planted data, to check the manifest."),
    click.option(
        "--references", type=COUNT, metavar="N", help="Random secrets to compare each canary with; about 20,000 in all."
    ),
    click.option(
        "--exact/--no-exact", default=None,
        help="Rank among all possible secrets; by default if cheap.",
    ),
)  # fmt: skip
CLAIM = click.option("--claim", cls=OnceOption, metavar="EPS,DELTA", help="Claimed (epsilon, delta) to test.")
DELTA = click.option("--delta", type=BELOW_ONE, metavar="D", help="Delta of the bound; by default that of the claim.")
QUERIES: tuple[Decorator, ...] = (
    click.option(
        "--queries", type=COUNT, metavar="N", default=100, show_default=True, help="Queries that an attacker may make."
    ),
    click.option(
        "--query-probability", type=FRACTION, metavar="P", default=0.5, show_default=True,
        help="Probability that one of them must succeed.",
    ),
)  # fmt: skip
_REFERENCE_BEFORE = click.option(
    "--reference", type=MODEL, help="MODEL before training; text it writes too is no leak."
)
_EXTRACTION: tuple[Decorator, ...] = (
    click.option(
        "--prefix-tokens",
        type=Whole(ranges.COUNT_OR_ZERO),
        metavar="N",
        help="Tokens given; 50 by default, 0 of a target.",
    ),
    click.option(
        "--suffix-tokens", type=COUNT, metavar="N", help="Tokens it must reproduce; 50 by default, if they fit."
    ),
    click.option(
        "--least-prefix", type=COUNT, metavar="N",
        help="Take shorter records too, with at least N tokens given; by default as many as --prefix-tokens.",
    ),
    click.option(
        "--temperature", type=AMOUNT, metavar="T", default=1.0, show_default=True, help="Sampling temperature."
    ),
    click.option("--top-k", type=COUNT, metavar="K", help="Sample from the K most likely tokens."),
    click.option("--top-p", type=CHANCE, metavar="P", help="Sample from the most likely tokens that sum to P."),
    click.option("--greedy-only", is_flag=True, help="Only the greedy continuation; faster."),
    click.option("--exact-only", is_flag=True, help="Skip near-verbatim continuations; faster."),
    click.option("--adversarial", type=COUNT, metavar="N", help="Records of each file to search prefixes for; slow."),
    click.option(
        "--adversarial-budget", type=COUNT, metavar="N",
        help="With --adversarial: forward passes to spend on a prefix; a gradient counts as three.  [default: 1000]",
    ),
    click.option(
        "--adversarial-tokens", type=COUNT, metavar="N",
        help="With --adversarial: tokens of the prefix; a quarter of --suffix-tokens by default.",
    ),
    data_option("--prompts", "Your own prompts to continue; repeatable."),
    click.option("--divergence", is_flag=True, help="Add prompts that repeat a word, and a control."),
    click.option("--continuations", type=COUNT, metavar="N", help="Texts for each prompt; 4 by default."),
    click.option(
        "--continuation-tokens", type=COUNT, metavar="N",
        help="With --prompts or --divergence: the most tokens of a text; by default 256, or three quarters of the "
        "model's context if that is less.",
    ),
    click.option(
        "--sampling-seed", type=Whole(ranges.SEED), metavar="N",
        help="With --prompts or --divergence: seed of the texts that are drawn; by default from the operating system.",
    ),
    click.option("--records", type=COUNT, metavar="N", help="Records to draw from each file; all by default."),
)  # fmt: skip
_SECRETS: tuple[Decorator, ...] = (
    click.option(
        "--held-out-secrets", type=PATH, cls=AliasedOption, alias="--heldout-secrets",
        help="Book of other records: the control.",
    ),
    data_option(
        "--held-out-data", "Data of that book. `audit MODEL` takes --nonmembers, or --held-out, by default.",
        alias="--heldout-data",
    ),
    click.option("--plan", type=PATH, help="Plan of the training from privctl secrets plan."),
    click.option("--base", type=MODEL, help="MODEL before training; for an adapter, its base."),
    click.option("--candidates", type=COUNT, metavar="N", help="Values to rank each secret among; 100 by default."),
    click.option("--beam", type=COUNT, metavar="N", help="Also look for each in N guesses of a beam search."),
    click.option("--most-secrets", type=COUNT, metavar="N", help="Most secrets and controls to use; 1000 by default."),
)  # fmt: skip
BASE = click.option("--base", type=MODEL, help="Base of an adapter; the one it names by default.")
BASE_BITS = click.option("--base-bits", type=_BITS, help="Bits of an adapter's base, as in its training.")
FROM_SCORES = click.option(
    "--from-scores", type=PATH, help="File of scores of many models, in place of MODEL: safetensors, JSON or CSV."
)

MEMBERSHIP: tuple[Decorator, ...] = (
    *(*_sides(False), SPLIT, CLAIM, DELTA, *_MEMBERSHIP, LEAKS, TASK, LABEL_COLUMN, MAX_LENGTH, RESIZE),
    *(BASE, BASE_BITS),
)
#: Options of ``privctl audit score-records``.
SCORING: tuple[Decorator, ...] = (
    *_sides(True),
    click.option("-o", "--output", type=PATH, required=True, help="Parquet file of scores to write."),
    click.option(
        "--attack", "attacks", multiple=True, type=click.Choice([*ATTACKS, *THOROUGH]), metavar="NAME",
        help="Attack to run; repeatable. By default all that score records separately.",
    ),
    THOROUGH_FLAG,
    _REFERENCE,
    *(BASE, BASE_BITS, TASK, TEXT_COLUMN, LABEL_COLUMN, MAX_LENGTH, RESIZE, DEVICE, PRECISION),
)  # fmt: skip
CANARIES: tuple[Decorator, ...] = (_manifest(True), COMMITMENT, *_CANARIES, CLAIM, DELTA, BASE, BASE_BITS)
EXTRACTION: tuple[Decorator, ...] = (
    *(
        *_TRAIN,
        _EXTRACTION_SPLIT,
        _REFERENCE_BEFORE,
        *_EXTRACTION,
        *QUERIES,
        LEAKS,
        BASE,
        BASE_BITS,
        LABEL_COLUMN,
    ),
)
SECRETS: tuple[Decorator, ...] = (*_book(True), *_SECRETS, BASE_BITS, _manifest(False), COMMITMENT, *QUERIES, TASK)
ALL: tuple[Decorator, ...] = (
    *(*_sides(False), SPLIT, *_TRAIN, _manifest(False), *_book(False), CLAIM, LEAKS),
    *(*_MEMBERSHIP, TASK, LABEL_COLUMN, MAX_LENGTH, RESIZE, COMMITMENT, *_CANARIES, *_EXTRACTION, *QUERIES, *_SECRETS),
    *(FROM_SCORES, DELTA, BASE_BITS),
    click.option("--extraction-split", type=PATH, metavar="FILE", help="Split to test extraction on."),
)
#: Subcommand -> options that only ``--help-all`` shows, so that ``--help`` fits a screen.
RARE: dict[str, frozenset[str]] = {
    "membership": frozenset({"base", "base_bits", "resize", "seed"}),
    "secrets": frozenset({"base_bits", "most_secrets", "query_probability", "cache", "seed"}),
    "extraction": frozenset({
        *("least_prefix", "adversarial_budget", "adversarial_tokens", "continuation_tokens", "sampling_seed"),
        *("base", "base_bits", "label_column", "cache", "query_probability", "seed"),
    }),
}  # fmt: skip
#: The options that the help of ``privctl audit`` shows; those of the subcommands show the others.
SHOWN = (
    "members", "nonmembers", "train", "held_out", "canaries", "secrets", "data", "leaks",
    "output", "force", "as_json", "quiet", "verbose",
)  # fmt: skip


def taking(*options: Decorator) -> Callable[[Command], Command]:
    """A decorator that adds ``options`` in this order, then the options that all commands have."""

    def decorate(command: Command) -> Command:
        command = force(common(command))
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
