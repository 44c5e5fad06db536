"""Every warning of an audit of extraction or of secrets."""

from __future__ import annotations

from verify.texts.warnings import of_canaries, of_membership
from verify.texts.warnings.forms import COUNT, NAME, QUOTED, either, form

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
            "model learned elsewhere and that is like no other, it counts as theirs",  # of versions without --reference
            "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the "
            "model learned elsewhere, that is like no other and that the reference model does not give, it counts as "
            "theirs",
        ),
    )
)
NOT_NEAR = "extraction: text that differs by a token does not count, as comparing it {why}"
NOT_INDEPENDENT = form("secrets: intervals are as for independent secrets; those of one training run are not quite")
HELD_OUT_SECRETS = form(
    "secrets: held-out records are taken to be drawn as the training data were, one by one; if those of a user or "
    "document were kept on one side, the comparison with held-out secrets does not hold"
)
OTHER_CANDIDATES = form(
    "secrets: a stronger attack, other candidates or other contexts may tell secrets that this one does not"
)
ALLOWED = form("secrets: a bound is what the plan allows of values drawn at random among the candidates")
_NEAR_REASONS = "was not asked for|needs a network that transformers can generate with"
_TEXTS = r"(?:1 {0} text|\d+ {0} texts)"


def after_what(tokens: int | None, *, searched: bool) -> str:
    """The warning on the prefixes after which ``tokens`` suffix tokens count; any number for None."""
    return form(_SEARCHED if searched else _OWN_BEGINNING, tokens=COUNT if tokens is None else str(tokens))


def prefixed(pattern: str) -> str:
    """The expression for the same text with the prefix of extraction warnings."""
    return form(_EXTRACTION) + pattern


#: The text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, str] = {
    "extraction: all of the training data": ALL_OF_TRAINING,
    "extraction: own beginning": after_what(None, searched=False),
    "extraction: searched beginnings": after_what(None, searched=True),
    "extraction: not near": form(NOT_NEAR, why=_NEAR_REASONS),
    "extraction: no control": NO_CONTROL,
    "extraction: control": CONTROL,
    "extraction: drawn split": prefixed(of_membership.drawn(None)),
    "extraction: trained on members": prefixed(of_membership.TRAINED_ON),
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
    "secrets: held out": HELD_OUT_SECRETS,
    "secrets: elsewhere": form(
        "secrets: {n} stand in records that the book does not name, so that the plan says nothing of them; scan again",
        n=COUNT,
    ),
    "secrets: planted": form(
        "secrets: {taken}, as the book lacks others of their format and may have chosen by value; put all of them in "
        "the book", taken=r"1 planted canary is taken as a found value|\d+ planted canaries are taken as found values",
    ),
    "secrets: broken": form(
        "secrets: {broken}",
        broken=f"the model's training report names other data than {NAME}|"
        f"(?:{of_canaries.CONDITIONS})(?:; (?:{of_canaries.CONDITIONS}))*",
    ),
}  # fmt: skip
