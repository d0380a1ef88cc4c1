"""How machine code is read, for the forms of the kernel report."""

import re


def instructions(sass: str) -> dict:
    """Tensor-core instructions by name, how many loads of 128 bits from global memory, and how many of the copies to
    shared memory, by which keys, values and weights come, have fewer."""
    copies = re.findall(r"\bLDGSTS\b\S*", sass)
    return {
        "mma": sorted(set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)[.\w]*)", sass))),
        "wide_loads": len(re.findall(r"\b(?:LDG|LDGSTS)\.\S*128\b", sass)),
        "narrow_copies": sum(".128" not in copy for copy in copies),
    }
