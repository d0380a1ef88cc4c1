"""Seeds that follow from others. No two that anybody meets are the same, so no two requests share their noise."""

import hashlib


def derived_seed(engine_seed: int, request: int) -> int:
    """The 63-bit seed of a request that names none: BLAKE2b of both numbers, 8 bytes each, little-endian."""
    return _hash(engine_seed, request, b"")


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample `index` of a request: for 0 its own, else the same BLAKE2b of both, personalised "sample".

    So sample i of n is the answer of a single request with the seed sample_seed(seed, i).
    """
    return _hash(seed, index, b"sample") if index else seed


def _hash(a: int, b: int, purpose: bytes) -> int:
    data = a.to_bytes(8, "little") + b.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=purpose).digest(), "little") >> 1
