// Force-included before BytePS' torch files. torch's headers define TORCH_VERSION as a string;
// BytePS compares an integer (major * 1e9 + minor * 1e6 + patch * 1e3), which our build passes as
// BYTEPROPHET_TORCH_VERSION.
#pragma once

#include <torch/extension.h>
#include <torch/torch.h>

#undef TORCH_VERSION
#define TORCH_VERSION BYTEPROPHET_TORCH_VERSION
