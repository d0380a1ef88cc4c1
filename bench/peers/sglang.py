"""SGLang on a GPU: plain, with its n-gram drafts, or with a draft model."""

import time

from . import missing, need_assistant, timeline

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


class Peer:
    def __init__(self, cores, target, precision, mode, assistant=None):
        try:
            from sglang import Engine
        except ImportError:
            raise missing("sglang") from None
        options = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8} if mode == "lookup" else {}
        if mode == "assisted":
            options = {
                "speculative_algorithm": "STANDALONE",
                "speculative_draft_model_path": need_assistant(assistant),
                "speculative_num_steps": 4,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": 5,
            }
        self.engine = Engine(
            model_path=target, dtype=DTYPES[precision], max_running_requests=1, disable_radix_cache=True,
            skip_tokenizer_init=True, log_level="error", **options,
        )  # fmt: skip

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        arrivals = []
        known = 0
        start = time.perf_counter()
        for piece in self.engine.generate(input_ids=ids, sampling_params=params, stream=True):
            tokens = piece["output_ids"]
            count = piece["meta_info"]["completion_tokens"]
            if count > known:  # the ids of a piece are all so far, or only its own: the newest are last
                arrivals.append((time.perf_counter(), list(tokens[known - count :])))
                known = count
        return timeline(start, arrivals, max_tokens)
