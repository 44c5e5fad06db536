"""A self-test before anything private is touched: whether a record's loss and gradient depend on that record alone.

Clipping bounds what one record adds to a sum only where no record changes what the others add. The padded length of a
batch, statistics over a batch, the capacity of experts or a scale for a whole batch break that. Here the real network
and the task's own loss are run on made-up records, alone and among others, and the program refuses where they disagree.
"""

from privctl.training.contribution.examine import Tested, examine
from privctl.training.contribution.findings import Dependence, Dependent
from privctl.training.contribution.probes import Limits
from privctl.training.contribution.views import ClippedDerivatives, ClippedGradients, Losses, Stage

__all__ = [
    "ClippedDerivatives",
    "ClippedGradients",
    "Dependence",
    "Dependent",
    "Limits",
    "Losses",
    "Stage",
    "Tested",
    "examine",
]
