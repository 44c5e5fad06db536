"""Privacy loss distributions: composition of any dominating pairs by one FFT, tilted so that small deltas stay exact.

Each step's privacy loss is put on a grid by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022),
which never lowers a delta. Composing k steps is a k-th power under the Fourier transform (Koskela, Jalko and Honkela
2020). Before it, masses are multiplied by exp(tilt * loss), with the tilt at the saddle point of the delta in question:
then rounding in the transform is relative to that delta, be it 1e-5 or 1e-300. What the transform may still have
rounded away is bounded and added, as is all mass that lies outside the grid.

Not dp-accounting's, which truncates a tail mass of 1e-15 and does not bound what its transform rounds away: smaller
deltas are out of its reach.

The same machinery gives lower bounds: losses are merged into groups whose joint loss is a grid value. Merging outputs
is post-processing, so no delta rises, and the true value is enclosed from both sides.

``pairs`` describes one step, ``grid_plan`` chooses tilt, grid and window, ``grid`` puts a step on it, ``compose``
raises to the power, ``distribution`` gives epsilon and delta.
"""
