"""Runs of the whole product with tiny models, in every combination of its options.

The models' logits are flat, so that the noise which target and draft share decides, and drafts of every kind are
accepted often.
"""

from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import tiny_checkpoint
from draft_helpers import write_draft
from safetensors.torch import load_file, save_file

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.lanes.verify_lane import VerifyLane

FLAT = 0.25  # of the last norm


class Case(NamedTuple):
    """One combination of options."""

    mode: str
    verify: str
    shape: str
    draft: str
    batch: int
    requests: str
    memory: str
    place: str

    @property
    def possible(self) -> bool:
        """Rejection in mode auto is that of sd, branches in ssd are for coupled, and one request preempts none."""
        if self.verify == "rejection" and (self.mode == "auto" or (self.mode, self.shape) == ("ssd", "tree")):
            return False
        return self.batch > 1 or self.memory != "preemption"

    def __str__(self):
        return ", ".join(map(str, self))


LEVELS = Case(
    mode=("ssd", "sd", "auto"),
    verify=("coupled", "rejection"),
    shape=("chain", "tree", "adaptive"),
    draft=("features", "independent"),
    batch=(8, 1),
    requests=("plain", "penalties", "grammar", "logprobs"),
    memory=("ample", "preemption", "prefix"),
    place=("one GPU", "draft on the CPU", "target on the CPU"),
)
SHAPES = {
    "chain": dict(k=2, branches=4),
    "tree": dict(k=2, tree_width=2, branches=4),
    "adaptive": dict(branches=2),
}
PREFIX = "many times a year "  # more than a page of tokens


def possible_cases() -> list[Case]:
    return [case for case in map(Case._make, product(*LEVELS)) if case.possible]


def covering_cases(together: int) -> list[Case]:
    """Few cases in which so many options occur together in every possible way: each adds the most that is left."""
    parts = {case: set(combinations(enumerate(case), together)) for case in possible_cases()}
    found, left = [], set().union(*parts.values())
    while left:
        found.append(max(parts, key=lambda case: len(parts[case] & left)))
        left -= parts[found[-1]]
    return found


def flattened(folder):
    """The checkpoint of a folder, with logits that differ little."""
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * FLAT
    save_file(weights, folder / "model.safetensors")
    return folder


class Models:
    """Targets and drafts by device, loaded once. folder: where their files go; layers: of the target."""

    def __init__(self, folder, layers: int, device: str):
        self.folder, self.device = folder, device
        self.target_folder = flattened(tiny_checkpoint.write(folder / "target", num_hidden_layers=layers))
        features = dict(layers=[0, layers], outputs=200)
        self.drafts = {
            "independent": flattened(write_draft(folder / "independent", depth=1)),
            "features": flattened(write_draft(folder / "features", **features)),
        }
        self.tokenizer = Tokenizer(self.target_folder)
        self.target, self.draft = cache(self._target), cache(self._draft)

    def _target(self, device: str) -> Llama:
        return Llama.load(self.target_folder, "bf16", device=device)

    def _draft(self, kind: str, target_device: str, device: str) -> Draft:
        return Draft.load(self.drafts[kind], self.target(target_device), "bf16", device)

    def of(self, case: Case) -> tuple[Llama, Draft]:
        target = "cpu" if case.place == "target on the CPU" else self.device
        draft = "cpu" if case.place == "draft on the CPU" else self.device
        return self.target(target), self.draft(case.draft, target, draft)

    def llm(self, case: Case, **more) -> LLM:
        """The product in one combination of options."""
        target, draft = self.of(case)
        options = dict(mode=case.mode, max_batch=case.batch, max_model_len=64, threads=1)
        if case.mode != "ar":
            options |= dict(draft=draft, verify=case.verify, draft_threads=1, **SHAPES[case.shape])
        llm = LLM.from_model(target, self.tokenizer, **options | more)
        if case.memory == "preemption":
            hold_pages(llm.engine, spare=0)
        return llm


def hold_pages(engine, spare: int) -> None:
    """Once requests run, leave no more than `spare` free pages to all of them."""
    step = engine.step

    def first():
        engine.step = step
        got = step()
        engine.allocator.allocate(engine.allocator.num_free - spare)
        return got

    engine.step = first


LIKELY = dict(logit_bias=dict.fromkeys(range(97, 101), 8.0))


def requests(case: Case, tokens: int) -> list[tuple[str, SamplingParams]]:
    """Eight prompts, and what is asked of their answers. Under rejection target and draft share no noise, so every
    other request makes a few tokens likely, that drafts may guess the next one."""
    asked = {
        "plain": [{}, {}, dict(top_k=250, top_p=0.97, min_p=1e-4), {}, {}, {}, {}, {}],
        "penalties": [dict(repetition_penalty=1.3, presence_penalty=0.2), {}, dict(logit_bias={97: 2.0, 5: -100.0})],
        "grammar": [dict(regex="[a-m]{3}[0-9 ]{40}", ignore_eos=False), {}],
        "logprobs": [dict(logprobs=True), dict(logprobs=True, top_logprobs=2), {}],
    }[case.requests]
    found, prefix = [], PREFIX if case.memory == "prefix" else ""
    for i in range(8):
        likely = LIKELY if case.verify == "rejection" and i % 2 else {}
        own = dict(temperature=float(i != 3), seed=i, max_tokens=tokens, ignore_eos=True)
        params = SamplingParams(**own | likely | asked[i % len(asked)])
        found.append((prefix + f"{i} time flies"[: 9 - i % 2], params))
    return found


class PlainAnswers:
    """What plain decoding answers to the requests of a case on its target, computed once."""

    def __init__(self, models: Models):
        self.models, self.known = models, {}

    def of(self, case: Case, tokens: int) -> list[tuple]:
        memory = "prefix" if case.memory == "prefix" else "ample"
        place = case.place if case.place == "target on the CPU" else "one GPU"
        plain = case._replace(mode="ar", memory=memory, place=place, batch=8, shape="", draft="independent")
        key = plain, tokens
        if key not in self.known:
            llm = self.models.llm(plain)
            self.known[key] = told(llm.generate(*zip(*requests(plain, tokens), strict=True)))
        return self.known[key]


def lanes_of(llm: LLM) -> VerifyLane | None:
    """The lanes of an LLM, None in modes without."""
    speculator = llm.engine.speculator
    speculator = getattr(speculator, "parts", {}).get("ssd", speculator)
    return speculator if isinstance(speculator, VerifyLane) else None


def told(outputs) -> list[tuple]:
    return [(o.token_ids, o.logprobs, o.top_logprobs, o.finish_reason) for o in outputs]
