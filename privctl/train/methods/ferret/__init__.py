"""FERRET: training by the signs of directional derivatives along public random directions, most of them never taken."""
