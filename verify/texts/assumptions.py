"""The statements of assumptions, as a closed list.

Those of one kind of event are in ``verify.events``, and those of a training method in its module in ``verify.methods``.
Any number is accepted where other checks recompute it. Standard library only, like the gate.
"""

from __future__ import annotations

_NUMBER = r"[\d.e+-]+"
#: What a run adds on the test that a record's contribution does not depend on other records.
TESTED = (
    "(; whether its gradient is its own was not tested|; tested on made-up records before the first step: (no batch "
    "leaves anything behind for another|loss and gradient were the same alone and in batches of up to "
    rf"\d+ records and \d+ padded tokens, within rounding of {_NUMBER} of its size in [a-z0-9:, -]+"
    rf"(, {_NUMBER} of its size in [a-z0-9:, -]+)*(, every text being padded to \d+ tokens)?))?"
)

#: For each assumption, the statements it may have, as regular expressions for the whole text.
STATEMENTS: dict[str, tuple[str, ...]] = {
    "contribution": (
        f"one (example|record) changes what noise is added to by the clip norm at most{TESTED}",
    ),
    "poisson batches": (
        "every example enters each batch independently, with the stated probability",
        "every (example|record) enters each batch independently, with the probability that the plan gives it",
    ),
    "shuffled batches": ("every example is in one batch of each pass, and no other batch depends on it",),
    "balls-and-bins batches": (
        "in each pass every example takes part in exactly one step, chosen uniformly, independently of every other "
        "example, and in secret",
    ),
    "cyclic-poisson batches": (
        "the examples are divided into parts without looking at them, each on its own; steps take the parts in turn, "
        "and of its part a step takes each example independently, with the stated probability times the number of "
        "parts",
    ),
    "fixed-order batches": (
        "in each pass every example takes part in exactly one step, the same in all passes, which was chosen without "
        "looking at any example",
    ),
    "truncated-poisson batches": (
        "every example enters each batch independently, with the stated probability; of a batch above the stated size "
        "so many examples are kept, drawn uniformly",
    ),
    "with-replacement batches": (
        "each place of a batch is drawn afresh, uniformly among all examples, always of as many places",
    ),
    "fixed-size batches": ("each batch is drawn afresh, uniformly, without replacement, always of the same size",),
    "whole passes": ("every example is in one batch of each pass, in an order that does not depend on the data",),
    "public masks": (
        "which groups fire, and the random directions, do not depend on the data"
        "(: a public seed makes them, which (was given|the operating system drew before the first step))?",
    ),
    "starting weights": ("the training began with weights that were made without these examples(, at random)?",),
    "normalisation statistics": (
        "batch normalisation goes by its initial statistics, 0 and 1, and is released with them",
        "the running statistics of batch normalisation, released as they were, were computed without these examples",
    ),
    "float arithmetic": (
        r"what is released is rounded onto a public grid, and each deviate is within 2\^-48 of its pair's radius of an "
        "exact Gaussian's: the machine's logarithm, sine and cosine were compared with others before noise was drawn",
    ),
    "unit of privacy": (
        "each record is one example; who is in several records is protected in each, not in all together",
        r"all records with one value of .+?(, of which \d+ at most are used,)? are one example"
        r"(, and of up to \d+ that a step draws the mean gradient is clipped)?",
        r"all records that name one user in .+? are one example; of neighbours neither has a user in more than \d+, or "
        "it is refused",
        r"all records that name one user in .+?, of which \d+ at most are used, are one example; neighbours differ in "
        "whether these contribute, and which users each record names is public and the same in both",
    ),
    "names of users": (
        r"\d+ names in .+? that differ from another's only in case, spaces or Unicode form are those of different "
        "users",
    ),
    "number of examples": (
        r"that there are \d+ examples is public: neighbours are compared at the same sampling rate, number of steps "
        "and noise, which follow from it",
    ),
    "vocabulary": (
        "the tokenizer, which is released too, was made without these examples",
        r"the tokenizer's words were known without the examples \(they were collected from them\)",
        r"the released vocabulary was chosen without the examples \(the training collected it from them\)",
    ),
    "labels": (
        "the classes, whose number and names are released too, were chosen without these examples",
        r"the names of the classes were known without the examples \(they were collected from them\)",
        r"the released labels (?:was|were) chosen without the examples \(the training collected it from them\)",
    ),
    "scaling": (
        "the numbers that scale its inputs, which are released too, were chosen without these examples",
        r"the numbers that scale its inputs were known without the examples \(they were collected from them\)",
        r"the released scaling was chosen without the examples \(the training collected it from them\)",
    ),
    "secret noise": ("nobody can foretell the noise: .+",),
    "noise": (
        f"every step has Gaussian noise of {_NUMBER} clip norms on its sum, no less than the {_NUMBER} that the plan "
        "found sufficient",
    ),
    "plan": (
        "the plan is public and the same with and without the record: neighbours are compared at the same "
        "probabilities of the other records, number of steps and noise, though these were computed from all records; "
        f"the record itself is drawn with probability {_NUMBER} at most, and less tells less"
        r"(; \d+ of \d+ records are not used at all)?",
    ),
    "book of secrets": (
        "each secret lies in the records that the book names and in no others: where the scan missed one, it is not "
        "protected",
    ),
    "whole book": (
        "the book names every record that depends on a secret, and which these are does not depend on the secret's "
        "value",
    ),
    "priors": (
        "whoever attacks knows all other records at most, and then gives no value of a secret more than its prior; a "
        "secret's value decides about nothing but what stands in its records",
    ),
    "prior": ("knowing all else in the data, an adversary gives no value of a secret more than its prior",),
    "reference form": (
        "the run is compared with one to which the secret's records contribute nothing, which bounds guessing among "
        "any values",
    ),
    "pairwise form": (
        "no two values of a secret are told apart better than two with opposite contributions, as all cases tried "
        "show and no proof does",
    ),
    "opposite contributions": (
        r"two values of a secret differ most where their contributions are opposite \(checked on grids, not proved\)",
    ),
    "plan's numbers": (
        r"what (a step|the run) gives away was computed again for all \d+ secrets",
        r"the plan's numbers are right for \d+ of its \d+ secrets; for the \d+ that seemed nearest to their bounds "
        "they were computed again",
    ),
    "training-facts": (
        "the model was trained as the facts say: per-example clipping, each example once an epoch in a data-independent"
        r" order, a constant learning rate, a fixed normaliser, no other access to the data \(facts from .+?"
        r"(, which names these very bytes but is not signed)?\)",
    ),
    "secret-noise": ("the noise comes from a cryptographic generator whose key nobody knows",),
    "integer-tensors": (
        "tensors of integer type hold no trained weights",
        "tensors of integer type are index tables, masks and counters; none holds trained weights",
    ),
    "excluded-tensors": ("tensors left out by --include or --exclude do not depend on the data",),
    "frozen-tensors": ("tensors equal to the public base would be so whatever the data",),
    "training-rounding": (
        "float rounding in the training moved the weights no farther than the sensitivity says, which is derived for "
        "exact steps",
    ),
    "rounding of sums": (
        f"where a record is added, float rounding moves a batch's sum by no more than the {_NUMBER} of the clip norm "
        rf"that clipping leaves for it(: \d+ records at most, which differ by {_NUMBER} of their size)?",
    ),
    "unclipped count": (
        "each step releases of its batch, beside the sum, how many gradients are not clipped, counted from -1/2 to 1/2 "
        "each and with Gaussian noise of the stated standard deviation; so one record changes both together by no more "
        "than the noise multiplier is for, and clip norms follow from earlier releases alone",
    ),
    "own loop": (
        "the loop computed the loss of each row of a batch from that row alone, changed no row by random numbers of a "
        "known seed, trained on no other examples, left out no batch because of what was in it, changed these weights "
        "by the steps of this optimizer only, and computed nothing else from the examples",
    ),
    "reported ledger": (
        "the history of Opacus's accountant holds every step that touched the examples, at the noise and the sampling "
        "rate that were used, and nothing else was computed from them",
    ),
    "other releases": (
        "nothing else that is released with the weights, such as a tokenizer, class names, statistics or measures, "
        "depends on the examples",
    ),
    "initial-statistics": (
        "batch normalisation's statistics that are 0 and 1 were never computed, whatever the data",
    ),
    "batch-statistics": ("no statistic of the data is released without noise",),
    "tied-tensors": ("tensors with the same bytes are one parameter, whatever the data",),
    "separate-tensors": ("tensors that hold the same constant are parameters of their own",),
    "unrounded-weights": (
        "the weights were not rounded to (F16|BF16)( or BF16)? by or after the training that the facts describe: "
        "rounding can move them much farther than the sensitivity",
    ),
    "convex-loss": ("every example's loss is convex in the weights",),
    "strongly-convex-loss": (
        "every example's loss is strongly convex in the weights, with the constant given",
    ),
    "smooth-loss": ("every example's loss has a gradient that is Lipschitz with the smoothness given",),
    "clipping-inactive": (
        "no gradient ever exceeds the clip norm: where clipping acts, steps no longer contract",
    ),
    "clipping-keeps-convexity": (
        "the loss is of a generalized linear model, or its gradients never exceed the clip norm "
        r"\(clipping breaks convexity otherwise\)",
    ),
    "step-size": (
        rf"the learning rate {_NUMBER} is at most 2 / (smoothness|\(smoothness \+ strong convexity\))",
    ),
}  # fmt: skip
