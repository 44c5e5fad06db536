"""What a training measures after each epoch: names in the history of its report, and in its evidence."""

#: The names that evidence has for the metrics of the history.
QUANTITIES = {
    "training_loss": "training loss, nats",
    "clipped_fraction": "fraction of clipped gradients",
    "median_norm": "median gradient norm before clipping",
    "clipped_derivatives": "fraction of clipped vectors of derivatives",
    "median_derivatives": "median norm of a vector of derivatives before clipping",
    "zeroed_fraction": "fraction of examples without a finite gradient, which counted as zero",
    "public_loss": "loss of public records, nats",
    "held_out_loss": "held-out loss, nats",
    "held_out_perplexity": "held-out perplexity",
    "held_out_accuracy": "held-out accuracy",
    "held_out_micro_f1": "held-out micro F1",
    "held_out_squared_error": "held-out mean squared error",
    "held_out_entity_f1": "held-out entity F1",
    "held_out_exact_match": "held-out exact match",
    "held_out_f1": "held-out F1",
}
