// BytePS' torch/ops.h includes TH/TH.h, which torch no longer has, for the names of five types that
// it never completes.
#pragma once

struct THByteTensor;
struct THIntTensor;
struct THLongTensor;
struct THFloatTensor;
struct THDoubleTensor;
