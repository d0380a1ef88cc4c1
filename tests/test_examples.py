import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))
from examples import transformers_tree as example  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")


@pytest.fixture(scope="module")
def model():
    example.register()
    return example.tiny_llama()


def paths_of(parents):
    """The nodes from the root to each leaf."""
    paths = [[0]]
    for i, parent in enumerate(parents[1:], 1):
        paths.append([*paths[parent], i])
    return [paths[i] for i in range(len(parents)) if i not in parents]


@pytest.mark.parametrize("prefix,nodes", [(23, 12), (3, 5), (300, 64)])
def test_every_node_has_the_logits_of_its_path_run_alone(model, prefix, nodes):
    random.seed(nodes)
    prompt = torch.tensor([random.choices(range(256), k=prefix)])
    tokens = random.choices(range(256), k=nodes)
    parents = [-1] + [random.randint(max(0, i - 5), i - 1) for i in range(1, nodes)]
    model.set_attn_implementation(example.NAME)
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        model(prompt, past_key_values=cache)
        _, logits = example.verify(model, cache, tokens, parents)
        model.set_attn_implementation("eager")
        paths = paths_of(parents)
        assert len(paths) > 1
        for path in paths:
            ids = torch.cat([prompt, torch.tensor([[tokens[i] for i in path]])], 1)
            want = model(ids).logits[0, prefix:]
            torch.testing.assert_close(logits[path], want, rtol=1e-4, atol=1e-4)


def test_verified_tokens_are_those_of_greedy_decoding(model):
    """Round after round on one cache, with trees of right and wrong tokens, only the accepted path stays."""
    random.seed(1)
    prompt = torch.tensor([random.choices(range(256), k=20)])
    model.set_attn_implementation("eager")
    want = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, 20:].tolist()
    model.set_attn_implementation(example.NAME)
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        got, accepted = [int(model(prompt, past_key_values=cache).logits[0, -1].argmax())], []
    while len(got) < 20:
        tokens, parents, right = [got[-1]], [-1], 0
        for depth in range(random.randint(0, 3)):
            next_right = len(tokens) + 1
            tokens += [(want[len(got) + depth] + 1) % 256, want[len(got) + depth]]
            parents += [right, right]
            right = next_right
        emitted, _ = example.verify(model, cache, tokens, parents)
        got += emitted
        accepted.append(len(emitted))
        assert cache.get_seq_length() == 20 + len(got) - 1
    assert got == want[: len(got)] and max(accepted) == 4 and min(accepted) == 1


def test_the_example_runs():
    run = subprocess.run(
        [sys.executable, "-m", "examples.transformers_tree"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    verified, greedy = (line.split(": ")[1] for line in run.stdout.splitlines()[-2:])
    assert verified == greedy and "gave 4 tokens" in run.stdout
