"""Hugging Face transformers: plain generation, or prompt lookup as its own documentation recommends it."""

import time

import torch

from . import timeline

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LOOKUP_TOKENS = 10


class Peer:
    def __init__(self, cores, target, precision, mode):
        try:
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError:
            raise ImportError("transformers is not installed: pip install transformers") from None
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(len(cores))
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=DTYPES[precision]).eval()
        self.model.generation_config.eos_token_id = None  # no token ends the text
        self.model.generation_config.pad_token_id = 0
        self.options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if mode == "lookup" else {}

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        arrivals = Arrivals()
        prompt = torch.tensor([ids])
        start = time.perf_counter()
        with torch.inference_mode():
            self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=max_tokens,
                streamer=arrivals,
                **self.options,
            )
        return timeline(start, arrivals[1:], max_tokens)  # the first piece is the prompt


class Arrivals(list):
    """A streamer that notes when tokens come."""

    def put(self, tokens):
        self.append((time.perf_counter(), tokens.reshape(-1).tolist()))

    def end(self):
        pass
