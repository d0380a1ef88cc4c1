"""OpenVINO GenAI, on a GGUF file of the target: plain, with its prompt lookup, or with a draft model.

With bf16 on one core, AMX is switched off, because its kernels divide by half the number of threads and crash.
"""

import os
import time
from pathlib import Path

from . import converted, missing, need_assistant, timeline
from .gguf_draft import convert
from .gguf_file import gguf_of

# by precision, the file and the type of arithmetic and KV cache; None leaves the choice to OpenVINO
FORMATS = {"Q8_0": ("Q8_0", None), "bf16": ("F16", "bf16"), "F16": ("F16", "f32")}
LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}  # from its own example
ASSISTED = {"num_assistant_tokens": 4}
CPUINFO = Path("/proc/cpuinfo")


class Peer:
    """OpenVINO GenAI with one target. assistant: folder of an independent draft, a Hugging Face model with the target's
    vocabulary."""

    def __init__(self, cores, target, precision, mode, assistant=None):
        file, arithmetic = FORMATS[precision]
        if arithmetic == "bf16" and len(cores) == 1 and "amx_bf16" in CPUINFO.read_text():
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # read when it is loaded
        try:
            import openvino
            import openvino_genai as genai
        except ImportError:
            raise missing("openvino_genai", "openvino-genai") from None
        os.sched_setaffinity(0, cores)  # loading torch has bound this thread to one core, and OpenVINO uses only those
        self.genai = genai
        self.tensor = openvino.Tensor
        device = {"INFERENCE_NUM_THREADS": len(cores)}
        if arithmetic:
            device |= {"INFERENCE_PRECISION_HINT": arithmetic, "KV_CACHE_PRECISION": arithmetic}
        path = gguf_of(Path(target), file)
        draft = draft_of(Path(need_assistant(assistant)), path, file) if mode == "assisted" else None
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # every prompt is computed in full
        options = {"scheduler_config": scheduler}
        self.config = genai.GenerationConfig()
        self.config.do_sample = False
        self.config.ignore_eos = True
        if mode == "lookup":
            options["prompt_lookup"] = True
        elif mode == "assisted":
            options["draft_model"] = genai.draft_model(str(draft), "CPU", **device)
        for name, value in {"lookup": LOOKUP, "assisted": ASSISTED}.get(mode, {}).items():
            setattr(self.config, name, value)
        self.pipeline = genai.LLMPipeline(str(path), "CPU", **options, **device)

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        import numpy as np

        arrivals = []
        genai = self.genai

        class Streamer(genai.StreamerBase):
            def write(self, tokens):
                arrivals.append((time.perf_counter(), [tokens] if isinstance(tokens, int) else list(tokens)))
                return genai.StreamingStatus.RUNNING

            def end(self):
                pass

        self.config.max_new_tokens = max_tokens
        prompt = np.array([ids], np.int64)
        inputs = genai.TokenizedInputs(self.tensor(prompt), self.tensor(np.ones_like(prompt)))
        start = time.perf_counter()
        self.pipeline.generate(inputs, self.config, Streamer())
        return timeline(start, arrivals, max_tokens)


def draft_of(assistant: Path, target: Path, precision: str) -> Path:
    """The folder of the draft as an OpenVINO model. It is made from a GGUF file, which OpenVINO itself does not accept
    as a draft."""

    def make(folder):
        import openvino_genai as genai

        folder.mkdir(exist_ok=True)
        file = folder / "draft.gguf"
        convert(assistant, target, precision, file)
        genai.LLMPipeline(str(file), "CPU", enable_save_ov_model=True, INFERENCE_PRECISION_HINT="f32")
        file.unlink()

    return converted(assistant, f"{precision}.openvino", make)
