"""CTranslate2, on a target that its own converter has converted."""

import time
from pathlib import Path

from . import converted, missing, timeline

TYPES = {"int8": "int8_float32", "fp32": "float32"}  # types of linear layers; on CPUs it has no bf16


class Peer:
    """CTranslate2 with one converted target. Decoding runs past the end of sequence, as no token is an end token."""

    def __init__(self, cores, target, precision, mode):
        try:
            import ctranslate2
            from ctranslate2.converters import TransformersConverter
            from transformers import AutoTokenizer
        except ImportError:
            raise missing("ctranslate2", "ctranslate2 transformers") from None
        quantization = TYPES[precision]

        def convert(folder: Path) -> None:
            TransformersConverter(target).convert(str(folder), quantization=quantization, force=True)

        folder = converted(Path(target), f"ctranslate2-{precision}", convert)
        self.generator = ctranslate2.Generator(
            str(folder), compute_type=quantization, inter_threads=1, intra_threads=len(cores)
        )
        if self.generator.compute_type != quantization:
            raise ValueError(f"ctranslate2: computes in {self.generator.compute_type} here, wanted {quantization}")
        self.tokens_of = AutoTokenizer.from_pretrained(target).convert_ids_to_tokens

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        arrivals = []

        def note(step) -> bool:
            arrivals.append((time.perf_counter(), [step.token_id]))
            return False

        prompt = self.tokens_of(ids)
        start = time.perf_counter()
        self.generator.generate_batch(
            [prompt],
            max_length=max_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[],
            callback=note,
        )
        return timeline(start, arrivals, max_tokens)
