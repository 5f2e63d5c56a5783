// Compiled once for each level, with BB_LEVEL and BB_TABLE from the build. Includes nothing of the C++ library, and all
// that it defines but the table is private: see kernels.h.
#include "attention.h"
#include "operators.h"
#include "store.h"

namespace bb {
extern const Kernels BB_TABLE;
const Kernels BB_TABLE = {attend, reduce, write, rms_norm, silu_and_mul, rotary_embedding};
}  // namespace bb
