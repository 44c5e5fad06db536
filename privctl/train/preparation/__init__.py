"""Turns a request into a job: reads data and model, sets the noise, and checks that the outputs are free."""
