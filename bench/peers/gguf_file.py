"""A GGUF file of the same checkpoint in another precision: `python -m bench.peers.gguf_file SOURCE Q8_0`.

Matrices are dequantised and stored as Q8_0 or F16; everything else is copied. The file is written beside the source
with the precision in its name. bench.decode makes what it lacks by itself.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

from . import converted

TYPES = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "F16": gguf.GGMLQuantizationType.F16}
FILE_TYPES = {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "F16": gguf.LlamaFileType.MOSTLY_F16}


def gguf_of(target: Path, precision: str) -> Path:
    """The GGUF file of a model folder with the precision in its name, in it or beside it; else one made of another file
    there, kept in the cache folder. Raises FileNotFoundError where there is nothing to make it of."""
    own = [target] if target.is_file() else sorted(target.glob("*.gguf"))
    for file in own + sorted(target.parent.glob("*.gguf")):
        if precision.lower() in file.name.lower():
            return file
    if not own or precision not in TYPES:
        raise FileNotFoundError(f"wanted a GGUF file with {precision} in its name in {target} or its parent")
    return converted(own[0], f"{precision}.gguf", lambda path: convert(own[0], precision, path))


def convert(source: Path, precision: str, path: Path | None = None) -> Path:
    """Writes the file, beside the source if no path is given, and returns its path. Raises ValueError for another
    precision than Q8_0 or F16."""
    if precision not in TYPES:
        raise ValueError(f"precision: got {precision!r}, wanted {' or '.join(TYPES)}")
    reader = gguf.GGUFReader(source)
    name = source.stem.rsplit(".", 1)[0]
    path = path or source.parent / f"{name}.{precision}.gguf"
    making = path.with_suffix(".part")
    writer = gguf.GGUFWriter(making, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue  # the writer's own
        kind, element = field.types[0], field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), kind, element)
    writer.add_file_type(FILE_TYPES[precision])
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if weight.ndim < 2:
            writer.add_tensor(tensor.name, weight.astype(np.float32))
        else:
            stored = gguf.quants.quantize(weight, TYPES[precision])
            writer.add_tensor(tensor.name, stored, raw_dtype=TYPES[precision])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    making.rename(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("precision", choices=list(TYPES))
    args = parser.parse_args()
    if not args.source.is_file():
        parser.error(f"no such file: {args.source}")
    print(convert(args.source, args.precision))


if __name__ == "__main__":
    main()
