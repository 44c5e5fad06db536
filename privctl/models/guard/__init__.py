"""What files of a model may make a loader do: nothing but build the digested weights, within the memory they need."""
