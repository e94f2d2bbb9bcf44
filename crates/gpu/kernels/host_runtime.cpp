// The part of the host driver that is the same for all modules (host.h), compiled once for each wave size.
#define HOST_RUNTIME
#include "gpu.h"
