"""How machine code is read, for the forms of the kernel report."""

import re


def instructions(sass: str) -> dict:
    """Tensor-core instructions by name, and how many loads of 128 bits from global memory."""
    return {
        "mma": sorted(set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)[.\w]*)", sass))),
        "wide_loads": len(re.findall(r"\b(?:LDG|LDGSTS)\.\S*128\b", sass)),
    }
