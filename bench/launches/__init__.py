"""The Triton launches that the product makes: their number, their programs, and whether each of them compiles."""
