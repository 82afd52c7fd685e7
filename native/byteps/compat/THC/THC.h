// BytePS' torch files include THC/THC.h, which torch no longer has, for the names of five types
// that they never complete and for a check macro whose successor is C10_CUDA_CHECK.
#pragma once

#include <c10/cuda/CUDAException.h>

struct THCudaByteTensor;
struct THCudaIntTensor;
struct THCudaLongTensor;
struct THCudaTensor;
struct THCudaDoubleTensor;

#define THCudaCheck(expression) C10_CUDA_CHECK(expression)
