#include "attention.h"

void attention_fp16(cuda_host::Case& c) { cuda_host::attention<ssd::gpu::fp16>(c); }
