"""Every warning that an audit writes into its report, as ``verify.warned.texts`` has those of other steps."""

from __future__ import annotations

import re

from verify.warned.forms import ALIKE_USERS, COUNT, NAME, NUMBER, QUOTED, either, form
from verify.warned.of_noise import noise_at_most

PRIVATE = form(
    "this report and its scores are not for release: they hold exact counts and rates of the audited records, and no "
    "guarantee covers them"
)
IN_BFLOAT16 = form(
    "all models were run in bfloat16, their weights rounded to it: scores of members and of others are rounded alike, "
    "and an attack may find less than in float32"
)
# Of membership.
ASSERTED = form(
    "membership is what the caller asserts: records of {name} are taken to be training data, and those of {name} not",
    name=NAME,
)
_DRAWN = (
    "privctl drew the split: by coins of the key in {name}, {members} are members. Checked: both files have the "
    "digests in it, and each record is on the side of {coin}. Not checked: that the commitment, {commitment}, was "
    "published before training"
)
TRAINED_ON = form(
    "that the model was trained on {name}, and on none of {name}, is {said}",
    name=NAME, said="what the caller asserts|what its training report says, by the file's digest|contradicted by its "
    "training report, which names other data; nothing can be concluded from finding nothing",
)  # fmt: skip
_TRIED = (
    "{attacks} tried ({names}). Whether any does better than chance is decided by one permutation test over all of "
    "them, which errs at most {number} times in 100 if both files were drawn alike"
)
INTERVALS = form(
    "{intervals} of AUC, TPR and the like only say how large the differences are; each holds at {number} %, so that "
    "all hold together at the audit's confidence",
    intervals=either("interval"), number=NUMBER,
)  # fmt: skip
STRONGER = form("a stronger attack may find what these did not")
_GROUPS = (
    "what is counted are groups of records with one value of {field}: {group} of {member} and {group} of {nonmember}, "
    "each with one score from an attack. Groups, not records, are taken to be independent of each other"
)
_BACKWARDS = "{method}: the AUC lies below {chance}, so members look less like training data than non-members; {check}"
_CHECKS = (
    "check that the two files were not swapped and come from one source|a higher score must mean more likely a member: "
    "negate losses, and check who is marked as a member"
)
NOT_MADE = "{guesses} not made for {bounds}, because scores were tied or missing; they count as wrong"
# Of scores of records.
NOTHING_SHOWN = form(
    "membership and scores are what the caller asserts: nothing shows that they are of one model, or that its members "
    "and non-members are a random split of one source, without which they may differ by themselves"
)
NO_SPLIT_SHOWN = form(
    "nothing shows that its members and non-members are a random split of one source, without which they may differ by "
    "themselves"
)
FITTED = form("scores that were fitted to the coins make the bounds invalid")
NOT_FITTED = form(
    "that the scores are of one model, and that nothing but the model and the records themselves decided them, is what "
    "the caller asserts: scores that were fitted to the coins make the bounds invalid"
)
#: The name was not stated before a gate's policy could accept it.
_OF_MODEL = "nothing but the caller's word ties the scores to the model{name}: {statement}"
_COLUMNS = (
    "whether {columns} does better than chance is decided by one permutation test, which errs at most "
    "{number} times in 100 if both sides were drawn alike and no score was fitted to the labels"
)
COLUMN_INTERVALS = form(
    "{intervals} only say how large the differences are; each holds at {number} %, so that all hold together at the "
    "audit's confidence",
    intervals=either("interval"), number=NUMBER,
)  # fmt: skip
STRONGER_SCORES = form("a stronger attack may find what these scores did not")
# Of scores of models.
INDEPENDENT = form(
    "the models are taken to be independent and alike but for the record, as the caller asserts: scores of many "
    "records by one model, or models that share a random seed, make the bound invalid"
)
ONE_RECORD = form(
    "the bound is about this record and this score; another record or a stronger score may show a larger epsilon"
)
PROCEDURE = form("what the bound certifies is the training procedure, not one model made by it")
_THRESHOLD = (
    "the threshold {threshold} is taken to be chosen before these scores were seen, as the caller asserts: one chosen "
    "by them makes the bounds invalid"
)
# Of canaries.
MADE_UP = form("canaries are made up; that they were not memorized does not show that real records were not")
COPIES = "an included canary has up to {most} copies: a bound for groups of {most} says less of one record"
_EXPOSURE = (
    "exposure is measured against up to {references} fresh secrets each, so it ends at {number} bits; extrapolated "
    "numbers are a model of what lies beyond"
)
TAKEN, BROKEN = "taken to be so: {statement}", "no bound follows: {statement}"
TRAINING_TESTED = form(
    "canary gradients test the training program: they were drawn by it, so a program that cheats on purpose is not "
    "caught"
)
STRONGEST = form(
    "their gradients are the strongest that one record, or one user, can send; those of the data show less"
)
UNCUT = form("no record is cut from a batch for a canary: canaries show the noise, not which records are kept")
#: What conditions of bounds say where nothing showed that they hold, or something that they do not.
_CONDITIONS = "|".join((
    "the training included each canary gradient by a fair coin of its own",
    "the observations are those of this model's training",
    r"exactly \d+ of \d+ canaries are included, each by a coin of its own: a draw of a fixed number gives that too, "
    "and for it the bounds have no proof; an odd number of canaries rules it out",
    r"\d+ of \d+ canaries are included, which fair coins give less than once in a million times",
    "the model's training report names another file of canary gradients",
    "the model's own report is of no training with canary gradients",
    "the manifest was changed after it was committed to: its content does not give its commitment",
    "the manifest is the one written before training; give the published commitment to have it checked",
    "the manifest is not the one that the given commitment stands for",
    "the coins come from a given seed, so whoever knows it can tell them without the model",
    "each canary was included by a fair coin of its own, from the operating system, as the manifest says",
    r"(?:1 canary repeats|\d+ canaries repeat) the secret of another, so that one secret hangs on two coins",
    "the model was trained on the planted data, every copy a record of its own",
    "the model's training report names other data than the planted ones",
    "the file has other bytes than the one that was planted",
    r"\d+ included canaries are there in another number of copies than the manifest says",
    "without the canaries the file is not the source that the manifest names",
    r"(?:1 secret occurs|\d+ secrets occur) elsewhere in the data, or in another number than was planted",
))  # fmt: skip
# Of extraction.
_EXTRACTION = "extraction: "
ALL_OF_TRAINING = form(
    "extraction: records of {name} are taken to be all of the training data; copies elsewhere are not counted, nor "
    "copies that the tokenizer splits differently",
    name=NAME,
)
_OWN_BEGINNING = (
    "extraction: only what follows the record's own beginning counts, {tokens} tokens of it; what comes after another "
    "beginning does not (--adversarial N searches such beginnings)"
)
_SEARCHED = (
    "extraction: what follows the record's own beginning counts, {tokens} tokens of it, and what follows a prefix that "
    "the search found; such a prefix is made of tokens, which another tokenizer may not give back from its text"
)
NO_CONTROL = form("extraction: without held-out text, nothing tells recalled text from text anyone would write")
CONTROL = "|".join(
    map(
        form,
        (
            "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the "
            "model learned elsewhere and that is like no other, it counts as theirs (--reference MODEL leaves it out)",
            "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the "
            "model learned elsewhere and that is like no other, it counts as theirs",  # before there was a reference
            "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the "
            "model learned elsewhere, that is like no other and that the reference model does not give, it counts as "
            "theirs",
        ),
    )
)
NOT_NEAR = "extraction: text that differs by a token does not count, as comparing it {why}"
# Of secrets.
NOT_INDEPENDENT = form("secrets: intervals are as for independent secrets; those of one training run are not quite")
OTHER_CANDIDATES = form(
    "secrets: a stronger attack, other candidates or other contexts may tell secrets that this one does not"
)
ALLOWED = form("secrets: a bound is what the plan allows of values drawn at random among the candidates")


def tried(attacks: tuple[str, ...] | None) -> str:
    """How many ``attacks`` were tried; None: any."""
    if attacks is None:
        return form(_TRIED, attacks=r"1 attack was|\d+ attacks were", names=NAME, number=NUMBER)
    count = "1 attack was" if len(attacks) == 1 else f"{len(attacks)} attacks were"
    return form(_TRIED, attacks=count, names=re.escape(", ".join(attacks)), number=NUMBER)


def drawn(commitment: str | None) -> str:
    """That the split was drawn under ``commitment``; None: under any."""
    return form(
        _DRAWN, name=NAME,
        members=rf"\d+ of \d+ (?:records|groups of records with one value of {QUOTED})",
        coin="its coin|its group's coin, and no group was drawn in part",
        commitment=r"[a-z0-9]+:[0-9a-f]+" if commitment is None else re.escape(commitment),
    )  # fmt: skip


def groups(field: str | None) -> str:
    """That groups with one value of ``field`` are counted; None: of any."""
    return form(
        _GROUPS, field=QUOTED if field is None else re.escape(repr(field)), group=either("group"),
        member=either("member"), nonmember=either("non-member"),
    )  # fmt: skip


def backwards(method: str | None, chance: float | None) -> str:
    """That the AUC of ``method`` lies below ``chance``; None: of any, below any."""
    return form(
        _BACKWARDS, method=NAME if method is None else re.escape(method),
        chance=NUMBER if chance is None else re.escape(f"{chance:g}"), check=_CHECKS,
    )  # fmt: skip


def of_model(statement: str) -> str:
    """That ``statement``, an expression, is the caller's word."""
    return form(_OF_MODEL, name=form(" (assumption 'scores of the model')") + "|", statement=statement)


def columns(count: int | None, *, grouped: bool = False) -> str:
    """How many columns of scores, or kinds of scores of groups, were tested."""
    word, of = ("kind", " of scores of groups") if grouped else ("column", " of scores")
    known = either(word) if count is None else re.escape(f"{count} {word}{'s' * (count != 1)}")
    return form(_COLUMNS, columns=f"(?:{known}){of}", number=NUMBER)


def threshold(value: float | None) -> str:
    """By which threshold models are told apart."""
    return form(_THRESHOLD, threshold=r"-?[\d.e+-]+" if value is None else re.escape(f"{value:g}"))


def exposure(references: int | None) -> str:
    """Against how many fresh secrets exposure is measured."""
    return form(_EXPOSURE, references=COUNT if references is None else str(references), number=NUMBER)


def after_what(tokens: int | None, *, searched: bool) -> str:
    """After which beginnings so many ``tokens`` count."""
    return form(_SEARCHED if searched else _OWN_BEGINNING, tokens=COUNT if tokens is None else str(tokens))


def prefixed(pattern: str) -> str:
    """The same said of extraction."""
    return form(_EXTRACTION) + pattern


_GUESSES = r"1 guess was|\d+ guesses were"
_REASONS = (
    "of too few tokens for one to be predicted|repeating an earlier record of their file|occurring among members and "
    "non-members alike|given NaN or infinite scores by the model|put aside for attacks that put such records in front "
    "of others|with a text that several groups of the split have|repeated, while others occur in both files"
)
_NEAR_REASONS = "was not asked for|needs a network that transformers can generate with"
_TEXTS = r"(?:1 {0} text|\d+ {0} texts)"

#: Name of a warning -> its text, as a regular expression for the whole of it.
TEXTS: dict[str, str] = {
    "private report": PRIVATE,
    "bfloat16": IN_BFLOAT16,
    "asserted membership": ASSERTED,
    "drawn split": drawn(None),
    "trained on members": TRAINED_ON,
    "attacks tried": tried(None),
    "intervals": INTERVALS,
    "stronger attack": STRONGER,
    "groups": groups(None),
    "users spelled alike": ALIKE_USERS,
    "left out": form("left out: {side}, {why}", side=f"{either('member')}|{either('nonmember')}", why=_REASONS),
    "cut": form("cut to their first {n} tokens: {n} of {records}", n=COUNT + "|None", records=either("record")),
    "backwards": backwards(None, None),
    "guesses not made": form(NOT_MADE, guesses=_GUESSES, bounds="the bounds"),
    "guesses not made for a bound": form(NOT_MADE, guesses=_GUESSES, bounds="the bound on .{1,200}"),
    "asserted scores": NOTHING_SHOWN,
    "asserted split": NO_SPLIT_SHOWN,
    "fitted scores": FITTED,
    "scores not fitted": NOT_FITTED,
    "scores of the model": of_model(".{1,600}"),
    "columns tested": columns(None),
    "kinds tested": columns(None, grouped=True),
    "column intervals": COLUMN_INTERVALS,
    "stronger scores": STRONGER_SCORES,
    "names spelled alike": form(
        "{n} of the records' names in {field} differ from another's only in case, spaces or Unicode form, and count as "
        "different records; where they are the same, give one line for each record", n=COUNT, field=NAME,
    ),
    "independent models": INDEPENDENT,
    "one record": ONE_RECORD,
    "procedure": PROCEDURE,
    "equal scores": form("some scores of one side are equal; a model that is counted twice makes the bound invalid"),
    "sides swapped": form(
        "models without the record score higher than those with it; check that the two sides were not swapped and that "
        "a higher score means that the record was used"
    ),
    "threshold": threshold(None),
    "made-up canaries": MADE_UP,
    "copies": form(COPIES, most=COUNT),
    "one prefix": form(
        "of canaries after one prefix, a model can complete no more than one: so few disclosed says little; give them "
        "prefixes of their own (privctl canary plant --prefix-from)"
    ),
    "exposure": exposure(None),
    "fresh secrets left out": form(
        "left out: {secrets} to which the model gives no finite loss", secrets=either("fresh secret")
    ),
    "undecided completions": form(
        "{ties} on logits that are equal within rounding; they count as disclosed for the upper end of a rate and as "
        "safe for its lower end", ties=r"1 completion hangs|\d+ completions hang",
    ),
    "taken to be so": form(TAKEN, statement=_CONDITIONS),
    "no bound follows": form(BROKEN, statement=_CONDITIONS),
    "gradients test the program": TRAINING_TESTED,
    "strongest gradients": STRONGEST,
    "uncut batches": UNCUT,
    "noise of stated steps": noise_at_most(None),
    "condition of canary gradients": _CONDITIONS,
    "extraction: all of the training data": ALL_OF_TRAINING,
    "extraction: own beginning": after_what(None, searched=False),
    "extraction: searched beginnings": after_what(None, searched=True),
    "extraction: not near": form(NOT_NEAR, why=_NEAR_REASONS),
    "extraction: no control": NO_CONTROL,
    "extraction: control": CONTROL,
    "extraction: drawn split": prefixed(drawn(None)),
    "extraction: trained on members": prefixed(TRAINED_ON),
    "extraction: groups": form(
        "extraction: comparisons count groups with one value of {field} of which any text comes out; texts that "
        "several records begin with are not compared", field=QUOTED,
    ),
    "extraction: chosen prompts": form(
        "extraction: the prompts are taken to be chosen without knowledge of the coins"
    ),
    "extraction: undecided": form(
        "extraction: {texts} on logits that rounding decides, even alone and in float32; the intervals allow for "
        "either verdict", texts=r"1 text hangs|\d+ texts hang",
    ),
    "extraction: cued": form(
        "extraction: {n} of {n} extracted training texts have more than half of their suffix's tokens in the prefix, "
        "and may be copied rather than recalled", n=COUNT,
    ),
    "extraction: short": form(
        "extraction: {texts} a prefix of fewer than {tokens}",
        texts=r"1 training text has|\d+ training texts have", tokens=either("token"),
    ),
    "extraction: known elsewhere": form(
        "extraction: {training} and {heldout} that {name} gives too are known from elsewhere, and not compared",
        training=_TEXTS.format("training"), heldout=_TEXTS.format("held-out"), name=NAME,
    ),
    "extraction: reference": form(
        "extraction: {name} is taken to be trained on neither file, and {said}; if it was trained on the training "
        "text, what that taught both models is not found",
        name=NAME, said="its own report names other data|no report says so",
    ),
    "extraction: began with": form(
        "extraction: the model's report names the weights of {name} as those that its training began with", name=NAME
    ),
    "extraction: not known to begin with": form(
        "extraction: no report says that the training began with {name}; text that the model knew before, and {name} "
        "does not give, counts as learned from the training data", name=NAME,
    ),
    "extraction: in the prompts": form(
        "extraction: {n} records have a span that is in the prompts already, and are not looked for in what is written "
        "after prompts", n=COUNT,
    ),
    "extraction: short records": form(
        "extraction: {n} records have fewer tokens than a span, and are not looked for in what is written after "
        "prompts", n=COUNT,
    ),
    "extraction: cut prompts": form(
        "extraction: of {n} prompts only the end fits before what is written", n=COUNT
    ),
    "secrets: not independent": NOT_INDEPENDENT,
    "secrets: other candidates": OTHER_CANDIDATES,
    "secrets: some": form("secrets: {n} of {n} with a value and records were attacked", n=COUNT),
    "secrets: planned": form("taken to be so: the model was trained by the plan, as no report of it tells"),
    "secrets: allowed": ALLOWED,
    "secrets: never drawn": form(
        "secrets: which of them a plan never draws is not chance; the control takes it so by kind"
    ),
    "secrets: elsewhere": form(
        "secrets: {n} stand in records that the book does not name, so that the plan says nothing of them; scan again",
        n=COUNT,
    ),
    "secrets: planted": form(
        "secrets: {taken}, as the book lacks others of their format and may have chosen by value; put all of them in "
        "the book", taken=r"1 planted canary is taken as a found value|\d+ planted canaries are taken as found values",
    ),
    "secrets: broken": form(
        "secrets: {broken}", broken=f"the model's training report names other data than .{{1,200}}|(?:{_CONDITIONS})"
        f"(?:; (?:{_CONDITIONS}))*",
    ),
    "unusable report": form(
        "the model names a report of how it was made, which cannot be used: {why}", why=".{1,1000}"
    ),
    "missing report": form("the model names a report of how it was made, but {name} is not a file", name=NAME),
    "report of other weights": form(
        "the model names {name} as its report, but that report is about other weights", name=NAME
    ),
    "other bits": form(
        "the training held the adapter's base in as many bits as its report's base_bits says, and this audit did not: "
        "what is audited answers differently from what was trained; give --base-bits 4 if, and only if, the report has "
        "it"
    ),
}  # fmt: skip
