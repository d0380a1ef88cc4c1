// One table of kernels for the ISA named by SSD_ISA.
#include "norm.h"
#include "sampling.h"
#include "verify.h"

namespace ssd {
#define SSD_NAME_(isa) kernels_##isa
#define SSD_NAME(isa) SSD_NAME_(isa)
#define SSD_STR_(isa) #isa
#define SSD_STR(isa) SSD_STR_(isa)
const Kernels SSD_NAME(SSD_ISA) = {
    .isa = SSD_STR(SSD_ISA),
    .rms_norm = SSD_ISA::rms_norm,
    .sample = SSD_ISA::sample,
    .top_f = SSD_ISA::top_f,
    .probs = SSD_ISA::probs,
    .verify = SSD_ISA::verify,
    .noise = SSD_ISA::noise,
};
}  // namespace ssd
