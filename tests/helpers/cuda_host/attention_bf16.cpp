#include "attention.h"

void attention_bf16(cuda_host::Case& c) { cuda_host::attention<ssd::gpu::bf16>(c); }
