"""The arguments of the kernels of cuda/norm and cuda/conv, after their headers."""

import ctypes
import math

TYPES = ("Half", "Bfloat16", "Float")  # DataType
KINDS = ("layer", "root_mean_square", "unit_length")  # RowNormKind
WARP, BLOCK = 32, 256  # kWarp, kBlock
WARPS = BLOCK // WARP
HELD = 32  # kHeld
TILE_COLUMNS = 64  # kTileColumns
PART_SIZE = HELD * BLOCK  # kPartSize
FINISH_COLUMNS = 32  # kFinishColumns
ROW_SHARED_BYTES = 4 * WARPS
FINISH_SHARED_BYTES = 8 * BLOCK
COLUMN_SHARED_BYTES = 2 * WARPS * TILE_COLUMNS * 4
Pointer, Int64, Int32 = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32


def structure(name, **fields):
    """A ctypes.Structure with the fields."""
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


RowNorm = structure(
    "RowNorm", rows=Int64, size=Int64, type=Int32, kind=Int32, epsilon=ctypes.c_float,
    x=Pointer, gamma=Pointer, beta=Pointer, y=Pointer,
)  # fmt: skip
RowNormGradient = structure(  # RowNormGradientArguments
    "RowNormGradient", rows=Int64, size=Int64, type=Int32, kind=Int32,
    epsilon=ctypes.c_float, x=Pointer, grad_y=Pointer, gamma=Pointer, grad_x=Pointer,
    grad_gamma=Pointer, grad_beta=Pointer, scales=Pointer,
)  # fmt: skip
Softmax = structure(
    "Softmax", rows=Int64, size=Int64, type=Int32, is_x_float=ctypes.c_bool, x=Pointer,
    y=Pointer,
)  # fmt: skip
SoftmaxGradient = structure(  # and FloatSoftmaxGradient, where y is x
    "SoftmaxGradient", rows=Int64, size=Int64, type=Int32, x=Pointer, grad_y=Pointer,
    grad_x=Pointer,
)  # fmt: skip

ColumnParts = structure(
    "ColumnParts", slices=Int64, rows=Int64, columns=Int64, parts=Int64, part_rows=Int64
)
NoScales = structure("NoScales", nothing=ctypes.c_uint8)
RowScales = structure("RowScales", scales=Pointer)
ChannelScales = structure(
    "ChannelScales", mean=Pointer, variance=Pointer, epsilon=ctypes.c_float
)
Finish = structure(
    "Finish", slices=Int64, parts=Int64, columns=Int64, partials=Pointer,
    divisor=ctypes.c_double, totals=Pointer,
)  # fmt: skip
NormalizeMap = structure(
    "NormalizeMap", mean=Pointer, variance=Pointer, gamma=Pointer, beta=Pointer,
    epsilon=ctypes.c_float,
)  # fmt: skip
GradientMap = structure(
    "GradientMap", mean=Pointer, variance=Pointer, gamma=Pointer, grad_beta=Pointer,
    grad_gamma=Pointer, epsilon=ctypes.c_float, count=ctypes.c_float,
)  # fmt: skip
RowParts = structure(  # what RowSumsArguments and RowMapArguments begin with
    "RowParts", rows=Int64, channels=Int64, size=Int64, parts=Int64
)

Dimension = structure(
    "Dimension", size=Int64, result=Int64, kernel=Int64, stride=Int64, dilation=Int64,
    before=Int64,
)  # fmt: skip
DepthwiseConv = structure(
    "DepthwiseConv", batch=Int64, channels=Int64, dimensions=Dimension * 2, type=Int32,
    kernel_type=Int32,
)  # fmt: skip
DepthwiseConvArguments = structure(
    "DepthwiseConvArguments", conv=DepthwiseConv, source=Pointer, kernel=Pointer,
    bias=Pointer, bias_type=Int32, to=Pointer, to_type=Int32,
)  # fmt: skip
GradKernelArguments = structure(
    "GradKernelArguments", conv=DepthwiseConv, parts=ColumnParts, x=Pointer,
    grad_y=Pointer, partials=Pointer,
)  # fmt: skip


def column_parts(slices, rows, columns):
    """PartsOf of cuda/norm/launch.h, and the number of blocks."""
    tiles = -(-columns // TILE_COLUMNS)
    wanted = -(-1024 // max(1, slices * tiles))
    part_rows = math.ceil(math.ceil(rows / wanted) / WARPS) * WARPS
    part_rows = min(max(part_rows, 8 * WARPS), 256 * WARPS)
    parts = -(-rows // part_rows)
    return ColumnParts(slices, rows, columns, parts, part_rows), slices * parts * tiles


def in_columns(kind, parts, matrices, rest, to):
    """ColumnSumsArguments or ColumnMapArguments, with its scales or map as `rest`."""
    fields = {"parts": ColumnParts, "matrices": Pointer * 2, "rest": kind}
    made = structure("InColumns", **fields, to=Pointer)
    return made(parts, (Pointer * 2)(*matrices), rest, to)


def in_rows(kind, parts, matrices, rest, to):
    """RowSumsArguments or RowMapArguments, likewise."""
    fields = {"parts": RowParts, "matrices": Pointer * 2, "rest": kind}
    made = structure("InRows", **fields, to=Pointer)
    return made(parts, (Pointer * 2)(*matrices), rest, to)
