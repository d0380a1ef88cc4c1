"""Llama-class models: configuration, weights, forward pass, tokenizer, and where they come from."""
