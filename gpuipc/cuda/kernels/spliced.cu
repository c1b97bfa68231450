// All kernels as one unit: it becomes spliced.ptx and the emulation.
#include "attend.cu"
#include "buffer.cu"
#include "compose.cu"
#include "compose_dense.cu"
#include "compose_plain.cu"
#include "digest.cu"
#include "replay.cu"
#include "rotate.cu"
