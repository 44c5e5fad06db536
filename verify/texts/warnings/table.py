"""Every warning that privctl writes into a report, by step; those of audits are in ``of_audits``.

A text that is not listed may mean anything. Any names and numbers are accepted, except those that ``verify.warned``
fills in. The list only grows: texts of earlier releases stay. Those of a training method are in its module in
``verify.methods``.
"""

from __future__ import annotations

from verify.texts.warnings import of_audits
from verify.texts.warnings.forms import (
    ALIKE_USERS,
    CHOSEN_BY_HELD_OUT,
    COUNT,
    DELTA,
    EARLIER,
    NAME,
    NUMBER,
    ONE_RUN,
    OWNER,
    OWNER_OF_MEASURES,
    QUOTED,
    REAL_ARITHMETIC,
    UNPROTECTED,
    WHOLE_SEARCH,
    either,
    form,
)

ADAPTER = (
    "the weights are an adapter of {base}, whose digests are {where}; the guarantees are for the adapter, and its base "
    "must have been made without the data"
)
IN_FOUR_BITS = form(
    "the adapter was trained and measured with {name} in 4 bits (NF4, doubly quantized scales); on the base in full "
    "its answers are others, so load it with bitsandbytes for the measures stated here",
    name=NAME,
)
HELD_OUT_IS_PUBLIC = form(
    "held-out measures are exact and no guarantee covers them: the held-out data is taken to be public"
)
HELD_OUT_IS_TRAINED_ON = form(
    "record {count} of the held-out data stands in the training data too: held-out measures are then exact measures of "
    "private records, and no guarantee covers them; leave what is trained on out of --held-out",
    count=COUNT,
)
HELD_OUT_OF_USERS = form(
    "the held-out data hold records of a {unit} whose records are trained on: held-out measures are then exact "
    "measures of protected users, and no guarantee covers them; leave such users out of --held-out",
    unit=QUOTED,
)
KEEP_THE_PLAN = form(
    "the plan of protection tells which records hold secrets and how they are called; keep it to yourself like the data"
)
FIXED_GRAPH = form(
    "the guarantee is for what a user's records say, not for which users a record names: without a user's records, "
    "others might have been chosen"
)
ZEROED = (
    "up to {share} % of an epoch's examples had no finite gradient and counted as zero: the guarantee holds, but "
    "nothing was learned from them; check those records, or lower --learning-rate if they are many"
)
_PARTS = (
    "is of the first part of the data, and is drawn by a coin in each of its turns|is used in the first step of each "
    "pass|is in one random step of each pass, like a record or a user|is a user of \\d+ records, each drawn into a "
    "step by a coin of its own, whose gradients point the same way|is drawn and cut like a record, and takes the place "
    "of one with the opposite gradient where a batch is full; no record is cut for it, so canaries show the noise, not "
    "which records are kept|is drawn into a step by a coin, like a record or a user"
)
_APART = ", and takes part in no measurement of layers, so canaries show the noise of the steps alone"
_CANARIES = (
    "an audit run, not for release: its weights hold the gradients of {count} canaries, which no record asked for; the "
    "guarantee of the records holds as stated, because canaries are drawn without looking at them, but train again "
    "without --gradient-canaries for a model to use; each canary {part}"
)
#: For noise on finished weights with stated training facts.
NOT_COVERED = tuple(
    map(
        form,
        (
            "the guarantees speak of the weights; configuration and tokenizer are copied as they are, so check them "
            "for data",
            "this report is not covered: it holds digests of the weights without noise; keep it and the reports it "
            "names to yourself if the model goes to someone who must not learn of the data",
            "the noise is covered down to the bits that are written; how floats rounded within the training is not, "
            "since the sensitivity is of exact steps",
            "another run on the same weights draws new noise; the two releases compose, which no single report counts",
        ),
    )
)
UNFITTING = form(
    "{name}, which is said to be the report of the initial weights, {why}, so nothing here shows whether they were "
    "trained on these examples before; no guarantee covers what they hold of them already",
    name=NAME,
    why="is missing|is about other weights",
)
AUDITED_AS_TRAINED_ON = form(
    "{name} audited the initial weights as ones that were trained on these examples; if they were, no guarantee covers "
    "what they hold of them already: begin with weights that were made without these examples",
    name=NAME,
)
SEEDED = form("the noise was drawn from a seed given by the user: anyone who knows it can remove the noise")
ROUNDED = "assumed, and often false: {statement}"
CANDIDATES = (
    "{count} candidates were made in one run, nested (each the next less noisy one plus fresh noise): anyone who sees "
    "several of them learns as much as from the least noisy one"
)
NOISED_BEFORE = form("the input had noise already; the guarantees count only the noise added here")
NOTHING_CLAIMED = form(
    "NO USEFUL GUARANTEE: the standard deviation was given, and without facts of the training nothing follows from it. "
    "Do not call this model private. To learn what noise guarantees, state how the model was trained instead of "
    "--noise-stddev"
)
_VIOLATED = form(
    "NO USEFUL GUARANTEE: what every bound assumes is violated ({names}). Do not call this model private",
    names=r"[a-z][a-z -]*(?:, [a-z][a-z -]*)*",
)
_TOO_LITTLE = form(
    "NO USEFUL GUARANTEE: for {loss} loss, {amount} at delta {number}, by which an attacker may find {number} % of the "
    "training records at 1 % false positives{published}. Do not call this model private. {advice}; for a neural "
    "network, train again with privctl retrain dp-sgd",
    loss="any|a [a-z-]+", amount=rf"no finite epsilon follows|epsilon is {NUMBER}", number=NUMBER,
    published=rf"(?:; the published epsilon {NUMBER} does not follow)?",
    advice=r"For noise that meets an epsilon, remove --calibration published, and name what is known of the loss by "
    r"--regime \(nonconvex: any\)|Ask for a smaller --epsilon, and name what is known of the loss by --regime",
)  # fmt: skip
USELESS = f"{_VIOLATED}|{_TOO_LITTLE}"
_COARSE = form(
    "most weights are released as training left them in {tensors}, where noise of standard deviation {number} is "
    "smaller than the spacing of the stored numbers: {names}",
    tensors=either("tensor"), number=NUMBER, names=NAME,
)  # fmt: skip
OF_OPACUS = "{entries} of Opacus's history, taken at its word"
SWAPPED_ENTRY = (
    "entry {at} of the history has a noise multiplier of {noise}, below its sampling rate of {rate}: see that the two "
    "were not swapped, as nothing else shows it"
)
SMALL_ENTRY = (
    "entry {at} of the history draws {drawn} examples a step on average: see that its sampling rate and the number of "
    "examples are right"
)
EXTERNAL_OWNER = form(
    "no guarantee covers this report itself: it holds the exact number of examples; keep the report to yourself"
)
NOTHING_KNOWN = form(
    "no privacy guarantee: how this model was trained is not known here, so nothing bounds what it gives away about "
    "the examples that it was trained on"
)
POST_PROCESSING = form(
    "made from the stream and the first model alone, so it gives away what the stream does and nothing more: what is "
    "guaranteed stands in the report of the run that wrote the stream"
)
PLAN = form("a plan, not a run: it holds for a training that does exactly what the mechanism says")
COUNTED_TOGETHER = form(
    "All files are counted together, as for models that were trained on the same people's data and are all released"
)
_ONE_EXAMPLE = f"a record|{form('all records with one value of {unit}', unit=QUOTED)}"
_ERROR = rf"a root mean square error of {NUMBER} clip norms in sums of the first k steps, over all k"
_ADJACENCY = "|".join(
    map(
        form,
        (
            "Adjacency taken: add-or-remove, the default of Opacus and dp_accounting. Adding or removing one example "
            "changes a sum by the clip norm at most; replacing one may change it by twice that",
            "Adjacency taken: replace-one, which is stated or is what batches of fixed size and answers of each record "
            "are known for. Replacing one example changes a sum by twice the clip norm at most, and noise multipliers "
            "are taken to be noise standard deviation / clip norm",
            "Adjacency taken: zero-out, dp_accounting's replace-special: one example is replaced by one that "
            "contributes nothing and leaves the others where they are",
            "Adjacency taken: zero-out, dp_accounting's replace-special: one example is replaced by one that "
            "contributes nothing and leaves the others where they are. In tree aggregation a record is in one step of "
            "a tree at most, and its place stays empty",
        ),
    )
)
SECRETS_PLAN = (
    form("a plan, not a run: it holds for a training that samples, clips and adds noise as it says"),
    form(
        "only the listed occurrences are protected: what the book misses, or what tells a secret without holding it, "
        "is not"
    ),
    form("weights, noise and this report follow from where the secrets lie: keep them, and the plan, to yourself"),
    REAL_ARITHMETIC,
)
UNUSED_SECRETS = "{count} of {secrets} {are} in no record; nothing of them is ever used"
KEEP_THE_BOOK = form(
    "the book holds the secrets themselves: keep it as you keep the data; this report holds none, but patterns as they "
    "were given, and digests of the files, which tell whoever guesses a file whether that is right"
)
#: What no kind of secret covers.
_WITHOUT_KIND = (
    "; postal addresses; account numbers other than IBANs; national identity, insurance and health numbers other than "
    "US SSN and NHS; dates of birth and record numbers without a word that announces them"
)
NOT_LOOKED_FOR = form(
    "not looked for: {kinds}{rest}; what --pattern, --literals and --by describe is found whatever it is, and nothing "
    "else that the data hold",
    kinds="(?:the kind [a-z-]+; )*(?:names of people)?|the kind [a-z-]+(?:; the kind [a-z-]+)*",
    rest=form(f"{_WITHOUT_KIND}") + "|" + form(_WITHOUT_KIND.removeprefix("; ")),
)  # fmt: skip
SHADOWS = form(
    "shadow models are trained on the pool without any protection: keep this folder as safe as the records themselves"
)
ALIKE_SHADOWS = form(
    "they tell what is usual for models made like the audited one: a model that was trained with other settings, or "
    "from another start, is compared with the wrong ones"
)


def canaries(count: int | None, *, measured: bool | None = None) -> str:
    """The warning on ``count`` canary gradients mixed into the training, any number for None.

    ``measured`` says whether it mentions measurements beside the steps; None admits both.
    """
    apart = "" if measured is False else f"(?:{_APART})" + "?" * (measured is None)
    return form(_CANARIES, count=COUNT if count is None else str(count), part=f"(?:{_PARTS}){apart}")


#: For each step, the text of each warning by name, as a regular expression for the whole text.
TEXTS: dict[str, dict[str, str]] = {
    "retrain": {
        "one run": ONE_RUN,
        "whole search": WHOLE_SEARCH,
        "chosen by held-out examples": CHOSEN_BY_HELD_OUT,
        "private report": OWNER,
        "private report with measures": OWNER_OF_MEASURES,
        "adapter": form(ADAPTER, base=NAME, where="among the inputs"),
        "classes of an adapter": form(
            "load {base} with num_labels={count}; the classes are, in this order, {names}",
            base=NAME, count=COUNT, names=".+",
        ),
        "base in 4 bits": IN_FOUR_BITS,
        "report of other initial weights": UNFITTING,
        "initial weights audited as trained": AUDITED_AS_TRAINED_ON,
        "users of the records": FIXED_GRAPH,
        "users spelled alike": ALIKE_USERS,
        "held-out measures": HELD_OUT_IS_PUBLIC,
        "held-out records trained on": HELD_OUT_IS_TRAINED_ON,
        "held-out records of users trained on": HELD_OUT_OF_USERS,
        "large delta": DELTA,
        "plan of protection": KEEP_THE_PLAN,
        "no finite gradient": form(ZEROED, share=NUMBER),
        "earlier searches": form(EARLIER, searches=either("earlier search", "earlier searches")),
        "gradient canaries": canaries(None),
    },
    "noise": {
        "nothing claimed": NOTHING_CLAIMED,
        "nothing useful": USELESS,
        **{f"not covered {i}": text for i, text in enumerate(NOT_COVERED, start=1)},
        "adapter": form(ADAPTER, base=NAME, where="among the inputs|not known here"),
        "seed": SEEDED,
        "rounded weights": form(ROUNDED, statement=f"the weights were not rounded to {NAME}"),
        "candidates": form(CANDIDATES, count=COUNT),
        "noise before": NOISED_BEFORE,
        "coarse tensors": _COARSE,
    },
    "external-training": {
        "one run": ONE_RUN,
        "large delta": DELTA,
        "users spelled alike": ALIKE_USERS,
        "Opacus": form(OF_OPACUS, entries=either("entry", "entries")),
        "entry swapped": form(SWAPPED_ENTRY, at=COUNT, noise=NUMBER, rate=NUMBER),
        "entry of few examples": form(SMALL_ENTRY, at=COUNT, drawn=NUMBER),
        "unprotected": UNPROTECTED,
        "nothing known": NOTHING_KNOWN,
        "private report": EXTERNAL_OWNER,
    },
    "replay": {"post-processing": POST_PROCESSING},
    "account": {
        "plan": PLAN,
        "real arithmetic": REAL_ARITHMETIC,
        "adjacency": _ADJACENCY,
        "unit of reports": form("In the reports given, one example is {unit}", unit=_ONE_EXAMPLE),
        "counted together": COUNTED_TOGETHER,
        "one band": form(
            "with 1 band noise is independent: this is DP-SGD, with {error}", error=_ERROR
        ),
        "bands": form(
            "{count} bands: {error}; independent noise (DP-SGD) of the same epsilon has noise multiplier {number} and "
            "an error of {number}, {number} times as much", count=COUNT, error=_ERROR, number=NUMBER,
        ),
        "error by bands": form(
            "error by {what}: {errors}", what="bands|buffers", errors=rf"{NUMBER} with \d+(?:, {NUMBER} with \d+)*"
        ),
        "buffers": form(
            "{buffers}: {error}; independent noise on Poisson batches (DP-SGD) of the same epsilon has noise "
            "multiplier {number} and an error of {number}, {number} times as much",
            buffers=either("buffer"), error=_ERROR, number=NUMBER,
        ),
        "search": form(
            "One run alone has epsilon {number} at delta {number}; releasing the best of a random number of them, "
            "{number} on average ({law} law), raises it to {number}", number=NUMBER, law=r"[a-z0-9.,= -]{1,60}",
        ),
    },
    "secrets-plan": {
        **{f"plan {i}": text for i, text in enumerate(SECRETS_PLAN, start=1)},
        "secrets in no record": form(UNUSED_SECRETS, count=COUNT, secrets=either("secret"), are="is|are"),
    },
    "secrets-scan": {
        "keep the book": KEEP_THE_BOOK,
        "not looked for": NOT_LOOKED_FOR,
        "texts in no record": form(
            "{count} of the listed texts {are} in no record, and not in the book", count=COUNT, are="is|are"
        ),
    },
    "shadow": {
        "private folder": SHADOWS,
        "models made alike": ALIKE_SHADOWS,
        "left out": form(
            "left out: {records} an earlier one of the pool",
            records=either("record that repeats", "records that repeat"),
        ),
    },
    "audit": of_audits.TEXTS,
}  # fmt: skip
