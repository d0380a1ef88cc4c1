"""A model, a sampler and a tokenizer that make wrong bookkeeping visible.

The model's logits are a function of the tokens that a row sees, read back from the pages: a page that is wrong, shared
or overwritten, a position that is off or a row in the wrong place changes what comes out.
"""

import codecs
from types import SimpleNamespace

import numpy as np
import torch

from ssd.model.kv_cache import KVCache

EOS, OTHER_EOS, VOCABULARY = 256, 257, 258


class FakeModel:
    def __init__(self, context=256, script=None):
        """script: bytes to say in turn, whatever is seen, in place of the pseudo-random answer."""
        self.config = SimpleNamespace(max_positions=context, vocab_size=VOCABULARY, eos_token_ids=(EOS, OTHER_EOS))
        self.script, self.passes = script, []

    def new_kv_cache(self, num_pages, page_size=16):
        cache = KVCache(1, num_pages, page_size, 1, 1)
        cache.k.fill_(float("nan"))
        return cache

    def forward(self, batch, kv):
        offsets, page_size = batch.row_offsets.tolist(), kv.page_size
        self.passes.append([b - a for a, b in zip(offsets, offsets[1:], strict=False)])
        k = kv.k.view(-1)
        k[batch.slots] = batch.ids.float()
        logits = {}
        for b, prefix in enumerate(batch.prefix_lens.tolist()):
            rows = range(offsets[b], offsets[b + 1])
            assert batch.positions[rows.start : rows.stop].tolist() == list(range(prefix, prefix + len(rows)))
            for t, row in enumerate(rows):
                index = torch.arange(prefix + t + 1)
                seen = k[batch.page_table[b].long()[index // page_size] * page_size + index % page_size]
                assert not seen.isnan().any()
                logits[row] = self._logits(seen.long().tolist())
        rows = batch.logit_rows.tolist()
        return torch.stack([logits[r] for r in rows]) if rows else torch.empty(0, VOCABULARY)

    def _logits(self, tokens):
        if self.script is not None:  # the prompt is one token
            said = len(tokens) - 1
            want = self.script[said] if said < len(self.script) else EOS
            return torch.nn.functional.one_hot(torch.tensor(want), VOCABULARY).float()
        state = np.random.Generator(np.random.Philox(key=hash(tuple(tokens)) & (2**64 - 1)))
        return torch.from_numpy(state.standard_normal(VOCABULARY, dtype=np.float32))


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs=True):
    """Gumbel-max whose noise depends on (seed, position, token): the contract of the operator, not its bits."""
    tokens, found = [], []
    for row, t, seed, position in zip(logits, temperature, seeds.tolist(), positions.tolist(), strict=True):
        noise = np.random.Generator(np.random.Philox(key=seed, counter=position)).gumbel(size=len(row))
        token = int((row / t + torch.from_numpy(noise)).argmax() if t else row.argmax())
        tokens.append(token)
        found.append(float(row.log_softmax(0)[token]))
    return torch.tensor(tokens), torch.tensor(found if logprobs else [])


class FakeTokenizer:
    """Ids 0..255 are bytes of UTF-8."""

    def encode(self, text, add_special_tokens=True):
        return list(text.encode())

    def chat(self, messages):
        return "".join(f"{m['role']}:{m['content']}\n" for m in messages)

    def detokenizer(self):
        return FakeDetokenizer()


class FakeDetokenizer:
    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token):
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def finish(self):
        return self._decoder.decode(b"", final=True)
