"""Privacy loss distributions: composition of dominating pairs by one FFT, tilted to keep small deltas accurate.

Each step's privacy loss is put on a grid by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022),
which never lowers a delta. Composing k steps is a k-th power under the Fourier transform (Koskela, Jalko and Honkela
2020). Before the transform, masses are multiplied by exp(tilt * loss), with the tilt at the saddle point for the delta
in question, so that rounding errors are relative to that delta, whether it is 1e-5 or 1e-300. The remaining rounding
error is bounded and added, as is all mass outside the grid.

dp-accounting's implementation is not used, as it truncates a tail mass of 1e-15 and does not bound the rounding error
of its transform, so smaller deltas are out of its reach.

The same method gives lower bounds: losses are merged into groups whose joint loss is a grid value. Merging outputs is
post-processing, so no delta increases, and the true value is enclosed from both sides.

``pairs`` describes one step, ``grid_plan`` chooses tilt, grid and window, ``grid`` discretises a step, ``compose``
takes the powers, and ``distribution`` gives epsilon and delta.
"""
