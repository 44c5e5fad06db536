"""A self-test before anything private is touched: whether a record's loss and gradient depend on that record alone.

Clipping bounds what one record adds to a sum only where no record changes what the others add. The padded length of a
batch, statistics over a batch, the capacity of experts or a scale for a whole batch break that. Here the real network
and the task's own loss are run on made-up records, alone and among others, and the program refuses where they disagree.
"""

from privctl.train.contribution.examine import IndependenceTest, examine
from privctl.train.contribution.findings import Dependence, DependentRecordsError
from privctl.train.contribution.probes import BatchLimits
from privctl.train.contribution.views import ClippedDerivatives, ClippedGradients, ComputationStage, LossOnly

__all__ = [
    "BatchLimits",
    "ClippedDerivatives",
    "ClippedGradients",
    "ComputationStage",
    "Dependence",
    "DependentRecordsError",
    "IndependenceTest",
    "LossOnly",
    "examine",
]
