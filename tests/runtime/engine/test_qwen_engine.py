"""A Qwen from its folder to text: padding, several ends of an answer, and speculation that changes nothing."""

import json

import pytest
import tokenizer_helpers as families
from model_helpers import save_tiny

from ssd import LLM, SamplingParams
from ssd.model.tokenizer import Tokenizer

VOCAB = 512  # the model's vocabulary; the tokenizer has fewer tokens


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    for family, vocab in (("Qwen3", VOCAB), ("Qwen2", VOCAB - 64)):
        folder = tmp_path_factory.mktemp(family)
        save_tiny(folder, family=family, vocab_size=vocab, max_position_embeddings=256)
        families.save(folder, families.like_qwen(), **families.QWEN)
        made.append(folder)
    return made


def answers(llm, params):
    prompts = [[{"role": "user", "content": "Why?"}], "the quick brown", list(range(40))]
    return llm.generate(prompts, params)


def test_speculation_changes_no_token_of_a_padded_vocabulary(folders):
    target, draft = folders
    params = [SamplingParams(temperature=t, seed=i, max_tokens=40, ignore_eos=True) for i, t in enumerate((0, 1, 3))]
    wanted = answers(LLM(str(target), mode="ar", threads=1), params)
    tokenizer, ids = Tokenizer(target), [token for output in wanted for token in output.token_ids]
    assert any(token >= tokenizer.vocab_size for token in ids)
    assert all(output.text == tokenizer.decode(output.token_ids) for output in wanted)
    for mode in ("sd", "ssd"):
        for given in (target, draft):
            llm = LLM(str(target), mode=mode, draft=str(given), threads=1)
            assert [o.token_ids for o in answers(llm, params)] == [o.token_ids for o in wanted]
            llm.close()


def test_each_end_of_generation_config_ends_an_answer(folders):
    target, params = folders[0], SamplingParams(max_tokens=30, temperature=1.0, seed=1)
    (whole,) = LLM(str(target), mode="ar").generate([[1, 2, 3]], params)
    path = target / "generation_config.json"
    kept = path.read_text()
    a, b = whole.token_ids[10], whole.token_ids[20]
    for ends in ([a], [b], [a, b], [b, a]):
        path.write_text(json.dumps({"eos_token_id": ends}))
        (short,) = LLM(str(target), mode="ar").generate([[1, 2, 3]], params)
        first = next(i for i, token in enumerate(whole.token_ids) if token in ends)
        assert short.finish_reason == "stop" and short.token_ids == whole.token_ids[: first + 1]
    path.write_text(kept)
