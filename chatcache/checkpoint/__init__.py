"""From the name of a model to a checkpoint: a local folder with config, weights and tokenizer."""
