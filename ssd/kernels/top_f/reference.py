import numpy as np
import torch

from ..sample.reference import exponential, noise_words, survivors


def top_f(logits, temperature, top_k, top_p, min_p, seeds, positions, f, exclude=None, target_ids=None, purpose=0):
    ids = np.arange(logits.shape[1]) if target_ids is None else target_ids.numpy()
    noise = np.log(exponential(noise_words(seeds, positions, ids, purpose)))
    best = np.full((len(logits), f), -1)
    for r, row in enumerate(logits.numpy()):
        if temperature[r] == 0:
            order = np.argsort(-row, kind="stable")
        else:
            keep, z = survivors(row, temperature[r].item(), int(top_k[r]), top_p[r].item(), min_p[r].item())
            inside = np.isin(np.arange(len(row)), keep)
            order = np.lexsort((noise[r] - z, ~inside))
        order = order[row[order] > -np.inf]
        found = ids[order]
        if exclude is not None:
            found = found[~np.isin(found, exclude[r].numpy())]
        best[r, : len(found[:f])] = found[:f]
    return torch.from_numpy(best)
