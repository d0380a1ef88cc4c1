"""vLLM on a GPU: plain, with its n-gram drafts, or with a draft model."""

import time

from . import missing, need_assistant, timeline

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}  # from its own documentation


class Peer:
    def __init__(self, cores, target, precision, mode, assistant=None):
        try:
            from vllm import EngineArgs, LLMEngine, SamplingParams
        except ImportError:
            raise missing("vllm") from None
        options = {"lookup": LOOKUP, "ar": None}.get(mode)
        if mode == "assisted":
            options = {"method": "draft_model", "model": need_assistant(assistant), "num_speculative_tokens": 5}
        args = EngineArgs(
            model=target, dtype=DTYPES[precision], max_num_seqs=1, enable_prefix_caching=False, disable_log_stats=True,
            speculative_config=options,
        )  # fmt: skip
        self.engine = LLMEngine.from_engine_args(args)
        self.params = SamplingParams
        self.requests = 0

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        params = self.params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        arrivals = []
        known = 0
        self.requests += 1
        start = time.perf_counter()
        self.engine.add_request(str(self.requests), {"prompt_token_ids": ids}, params)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                tokens = list(output.outputs[0].token_ids)  # all so far
                if len(tokens) > known:
                    arrivals.append((time.perf_counter(), tokens[known:]))
                    known = len(tokens)
        return timeline(start, arrivals, max_tokens)
