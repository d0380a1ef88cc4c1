"""Drafts of every kind, and prompts and parameters whose answers are compared."""

from draft_helpers import write_draft

from ssd.model.draft import Draft
from ssd.runtime import SamplingParams

PROMPTS = ["a", "once upon a time", "x" * 70, "naïve café 日本", "0123456789" * 9, "ab" * 20]


PARAMS = [
    SamplingParams(
        seed=10 + i, temperature=(0.0, 0.7, 1.0)[i % 3], top_k=i % 2 * 40, top_p=(1.0, 0.95)[i % 2],
        max_tokens=(30, 5, 1)[i % 3], logprobs=i % 2 == 0, ignore_eos=i == 3, stop=("Q", "zz") if i == 4 else (),
    )
    for i in range(len(PROMPTS))
]  # fmt: skip


KINDS = {
    "itself": None,
    "independent": dict(depth=2),
    "trimmed": dict(depth=1, outputs=60, own_embedding=True, hidden_size=48),
    "features": dict(layers=[0, 1, 2], outputs=60),
    "two layers": dict(layers=[2], depth=2, seed=2),
    "eagle": dict(layers=[0, 2], outputs=100, eagle=True),
}


def load(kind, tiny_folder, tmp_path, target, dtype):
    if kind == "ngram":
        return kind
    where = tiny_folder if kind == "itself" else write_draft(tmp_path / kind, **KINDS[kind])
    return Draft.load(where, target, dtype)


def answers(llm, params=PARAMS):
    outputs = llm.generate(PROMPTS, params)
    engine = llm.engine
    assert engine.allocator.num_free == engine.allocator.num_pages
    return [(o.text, o.token_ids, o.logprobs, o.finish_reason) for o in outputs]
