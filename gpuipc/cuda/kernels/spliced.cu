// All kernels as one unit: it becomes spliced.ptx and the emulation.
#include "device.h"
