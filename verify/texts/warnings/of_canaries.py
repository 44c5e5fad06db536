"""Every warning of an audit of planted canaries or canary gradients."""

from __future__ import annotations

from verify.texts.warnings.forms import COUNT, NUMBER, either, form
from verify.texts.warnings.of_noise import noise_at_most

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
STEPS_ALONE = form(
    "no canary takes part in measurements of layers: the mechanism is tested without them, by its steps alone"
)
#: The statements of conditions of bounds that were not shown to hold, or were shown not to hold.
CONDITIONS = "|".join((
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


def exposure(references: int | None) -> str:
    """The warning on the number of fresh secrets against which exposure is measured; any number for None."""
    return form(_EXPOSURE, references=COUNT if references is None else str(references), number=NUMBER)


#: The text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, str] = {
    "made-up canaries": MADE_UP,
    "noise of stated steps": noise_at_most(None),
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
    "taken to be so": form(TAKEN, statement=CONDITIONS),
    "no bound follows": form(BROKEN, statement=CONDITIONS),
    "gradients test the program": TRAINING_TESTED,
    "strongest gradients": STRONGEST,
    "uncut batches": UNCUT,
    "steps without measurements": STEPS_ALONE,
    "condition of canary gradients": CONDITIONS,
}  # fmt: skip
