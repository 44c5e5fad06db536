"""FERRET from what a user asks to a finished model, its report and its stream of updates; and back from the stream."""
