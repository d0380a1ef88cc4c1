"""Hugging Face transformers: plain generation, prompt lookup as its documentation recommends, or a draft model."""

import time

import torch

from . import missing, need_assistant, timeline

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LOOKUP_TOKENS = 10


class Peer:
    """transformers with one target. assistant: folder of an independent draft, a Hugging Face model with the target's
    vocabulary."""

    def __init__(self, cores, target, precision, mode, assistant=None, device="cpu"):
        try:
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError:
            raise missing("transformers") from None
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(len(cores))
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=DTYPES[precision]).eval().to(device)
        self.model.generation_config.eos_token_id = None  # no token ends the text
        self.model.generation_config.pad_token_id = 0
        self.options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if mode == "lookup" else {}
        if mode == "assisted":
            folder = need_assistant(assistant)
            draft = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision]).eval().to(device)
            draft.generation_config.eos_token_id = None
            self.options = {"assistant_model": draft}

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        arrivals = Arrivals()
        prompt = torch.tensor([ids], device=self.model.device)
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
    """A streamer that records when tokens arrive."""

    def put(self, tokens):
        self.append((time.perf_counter(), tokens.reshape(-1).tolist()))

    def end(self):
        pass
