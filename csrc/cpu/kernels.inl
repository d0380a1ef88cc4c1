// One table of kernels for the ISA named by SSD_ISA.
#include "norm.h"
#include "probe.h"

namespace ssd {
#define SSD_NAME_(isa) kernels_##isa
#define SSD_NAME(isa) SSD_NAME_(isa)
#define SSD_STR_(isa) #isa
#define SSD_STR(isa) SSD_STR_(isa)
const Kernels SSD_NAME(SSD_ISA) = {
    .isa = SSD_STR(SSD_ISA),
    .rms_norm = SSD_ISA::rms_norm,
    .probe_read = SSD_ISA::probe_read,
    .probe_fma = SSD_ISA::probe_fma,
};
}  // namespace ssd
