"""llama.cpp through llama-cpp-python, on a GGUF file of the target: plain, or with its prompt lookup."""

import time
from pathlib import Path

from . import missing, timeline
from .gguf_file import gguf_of

LOOKUP_TOKENS = 2  # what llama-cpp-python recommends without a GPU


class Peer:
    """llama.cpp with one target. gguf: a file whose tensors have the precision (the file of gguf_of)."""

    def __init__(self, cores, target, precision, mode, gguf=None, context=4096):
        try:
            from llama_cpp import Llama
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
        except ImportError:
            raise missing("llama_cpp", "llama-cpp-python") from None
        path = gguf or gguf_of(Path(target), precision)
        draft = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS) if mode == "lookup" else None
        threads = {"n_threads": len(cores), "n_threads_batch": len(cores)}
        self.llama = Llama(str(path), n_ctx=context, draft_model=draft, verbose=False, **threads)

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        self.llama.reset()
        arrivals = []
        start = time.perf_counter()
        for token in self.llama.generate(ids, temp=0.0, repeat_penalty=1.0):
            arrivals.append((time.perf_counter(), [token]))
            if len(arrivals) == max_tokens:
                break
        return timeline(start, arrivals, max_tokens)
