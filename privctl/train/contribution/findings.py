"""What the contribution test may find, its rounding tolerances, and its error messages."""

from __future__ import annotations

from enum import StrEnum

from privctl.domain.errors import InputError

#: The largest allowed difference between a record's gradient alone and in a batch, relative to its norm, and of its
#: loss in nats. Batches of other shapes are summed in another order, which with float32 products makes about 1e-6, or
#: 1e-5 in deep networks. n records move a clipped sum by at most n times this fraction of the clip norm. A dependence
#: through the model itself is larger.
ROUNDING = 1e-4
#: The same for products in bfloat16 or TF32, with relative rounding errors of 2^-9 and 2^-11.
ROUNDING_REDUCED = 0.1
#: The same for quantized layers, where a difference in float32 rounding can move a value by a whole level.
ROUNDING_QUANTIZED = 0.1
#: For finite differences of losses, this many standard deviations of the losses' rounding error are also allowed.
DEVIATIONS = 8


class Dependence(StrEnum):
    """The property of other records on which a record's loss or gradient was found to depend."""

    PADDED_LENGTH = "the length that its batch is padded to"
    CONTENT = "the content of the other records in its batch"
    SIZE = "the number of records in its batch"
    POSITION = "its place in the batch"
    STATE = "the batches before it"
    PARAMETERS = "what earlier forward passes wrote into the weights"
    RANDOM = "random numbers that are drawn for a batch as a whole"


_REMEDY = {
    Dependence.PADDED_LENGTH: "give --max-length, so that every text can be padded to one public length",
    Dependence.CONTENT: "use a model without layers that read across records, such as batch statistics, experts of "
    "limited capacity or one scale for a whole batch",
    Dependence.SIZE: "use a model whose layers do not read across records",
    Dependence.POSITION: "use a model whose layers do not read across records",
    Dependence.STATE: "use a model that keeps nothing from batch to batch, or freeze what it keeps",
    Dependence.PARAMETERS: "use a model whose weights change by training alone",
    Dependence.RANDOM: "remove --dropout, set the model's layerdrop to 0, or use a model that draws nothing in its "
    "forward pass",
}


class DependentRecordsError(InputError):
    """A record's loss or gradient depends on other records, in the way that ``kind`` says."""

    def __init__(self, kind: Dependence, evidence: str, *, padded: int | None = None, limited: bool = True) -> None:
        """``padded`` is the length that all texts were padded to; ``limited``, whether a public limit is known."""
        remedy = _REMEDY[kind]
        if kind is Dependence.PADDED_LENGTH and limited:
            remedy = "use a model of another architecture"
        tried = "" if padded is None else f", even with every text padded to {padded} tokens"
        super().__init__(
            f"this model cannot be trained with clipping: a record's loss or gradient depends on {kind}{tried} "
            f"({evidence}, on made-up records), so that one record changes what others add to the sum and no clip norm "
            f"bounds it; {remedy}"
        )
        self.kind, self.evidence = kind, evidence
