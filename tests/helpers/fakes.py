"""A model, a sampler, a proposer and a tokenizer that make wrong bookkeeping visible.

The model's logits are a function of the tokens that a row sees, which are read back from the pages. So a page that is
wrong, shared or overwritten, a wrong position, or a row in the wrong place changes what comes out.
"""

import codecs
from types import SimpleNamespace

import numpy as np
import torch

from ssd.model.kv_cache import KVCache
from ssd.runtime import LLM
from ssd.runtime.engine.tree import Tree

EOS, OTHER_EOS, VOCABULARY = 256, 257, 258


class FakeModel:
    dtype = "fp32"

    def __init__(self, context=256, script=None):
        """A Llama-like model. script: bytes to emit in turn, whatever is seen, in place of the pseudo-random answer."""
        self.config = SimpleNamespace(max_positions=context, vocab_size=VOCABULARY, eos_token_ids=(EOS, OTHER_EOS))
        self.script, self.passes = script, []

    def tensors(self):
        return []

    def page_bytes(self, page_size=16):
        return 8 * page_size

    def new_kv_cache(self, num_pages, page_size=16):
        cache = KVCache(1, num_pages, page_size, 1, 1)
        cache.k.fill_(float("nan"))
        return cache

    def forward(self, batch, kv):
        return self.forward_features(batch, kv)[0]

    def forward_features(self, batch, kv, layers=()):
        """The feature of a row, a number made of all tokens that it sees."""
        offsets, page_size = batch.row_offsets.tolist(), kv.page_size
        self.passes.append([b - a for a, b in zip(offsets, offsets[1:], strict=False)])
        k = kv.k.view(-1)
        k[batch.slots] = batch.ids.float()
        wanted, logits = set(batch.logit_rows.tolist()), {}
        features = torch.zeros(len(batch.ids), len(layers))
        for b, prefix in enumerate(batch.prefix_lens.tolist()):
            rows = range(offsets[b], offsets[b + 1])
            index = torch.arange(prefix + len(rows))
            held = k[batch.page_table[b].long()[index // page_size] * page_size + index % page_size]
            for t, row in enumerate(rows):
                bits = int(batch.mask[row, 0]) if batch.mask is not None else (1 << t + 1) - 1
                seen = held[[*range(prefix), *(prefix + s for s in range(len(rows)) if bits >> s & 1)]]
                assert not seen.isnan().any() and int(batch.positions[row]) == len(seen) - 1
                tokens = seen.long().tolist()
                if row in wanted:
                    logits[row] = self._logits(tokens)
                features[row] = feature(tokens)
        rows = batch.logit_rows.tolist()
        return torch.stack([logits[r] for r in rows]) if rows else torch.empty(0, VOCABULARY), features

    def _logits(self, tokens):
        if self.script is not None:  # the prompt has one token
            said = len(tokens) - 1
            want = self.script[said] if said < len(self.script) else EOS
            return torch.nn.functional.one_hot(torch.tensor(want), VOCABULARY).float()
        state = np.random.Generator(np.random.Philox(key=hash(tuple(tokens)) & (2**64 - 1)))
        return torch.from_numpy(state.standard_normal(VOCABULARY, dtype=np.float32))


def feature(tokens) -> float:
    return float(hash(tuple(tokens)) & 0xFFFFFF)


class FakeProposer:
    """A proposer of trees with a FakeModel's greedy tokens in some places, behind wrong ones. If it reads features, it
    checks those of every token that has them."""

    steps, runner, features = 0, None, None

    def __init__(self, model, seed=0, layers=()):
        self.model, self.layers, self.chance, self.looked = model, layers, np.random.default_rng(seed), 0

    def propose(self, sequences, limits, thresholds, policy, width):
        return [self._tree(s, limit, policy.nodes, width) for s, limit in zip(sequences, limits, strict=True)]

    def _tree(self, sequence, limit, nodes, width):
        tokens = sequence.tokens[: sequence.num_tokens].tolist()
        if self.layers:
            rows = self.features.of(sequence, self.layers)[: len(tokens) - 1]
            assert rows[:, 0].tolist() == [feature(tokens[: j + 1]) for j in range(len(tokens) - 1)]
            self.looked += 1
        tree, node = Tree(), -1
        for _ in range(int(self.chance.integers(limit + 1))):
            wrong = self.chance.integers(0, VOCABULARY, width - 1) if self.chance.random() < 0.6 else ()
            for token in wrong:
                if len(tree) < nodes - 1:
                    tree.add(int(token), node, 1.0, (0, 1))
            right = int(self.model._logits(tokens).argmax())
            if len(tree) == nodes or right in [tree.tokens[i] for i, p in enumerate(tree.parents) if p == node]:
                break
            node = tree.add(right, node, 1.0, (0, 0))
            tokens.append(right)
        return tree

    def accept(self, sequences, trees, paths):
        pass

    def release(self, sequence):
        pass

    def pause(self):
        pass


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs=True):
    """Gumbel-max whose noise depends on (seed, position, token), which is the operator's contract, though not its
    bits."""
    tokens, found = [], []
    for row, t, seed, position in zip(logits, temperature, seeds.tolist(), positions.tolist(), strict=True):
        noise = np.random.Generator(np.random.Philox(key=seed, counter=position)).gumbel(size=len(row))
        token = int((row / t + torch.from_numpy(noise)).argmax() if t else row.argmax())
        tokens.append(token)
        found.append(float(row.log_softmax(0)[token]))
    return torch.tensor(tokens), torch.tensor(found if logprobs else [])


class FakeTokenizer:
    """A tokenizer whose ids 0..255 are the bytes of UTF-8."""

    eos_ids = ()

    def encode(self, text, add_special_tokens=True):
        return list(text.encode())

    def chat(self, messages):
        return "".join(f"{m['role']}:{m['content']}\n" for m in messages)

    def detokenizer(self, prompt=()):
        return FakeDetokenizer()


class FakeDetokenizer:
    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token):
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def hidden(self, token):
        return ""

    def finish(self):
        return self._decoder.decode(b"", final=True)


def make(model=None, **options):
    return LLM.from_model(model or FakeModel(), FakeTokenizer(), sample, **options)


def says(text, **options):
    """An engine that answers a prompt of one token with text, then ends the sequence."""
    return make(FakeModel(script=list(text.encode() if isinstance(text, str) else text)), **options)


def no_page_leaked(llm):
    engine = llm.engine
    return engine.allocator.num_free == engine.allocator.num_pages and not engine.scheduler.running
