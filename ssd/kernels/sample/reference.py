import numpy as np
import torch

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)


def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 on arrays of 32-bit words held in uint64."""
    c0, c1, c2, c3, k0, k1 = (np.asarray(x, dtype=np.uint64) for x in (c0, c1, c2, c3, k0, k1))
    for _ in range(10):
        a, b = np.uint64(M0) * c0, np.uint64(M1) * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & LOW, (a >> np.uint64(32)) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + np.uint64(W0)) & LOW, (k1 + np.uint64(W1)) & LOW
    return c0, c1, c2, c3


def noise_words(seeds, positions, ids, purpose=0):
    """Words of the ids (a number n: 0 to n - 1; or an array) -> uint64 [rows, len(ids)]."""
    ids = np.arange(ids, dtype=np.uint64) if np.isscalar(ids) else np.asarray(ids, dtype=np.uint64)
    seeds = np.asarray(seeds, dtype=np.int64).astype(np.uint64)[:, None]
    position = np.asarray(positions, dtype=np.uint64)[:, None]
    words = np.stack(philox(position, ids // np.uint64(4), purpose, 0, seeds & LOW, seeds >> np.uint64(32)))
    return np.take_along_axis(words, np.broadcast_to(ids % np.uint64(4), words.shape[1:])[None].astype(int), 0)[0]


def uniform(words):
    w = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    return np.minimum(w, np.float32(1 - 2**-24))


def exponential(words):
    return -np.log1p(-uniform(words).astype(np.float64))


def survivors(logits, temperature, top_k, top_p, min_p):
    """One row -> ids that survive, best first, and z = (logit - max) / temperature of all, in float32."""
    logits = np.asarray(logits, dtype=np.float32)
    z = (logits - logits.max()) * np.float32(1 / np.float32(temperature))
    order = np.argsort(-z, kind="stable")
    order = order[z[order] > -np.inf]
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        mass = np.cumsum(np.exp(z[order].astype(np.float64)))
        order = order[: np.searchsorted(mass, np.float32(top_p) * mass[-1]) + 1]
    if min_p:
        order = order[z[order] >= np.log(np.float32(min_p))]
    return order, z


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions):
    noise = np.log(exponential(noise_words(seeds, positions, logits.shape[1])))
    tokens = []
    for r, row in enumerate(logits.numpy()):
        if temperature[r] == 0:
            tokens.append(int(row.argmax()))
            continue
        keep, z = survivors(row, temperature[r].item(), int(top_k[r]), top_p[r].item(), min_p[r].item())
        tokens.append(int(keep[np.argmax(z[keep] - noise[r, keep])]))
    tokens = torch.tensor(tokens, dtype=torch.int64)
    return tokens, torch.log_softmax(logits.double(), -1).gather(1, tokens[:, None])[:, 0].float()
