"""Published speeds with their sources. Nobody published acceptance or hit rates beside them."""

from dataclasses import dataclass

PAPER = "arXiv 2603.03251"
ANNOUNCEMENT = "the system's announcement"
REPRODUCTION = "an independent reproduction"
WORKLOADS = ("HumanEval", "UltraFeedback", "Alpaca", "GSM8K")
CONTEXT = 400.0  # tokens of a sequence on average: a prompt of 150 and half of 512 new ones


@dataclass(frozen=True)
class Pair:
    """A pair of target and draft, with the settings of its published runs."""

    name: str
    target: str
    draft: str
    gpu: str
    gpus: int  # GPUs of the target; SSD adds one for the draft
    k_sd: int  # tokens of a speculation in mode sd
    k_ssd: int  # tokens of a speculation in mode ssd
    fan_out: int  # bonus tokens prepared for at every node


# Llama: README of the paper's code, `--spec --k 6` and `--spec --async --k 7 --f 3`. Qwen: only K = 5 of SD is
# published; SSD is assumed to have the same K and the fan-out of the other pair.
PAIRS = {
    "llama": Pair("Llama-3.1-70B / 3.2-1B", "llama-3.1-70b", "llama-3.2-1b", "H100", 4, 6, 7, 3),
    "qwen": Pair("Qwen3-32B / 0.6B", "qwen3-32b", "qwen3-0.6b", "H100", 4, 5, 5, 3),
}

# tokens a second, batch 1, greedy, 512 tokens, decode only, by WORKLOADS
SPEEDS = {
    "llama": {"ar": (54.7,) * 4, "sd": (176, 138, 145, 188), "ssd": (283, 215, 224, 301)},
    "qwen": {"ar": (88.8,) * 4, "sd": (146, 122, 127, 152), "ssd": (222, 174, 185, 234)},
}

# the reproduction's Qwen pair: seconds of a verification and of a step of the draft's tree, tokens a second of SSD by K
STEPS = {"verify": 11.5e-3, "draft": 2.5e-3}
BY_K = {4: 211, 5: 194, 6: 175, 7: 159}

# tokens a second of the Llama pair on GSM8K, K = 6, fan-out 3, by batch, 8 to 32 prompts: from
# tests/reference_test_outputs.md of an earlier version of the paper's code (2026-02-10)
RECORD = "the test record of the paper's code"
BY_BATCH = {1: 238, 2: 409, 4: 681, 8: 1166, 16: 1900}

# the announcement's Llama-70B on 4 H100: tokens a second of AR, SD, SSD
ANNOUNCED = {"HumanEval": (12.3, 28.7, 61.2), "GSM8K": (8.9, 21.4, 47.8), "dialogue": (15.6, 36.2, 78.5)}
SHARES = {"drafting": 0.35, "verification": 0.55, "transfer and synchronisation": 0.10}  # of the time without SSD
# on HumanEval
BRANCHES = 4
HIT_RATE = 0.82
MORE_COMPUTATION = 0.17  # additional computation of SSD, as a share
BANDWIDTH_USE = (0.68, 0.92)  # share of the peak bandwidth that is used without SSD, and with it
