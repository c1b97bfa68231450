/* The driver, its devices and their properties. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct device devices[MAX_DEVICES];
int device_count;

static const char only_device[] = "fa4e000000000000000000000000d001";

static void uuid_of(struct device *d, const char *hex) {
  snprintf(d->hex, sizeof d->hex, "%.32s", hex);
  for (int i = 0; i < 16; i++) {
    unsigned byte = 0;
    sscanf(hex + 2 * i, "%2x", &byte);
    d->uuid.bytes[i] = (unsigned char)byte;
  }
}

/* Reads the setting DEVICES: a number, such as "2", or UUIDs. The caller holds
 * `big`. If the setting is unchanged, the devices stay: others may be using them. */
static void find_devices(void) {
  static char *found;
  const char *list = setting_text("DEVICES");
  if (found && device_count > 0 && strcmp(found, list ? list : "") == 0) return;
  free(found);
  found = strdup(list ? list : "");
  device_count = 0;
  if (list && strlen(list) < 32) {
    int n = atoi(list);
    for (; device_count < n && device_count < MAX_DEVICES; device_count++) {
      char hex[33];
      snprintf(hex, sizeof hex, "%.30s%02x", only_device, device_count + 1);
      uuid_of(&devices[device_count], hex);
    }
    return;
  }
  if (!list) list = only_device;
  while (strlen(list) >= 32 && device_count < MAX_DEVICES) {
    uuid_of(&devices[device_count++], list);
    list += 32;
    if (*list == ',') list++;
  }
}

int device_by_hex(const char *hex) {
  for (int i = 0; i < device_count; i++)
    if (memcmp(devices[i].hex, hex, 32) == 0) return i;
  return -1;
}

static bool is_device(CUdevice d) { return d >= 0 && d < device_count; }

EXPORT CUresult cuInit(unsigned flags) {
  ENTER(NEEDS_NOTHING);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  lock();
  if (context_retains() == 0) find_devices();
  unlock();
  if (device_count == 0) return CUDA_ERROR_NO_DEVICE;
  guard_install();
  require_init();
  for (int i = 0; i < device_count; i++)
    if (lost_device(i) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return lost_device(0);
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  ENTER(NEEDS_NOTHING);
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = settings.version;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  ENTER(NEEDS_INIT);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = device_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER(NEEDS_INIT);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = devices[device].uuid;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = devices[device].uuid;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int n, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!name || n <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)n, "fake device of the tests");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int n, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!id || n < 13) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(id, (size_t)n, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = settings.memory;
  return CUDA_SUCCESS;
}

/* The limits are those of compute capability 9.0. */
static int attribute(int name) {
  switch (name) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 4;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 512;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 1 << 20;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: return settings.mps;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return !settings.no_vmm;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: return !settings.no_wait_value;
    default: return 0;
  }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int name, CUdevice device) {
  ENTER_ON(NEEDS_INIT, device);
  int last = settings.version < 12040 ? CU_DEVICE_ATTRIBUTE_MPS_ENABLED - 1 : CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
  if (!value || name <= 0 || name > last) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute(name);
  return CUDA_SUCCESS;
}
