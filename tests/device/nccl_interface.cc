// Our declarations of NCCL's calls and NVIDIA's.
#include "abi.h"

namespace ours {
#include "native/byteps/device/nccl.h"
}

#include <nccl.h>

#include "native/byteps/device/call_names.h"

BYTEPROPHET_NCCL_CALLS(SAME_CALL)

SAME_VALUE(ncclSuccess)
SAME_VALUE(ncclInvalidArgument)
SAME_VALUE(ncclRemoteError)
SAME_VALUE(ncclInt8)
SAME_VALUE(ncclUint8)
SAME_VALUE(ncclInt32)
SAME_VALUE(ncclUint32)
SAME_VALUE(ncclInt64)
SAME_VALUE(ncclUint64)
SAME_VALUE(ncclFloat16)
SAME_VALUE(ncclFloat32)
SAME_VALUE(ncclFloat64)
SAME_VALUE(ncclSum)
