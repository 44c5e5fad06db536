"""From a request to a job: data, model, budget, and places that are free for the results."""
