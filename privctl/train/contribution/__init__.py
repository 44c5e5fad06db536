"""The contribution test: whether a record's loss and gradient depend on that record alone; it uses no private data.

Clipping bounds what one record adds to a sum only if no record changes what the others add. The padded length of a
batch, batch statistics, the capacity of experts or a scale for a whole batch violate that. The test runs the real
network with the task's loss on synthetic records, alone and in batches, and refuses a network if the results differ.
"""
