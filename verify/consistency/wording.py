"""The texts that carry a guarantee's meaning, as a closed list: what each assumption says, and whose bound it is.

A text that is not on the list may mean anything, so nothing is passed that rests on one. A program of the user's own
may well write others; privctl writes these. Numbers in them stand for themselves where other checks recompute them.
What the assumptions and guarantees of one training method say is listed in its module in ``verify.methods``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from privctl.domain.events import Ledger
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import ContributionTest
from verify.events import row_of
from verify.methods.expected import StatedTraining
from verify.stated import method_of, noise_source_of, training_of
from verify.texts import notes

_NUMBER = r"[\d.e+-]+"
#: What a run adds of the test that a record's contribution is its own.
TESTED = (
    "(; whether its gradient is its own was not tested|; tested on made-up records before the first step: (no batch "
    "leaves anything behind for another|loss and gradient were the same alone and in batches of up to "
    rf"\d+ records and \d+ padded tokens, within rounding of {_NUMBER} of its size in [a-z0-9:, -]+"
    rf"(, {_NUMBER} of its size in [a-z0-9:, -]+)*(, every text being padded to \d+ tokens)?))?"
)

#: Name of an assumption -> the statements it may have, as regular expressions for the whole text.
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
        r"the names of the classes were known without the examples \(they were collected from them\)",
        r"the released labels (?:was|were) chosen without the examples \(the training collected it from them\)",
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
        "the loop computed the loss of each row of a batch from that row alone, trained on no other examples, left out "
        "no batch because of what was in it, changed these weights by the steps of this optimizer only, and computed "
        "nothing else from the examples",
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

_GRID = "privacy loss distribution \\(privctl\\), connect the dots"
_GAUSSIAN = r"analytic Gaussian \(Balle(-| and )Wang 2018\), exact"
RENYI = "Renyi divergences, Canonne, Kamath and Steinke 2020"
_FANO = (
    "KL divergence (from the secret's absence|between two values with opposite contributions), exact integral; "
    "Fano's inequality"
)
TIGHT = f"{_GRID}|{_GAUSSIAN}"
_POSTER = "DP fine-tuning poster, "

#: Name of a guarantee -> whose bound it is; both regular expressions for the whole text, the first that fits counts.
ACCOUNTANTS: dict[str, str] = {
    "published": "DP-Weights, (algorithm2|eq1)",
    "convex|strongly-convex|smooth|nonconvex": _GAUSSIAN,
    r"basic \(naive\) composition": "Dwork et al. 2006, amplified by sampling",
    "advanced composition": "Dwork, Rothblum and Vadhan 2010, the whole formula",
    "optimal composition": "Kairouz, Oh and Viswanath 2015",
    "poster: naive": rf"{_POSTER}sum over rate \* steps participations, classical Gaussian",
    "poster: advanced": f"{_POSTER}simplification as printed, with the ratio inverted",
    "poster: advanced, corrected": (
        rf"{_POSTER}simplification with the ratio corrected: epsilon = 2 eps' sqrt\(2 k ln 1/delta'\)"
    ),
    # Reports of earlier versions.
    "naive, as on the poster": r"sum over rate \* steps participations, classical Gaussian",
    "advanced, as on the poster": "printed simplification, which has the ratio upside down",
    "the same, right way up": r"the simplification read as epsilon = 2 eps' sqrt\(2 k ln 1/delta'\)",
    "moments / Renyi DP": "Abadi et al. 2016; Mironov, Talwar and Zhang 2019",
    "privacy loss distribution": f"Koskela et al. 2020; Doroshenko et al. 2022|{TIGHT}",
    "GDP: estimate, not a bound": "Bu, Dong, Long and Su 2020",
    "passes, not amplified": "one exact Gaussian a pass; no gain from the order",
    "drawing a fixed number": "Dong, Roth and Su 2022, theorem 4.2",
    "one random step a pass": (
        "Chua et al. 2025, Feldman and Shenfeld 2025; the whole distribution, bounded in the convex order"
    ),
    "Opacus PRV": "Opacus, after Gopi, Lee and Wutschitz 2021",
    "Renyi DP": RENYI,
    r"mutual information \(MI-DP\)": "Cuff and Yu 2016, one bit a fired group and step, in nats",
    r"\(epsilon, .+\)-DP, (Poisson|shuffled) batches.*": "one record that decides the sign of its batch",
    "any one record": TIGHT,
    # Of trainings in other programs' loops.
    "own-loop|opacus": TIGHT,
    "secret protection": _FANO,
    "secret protection, mutual information": (
        f"{_FANO}|KL divergence (from the secret's absence|of opposite contributions), certified upper bound; "
        "Fano's inequality"
    ),
    "secret protection, trade-off curve": (
        f"{TIGHT}|trade-off curve of the privacy loss distribution, from the secret's absence"
    ),
}


def unknown(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Each text of a guarantee that is not on the list, in one sentence."""
    method = method_of(report)
    own = {} if method is None else method.accountants
    wanted = next((of for name, of in {**own, **ACCOUNTANTS}.items() if re.fullmatch(name, guarantee.name)), None)
    if wanted is None:
        yield f"privctl states no guarantee named {guarantee.name!r}, so what it bounds is unknown"
    elif not re.fullmatch(wanted, guarantee.accountant):
        yield f"its accountant is called {guarantee.accountant!r}, which is not whose bound it is"
    for each in guarantee.assumptions:
        of_method = () if method is None else method.statements.get(each.name, ())
        known = (*STATEMENTS.get(each.name, ()), *of_method, *_of_events(report, each.name))
        if not known:
            yield f"it rests on an assumption {each.name!r} that is not known here"
        elif not any(re.fullmatch(pattern, each.statement, re.DOTALL) for pattern in known):
            yield f"its assumption {each.name!r} says {each.statement!r}, which is not that assumption"
    if not notes.known(guarantee.note):
        yield f"its note says {guarantee.note!r}, which privctl does not write, so it may mean anything"
    if report.step == "account":
        yield from _unlimited(report, guarantee)
    yield from _of_another_run(report, {a.name: a.statement for a in guarantee.assumptions})


def _unlimited(report: PrivacyReport, guarantee: Guarantee) -> Iterator[str]:
    """Each kind of event of a plan of which no assumption says what one example may change."""
    said = [each.statement for each in guarantee.assumptions if each.name == "contribution"]
    events = report.mechanism.events if isinstance(report.mechanism, Ledger) else ()
    for kind, event in {type(event): event for event in events}.items():
        known = row_of(event).statements.get("contribution", STATEMENTS["contribution"])
        if said and not any(re.fullmatch(pattern, each) for pattern in known for each in said):
            yield f"no assumption 'contribution' of it says what one example may change in {kind.tag} events"


def _of_events(report: PrivacyReport, name: str) -> Iterator[str]:
    """What the kinds of the ledger's events let an assumption say."""
    for event in report.mechanism.events if isinstance(report.mechanism, Ledger) else ():
        for pattern in row_of(event).statements.get(name, ()):
            yield f"{pattern}{TESTED}" if name == "contribution" else pattern


def _of_another_run(report: PrivacyReport, names: Mapping[str, str]) -> Iterator[str]:
    """Each assumption whose statement names what the rest of the report does not."""
    source = noise_source_of(report)
    if "secret noise" in names and names["secret noise"] != f"nobody can foretell the noise: {source}":
        yield f"its assumption 'secret noise' speaks of another source than {source!r}"
    if report.step == "retrain" and "contribution" in names:
        _, _, stated = names["contribution"].partition("; ")
        if stated != (tested := _tested(training_of(report).contribution_test)):
            yield f"its assumption 'contribution' says {stated!r} of the test, but the report records {tested!r}"
    if report.step == "retrain" and "rounding of sums" in names:
        yield from _other_rounding(training_of(report), names["rounding of sums"])
    if "step-size" in names:
        rate = getattr(getattr(report.mechanism, "training", None), "learning_rate", None)
        if f"the learning rate {rate} is" not in names["step-size"]:
            yield f"its assumption 'step-size' speaks of another learning rate than {rate}"


def _other_rounding(parameters: StatedTraining, statement: str) -> Iterator[str]:
    """Figures of the assumption on rounding that are not those of the recorded test, and a margin that no run leaves.

    A run in bfloat16 that is from before it had a margin of its own leaves the other.
    """
    margins = [f"{margin:g}" for margin in (2.0**-10, *([2.0**-4] if parameters.bf16 else []))]
    if not any(f" no more than the {margin} of " in statement for margin in margins):
        yield f"its assumption 'rounding of sums' states a margin that clipping does not leave, which is {margins[-1]}"
    _, found, figures = statement.partition(": ")
    if not found:
        return
    test, size, examples = parameters.contribution_test, parameters.batch_size or 0.0, parameters.examples or 0
    largest = max(test.differences.values(), default=math.inf) if test is not None else math.inf
    most = (math.ceil(size), math.ceil(size + 6 * math.sqrt(size) + 20))
    expected = [f"{min(n, examples)} records at most, which differ by {largest:.2g} of their size" for n in most]
    if figures not in expected:
        yield f"its assumption 'rounding of sums' says {figures!r}, but what is recorded gives {expected[-1]!r}"


def _tested(found: ContributionTest | None) -> str:
    """What the recorded test of a record's contribution lets a report say; its numbers are checked elsewhere."""
    if found is None:
        return "whether its gradient is its own was not tested"
    beginning = "tested on made-up records before the first step: "
    if not found.allowed:
        return f"{beginning}no batch leaves anything behind for another"
    return (
        f"{beginning}loss and gradient were the same alone and in batches of up to {found.records} records and "
        f"{found.tokens} padded tokens, within rounding of "
        + ", ".join(f"{share:g} of its size in {name}" for name, share in found.allowed.items())
        + ("" if found.padded_to is None else f", every text being padded to {found.padded_to} tokens")
    )
