"""What an extraction audit states besides its figures: its premises, what it does not count, what it left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from audits.extraction.summary import CUED, Texts
from audits.extraction.windows import LabelledWindows, SkippedReason, WindowShape
from privctl.domain.report import Omission
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from audits.extraction.elsewhere import KnownElsewhere
    from audits.extraction.request import ExtractionRequest

#: The premise of the comparison with held-out text if privctl did not draw the sides.
CONTROL = (
    "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the "
    "model learned elsewhere and that is like no other, it counts as theirs (--reference MODEL leaves it out)"
)
CONTROL_WITH_REFERENCE = (
    "extraction: held-out text is taken to be drawn as the training data were; if these hold text that the model "
    "learned elsewhere, that is like no other and that the reference model does not give, it counts as theirs"
)
#: The maximum number of lines that an omission lists.
_LINES = 10


def caveats(
    request: ExtractionRequest,
    sides: Sequence[LabelledWindows],
    texts: Sequence[Texts],
    shape: WindowShape,
    control: Sequence[str],
) -> Iterator[str]:
    """The premises of the figures of ``texts``; ``control`` states those of the comparison with held-out text."""
    train = texts[0]
    yield (
        f"extraction: records of {request.train.name} are taken to be all of the training data; copies elsewhere "
        "are not counted, nor copies that the tokenizer splits differently"
    )
    yield _after_what(request, shape)
    if any(side_texts.near is None for side_texts in texts):
        why = "was not asked for" if request.exact_only else "needs a network that transformers can generate with"
        yield f"extraction: text that differs by a token does not count, as comparing it {why}"
    if len(texts) > 1:
        yield from control
    else:
        yield "extraction: without held-out text, nothing tells recalled text from text anyone would write"
    undecided = sum(int(side_texts.undecided.sum()) for side_texts in texts)
    if undecided:
        yield (
            f"extraction: {counted(undecided, 'text hangs', 'texts hang')} on logits that "
            "rounding decides, even alone and in float32; the intervals allow for either verdict"
        )
    cued = int((train.extracted & (train.cue > CUED)).sum())
    if cued:
        yield (
            f"extraction: {cued} of {int(train.extracted.sum())} extracted training texts have more than half of "
            "their suffix's tokens in the prefix, and may be copied rather than recalled"
        )
    short = sum(map(shape.is_short, sides[0].sample.rows))
    if short:
        yield (
            f"extraction: {counted(short, 'training text has', 'training texts have')} a prefix of fewer than "
            f"{counted(shape.prefix, 'token')}"
        )


def of_reference(elsewhere: KnownElsewhere, texts: Sequence[Texts]) -> Iterator[str]:
    """How many texts the reference model removed from the comparisons of ``texts``, and the premises of this."""
    reference, (train, heldout) = elsewhere.reference, (side.left_out for side in texts)
    name = reference.model.path.name or str(reference.model.path)
    yield (
        f"extraction: {counted(train, 'training text')} and {counted(heldout, 'held-out text')} that {name} gives too "
        "are known from elsewhere, and not compared"
    )
    cleared = "its own report names other data" if reference.cleared else "no report says so"
    yield (
        f"extraction: {name} is taken to be trained on neither file, and {cleared}; if it was trained on the training "
        "text, what that taught both models is not found"
    )
    if reference.began:
        yield f"extraction: the model's report names the weights of {name} as those that its training began with"
    else:
        yield (
            f"extraction: no report says that the training began with {name}; text that the model knew before, and "
            f"{name} does not give, counts as learned from the training data"
        )


def omissions(
    sides: Sequence[LabelledWindows], omitted: Sequence[Sequence[tuple[int, SkippedReason]]]
) -> Iterator[Omission]:
    """The records of each side without a verdict, grouped by reason."""
    for side, entries in zip(sides, omitted, strict=True):
        for reason in sorted({reason for _, reason in entries}):
            lines = sorted(line for line, why in entries if why is reason)
            shown = ", ".join(map(str, lines[:_LINES])) + (", ..." if len(lines) > _LINES else "")
            records = f"{len(lines)} {'record' if len(lines) == 1 else 'records'} of {side.sample.path.name}"
            yield Omission(what=f"{records} in extraction (line {shown})", reason=reason.reason)


def _after_what(request: ExtractionRequest, shape: WindowShape) -> str:
    tokens = f"{shape.suffix} tokens of it"
    if request.adversary is None:
        return (
            f"extraction: only what follows the record's own beginning counts, {tokens}; what comes after another "
            "beginning does not (--adversarial N searches such beginnings)"
        )
    return (
        f"extraction: what follows the record's own beginning counts, {tokens}, and what follows a prefix that the "
        "search found; such a prefix is made of tokens, which another tokenizer may not give back from its text"
    )
