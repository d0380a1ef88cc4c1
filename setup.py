"""Builds ssd._C: always the CPU kernels, and the CUDA kernels if torch has CUDA and nvcc is installed."""

import glob
import os
import shutil
import sys

from setuptools import setup

try:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
except ImportError:
    sys.exit("ssd needs torch before it is built: pip install torch==2.13.0, then build with --no-build-isolation")

if not shutil.which(os.environ.get("CXX", "g++")):
    sys.exit("ssd needs a C++20 compiler: install g++ 12 or newer, or name one with the variable CXX")

sources = ["csrc/ops.cpp", *sorted(glob.glob("csrc/cpu/**/*.cpp", recursive=True))]
flags = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-g0", "-Wall", "-Wno-unknown-pragmas"]
cuda_sources = sorted(glob.glob("csrc/cuda/**/*.cu", recursive=True))
cuda = torch.version.cuda and CUDA_HOME and cuda_sources
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")  # older GPUs lack the instructions
extension = CUDAExtension if cuda else CppExtension

setup(
    ext_modules=[
        extension(
            "ssd._C",
            sources + (cuda_sources if cuda else []),
            include_dirs=[os.path.abspath("csrc/include"), os.path.abspath("csrc")],
            extra_compile_args={"cxx": flags, "nvcc": ["-std=c++20", "-O3"]} if cuda else flags,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
