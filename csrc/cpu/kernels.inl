// One table of kernels for the ISA named by SSD_ISA.
#include "attention.h"
#include "linear.h"
#include "norm.h"
#include "probe.h"
#include "rope.h"
#include "sampling.h"
#include "verify.h"

namespace ssd {
#define SSD_NAME_(isa) kernels_##isa
#define SSD_NAME(isa) SSD_NAME_(isa)
#define SSD_STR_(isa) #isa
#define SSD_STR(isa) SSD_STR_(isa)
const Kernels SSD_NAME(SSD_ISA) = {
    .isa = SSD_STR(SSD_ISA),
    .rope_append = SSD_ISA::rope_append,
    .attention = SSD_ISA::attention,
    .linear = SSD_ISA::linear,
    .rms_norm = SSD_ISA::rms_norm,
    .probe_read = SSD_ISA::probe_read,
    .probe_fma = SSD_ISA::probe_fma,
    .sample = SSD_ISA::sample,
    .top_f = SSD_ISA::top_f,
    .probs = SSD_ISA::probs,
    .verify = SSD_ISA::verify,
    .noise = SSD_ISA::noise,
};
}  // namespace ssd
