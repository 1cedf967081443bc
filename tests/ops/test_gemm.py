"""fp16_gemm: values and dtypes, on every route, against float64.

Every comparison is `oracle.assert_rounded`: the float64 result plus or minus the bound
of an FP32 sum, K * 2^-24 * sum |a| |b|, rounded once to the output dtype.
"""

import concurrent.futures
import itertools

import keras
import ml_dtypes
import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.ops import fp16_gemm

SIZES = (0, 1, 7, 16, 17, 64, 111, 217, 989)
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
TRANSPOSES = list(itertools.product([False, True], repeat=2))
ALPHA = 0.375


def draw(seed, shape, dtype="float16"):
    return np.random.default_rng(seed).normal(size=shape).astype(DTYPES[dtype])


def operands(m, n, k, transpose_a=False, transpose_b=False, batches=((), ()), **kinds):
    """Random a and b of these sizes."""
    a = draw(1, (*batches[0], *((k, m) if transpose_a else (m, k))), **kinds)
    b = draw(2, (*batches[1], *((n, k) if transpose_b else (k, n))), **kinds)
    return a, b


def check(run, a, b, bias=None, alpha=1.0, output_dtype="float16", **options):
    """Runs the op on a route and compares with float64."""
    multiply = run(
        lambda a, b, *bias, alpha: fp16_gemm(
            a,
            b,
            bias=bias[0] if bias else None,
            alpha=alpha,
            output_dtype=output_dtype,
            **options,
        ),
        autograph=False,
    )
    biases = () if bias is None else (tf.constant(bias),)
    found = multiply(tf.constant(a), tf.constant(b), *biases, alpha=tf.constant(alpha))
    expected, bound = oracle.gemm(a, b, bias=bias, alpha=alpha, **options)
    oracle.assert_rounded(found, expected, bound, output_dtype)


# Name: sizes, then the options of the op. With the transposes, what decides over the
# path through the kernel.
CASES = {
    "square": ((64, 64, 64), {}),
    "odd": ((17, 111, 217), {}),
    "one-row": ((1, 217, 111), {}),
    "one-column": ((217, 1, 111), {}),
    "one-product": ((1, 1, 989), {}),
    "outer": ((111, 217, 1), {}),
    "empty-rows": ((0, 7, 16), {}),
    "empty-columns": ((7, 0, 16), {}),
    "empty-sums": ((7, 16, 0), {"activation": "sigmoid"}),
    "relu": ((7, 17, 16), {"activation": "relu"}),
    "tanh": ((7, 17, 16), {"activation": "tanh"}),
    "sigmoid": ((7, 17, 16), {"activation": "sigmoid"}),
    "gelu": ((7, 17, 16), {"activation": "gelu"}),
}


@pytest.mark.parametrize("name", CASES)
def test_case(route, name):
    sizes, options = CASES[name]
    check(route, *operands(*sizes), **options)


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
@pytest.mark.parametrize("output_dtype", ["float16", "float32"])
def test_transposes(route, transpose_a, transpose_b, output_dtype):
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    a, b = operands(17, 64, 111, **options)
    check(route, a, b, draw(3, 64), ALPHA, output_dtype, activation="tanh", **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bias_is_half", [False, True])
@pytest.mark.parametrize("is_half", [False, True])
def test_dtypes(route, dtype, bias_is_half, is_half):
    a, b = operands(7, 17, 16, dtype=dtype)
    bias = draw(3, 17, dtype if bias_is_half else "float32")
    check(route, a, b, bias, ALPHA, dtype if is_half else "float32")


BATCHES = {
    "both": ((2, 3), (2, 3)),
    "a-only": ((2, 3), ()),
    "b-only": ((), (2, 3)),
    "a-is-shared": ((1, 3), (2, 1)),
    "b-is-shared": ((2, 3), (3,)),
    "one": ((1, 1), ()),
    "none": ((0, 3), (3,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(route, batches, transposed):
    options = {"transpose_a": transposed, "transpose_b": transposed}
    a, b = operands(7, 17, 16, batches=batches, **options)
    check(route, a, b, draw(3, 17), **options)


@pytest.mark.slow
@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
def test_sizes(ops_mode, k, transpose_a, transpose_b):
    # Every pair of sizes, each against a part of one large float64 product.
    ops_mode("native")
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    a, b = operands(SIZES[-1], SIZES[-1], k, **options)
    expected, bound = oracle.gemm(a, b, **options)
    for m, n in itertools.product(SIZES, repeat=2):
        if m * n > 64 * 989:
            continue
        part_a = a[:, :m] if transpose_a else a[:m]
        part_b = b[:n] if transpose_b else b[:, :n]
        found = fp16_gemm(part_a, part_b, **options)
        oracle.assert_rounded(found, expected[:m, :n], bound[:m, :n], "float16")


def test_the_largest_sizes(route):
    check(route, *operands(989, 217, 989))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["native"], indirect=True)
def test_2000_random_shapes(library):
    random = np.random.default_rng(20)
    pool_a, pool_b = draw(1, 4096), draw(2, 4096)
    for _ in range(2000):
        m, n, k = (int(2 ** random.uniform(0, 5.5)) - random.integers(2) for _ in "mnk")
        options = {
            "transpose_a": bool(random.integers(2)),
            "transpose_b": bool(random.integers(2)),
            "activation": random.choice([None, "relu", "tanh", "sigmoid", "gelu"]),
            "bias": [None, pool_a[:n], pool_b[:n].astype("float32")][
                random.integers(3)
            ],
            "alpha": random.choice([1.0, -2.0, ALPHA]),
        }
        output_dtype = str(random.choice(["float16", "float32"]))
        start = random.integers(1000)
        a = pool_a[start:][: m * k].reshape(
            (k, m) if options["transpose_a"] else (m, k)
        )
        b = pool_b[start:][: k * n].reshape(
            (n, k) if options["transpose_b"] else (k, n)
        )
        found = fp16_gemm(a, b, output_dtype=output_dtype, **options)
        try:
            oracle.assert_rounded(found, *oracle.gemm(a, b, **options), output_dtype)
        except AssertionError as error:
            error.add_note(f"{m=} {n=} {k=} {start=} {output_dtype=} {options}")
            raise


@pytest.mark.parametrize(
    "alpha",
    [
        0.0,
        -1.0,
        3,
        np.float32(2**-20),
        tf.constant(0.5, "float16"),
        tf.constant(2),
    ],
)
def test_alpha(library, alpha):
    a, b = operands(7, 17, 16)
    found = fp16_gemm(a, b, alpha=alpha, output_dtype="float32")
    expected, bound = oracle.gemm(a, b, alpha=float(alpha))
    oracle.assert_rounded(found, expected, bound, "float32")


def test_keras_variables(library):
    a = keras.Variable([[2.0, 3.0]], dtype="float16")
    b, bias = keras.Variable([[5.0], [7.0]]), keras.Variable([0.5])
    found = fp16_gemm(a, b, bias=bias, alpha=2.0)
    np.testing.assert_array_equal(found, np.float16([[62.5]]))


def test_a_large_alpha_is_applied_in_fp32(route):
    # 2^-24 * 2^-24 * 2^40 = 2^-8, and 2^-48 is no FP16 number.
    tiny = np.float16([[2.0**-24]])
    check(route, tiny, tiny, alpha=2.0**40)


@pytest.mark.parametrize("output_dtype", ["float16", "float32"])
def test_an_empty_sum_gives_the_bias(route, output_dtype):
    bias = np.float32([1, 2049, 1e6])
    check(
        route,
        np.zeros((2, 0), "float16"),
        np.zeros((0, 3), "float16"),
        bias,
        output_dtype=output_dtype,
    )


@pytest.mark.parametrize("alpha", [np.inf, np.nan])
@pytest.mark.parametrize("rows_are_known", [True, False])
def test_an_empty_sum_is_0_whatever_alpha(route, alpha, rows_are_known):
    shape = [2, 0] if rows_are_known else [None, None]
    multiply = route(
        lambda a, alpha: fp16_gemm(
            a, a, bias=tf.constant([1.0, -2.0]), transpose_b=True, alpha=alpha
        ),
        input_signature=[tf.TensorSpec(shape, "float16"), tf.TensorSpec([])],
    )
    found = multiply(tf.zeros([2, 0], "float16"), tf.constant(alpha))
    np.testing.assert_array_equal(found, np.float16([[1, -2]] * 2), strict=True)


def test_half_accumulator_fails(route):
    """K = 4096: within 0.06 of float64 with FP32 sums, off by 4.3 with FP16 sums."""
    # Terms between 0 and 1 / 4, so that the sum reaches 256 to 512.
    random = np.random.default_rng(0)
    a = random.uniform(0, 0.5, (4, 4096)).astype("float16")
    b = random.uniform(0, 0.5, (4096, 4)).astype("float16")
    exact, bound = oracle.gemm(a, b)
    rounding = 2.0**-3  # half the spacing between 256 and 512

    half = np.zeros((4, 4), "float16")
    for k in range(4096):
        half += a[:, k, None] * b[k]
    assert np.min(np.abs(half - exact)) > 10 * (rounding + np.max(bound))

    assert np.all((exact > 250) & (exact < 512))
    check(route, a, b)


def test_the_sum_beyond_256_of_a_tenth(route):
    # 4096 * 0.0999755859375 is 409.5 exactly; the FP16 sum stops at 256.
    found = route(fp16_gemm)(
        tf.ones((1, 4096), "float16"), tf.fill((4096, 1), np.float16(0.1))
    )
    assert found.numpy() == np.float16(409.5)


def test_cancellation(route):
    # 2^11 + 1 is no FP16 number, and 65504 squared is no FP16 sum.
    a = np.float16([[2048, 1, -2048, 2.0**-24], [65504, 1, -65504, 0]])
    b = np.float16([[1], [1], [1], [1]])
    b[:, 0] = [1, 1, 1, 0]
    found = route(fp16_gemm)(tf.constant(a), tf.constant(b))
    np.testing.assert_array_equal(found, np.float16([[1], [1]]))


def test_one_rounding_to_nearest_even(route):
    # 2049 lies between 2048 and 2050, and 2051 between 2050 and 2052: to the even one.
    # 2049 + 2^-10 is above the middle.
    a = np.float16([[2048, 1, 2.0**-5], [2048, 3, 0], [2048, 1, 0]])
    b = np.float16([[1], [1], [2.0**-5]])
    found = route(fp16_gemm)(tf.constant(a), tf.constant(b))
    np.testing.assert_array_equal(found, np.float16([[2050], [2052], [2048]]))


def test_overflow_becomes_inf_in_fp16_only(route):
    # 65519 rounds to 65504, the largest number; 65520 and more to inf.
    a = np.float16([[65504, 15], [65504, 16], [-65504, -16], [65504, 65504]])
    b = np.float16([[1], [1]])
    run = route(lambda *ab: [fp16_gemm(*ab), fp16_gemm(*ab, output_dtype="float32")])
    half, single = run(tf.constant(a), tf.constant(b))
    infinity = float("inf")
    np.testing.assert_array_equal(half[:, 0], [65504, infinity, -infinity, infinity])
    np.testing.assert_array_equal(single[:, 0], [65519, 65520, -65520, 131008])


@pytest.mark.parametrize("of_b", ["the same", "float32"])
@pytest.mark.parametrize(("dtype", "rounded"), [("float16", 257), ("bfloat16", 256)])
def test_the_result_has_the_dtype_of_a(route, dtype, rounded, of_b):
    # 257 needs 9 bits; bfloat16 has 8, and a tie goes to even.
    a = tf.constant([[256.0, 1.0]], dtype)
    b = tf.ones((2, 1), dtype if of_b == "the same" else of_b)
    for options in ({}, {"output_dtype": None}):
        result = route(lambda *ab, options=options: fp16_gemm(*ab, **options))(a, b)
        assert result.dtype == dtype
        assert float(result[0, 0]) == rounded


@pytest.mark.parametrize("output_dtype", ["float16", "float32"])
def test_fp16_subnormals(route, output_dtype):
    # The smallest number 2^-24, exact; halves of it go to even: 0.5 to 0, 1.5 to 2.
    a = np.float16([[2.0**-24], [1.5 * 2.0**-14], [3 * 2.0**-24], [-1023 * 2.0**-24]])
    b = np.float16([[1, 0.5, 2.0**-10, 1024]])
    check(route, a, b, output_dtype=output_dtype)


@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_and_inf(route, activation, dtype):
    infinity, nan = float("inf"), float("nan")
    a = np.zeros((7, 17), DTYPES[dtype])
    a[:, 16] = 1
    a[1, 3], a[2, 3], a[3, 3], a[4, 3:5] = (
        nan,
        infinity,
        -infinity,
        [infinity, -infinity],
    )
    b = np.ones((17, 64), DTYPES[dtype])
    b[3, :20] = -1
    b[3, 40:], b[16, 60], b[16, 61] = 0, nan, infinity  # 0 * inf is NaN
    check(route, a, b, activation=activation, output_dtype=dtype)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("m", [1, 4, 17, 217])
def test_nan_stays_in_its_row_and_column(ops_mode, m, transpose_b):
    # Tiles are padded at the edge: what is next to them must not come in.
    ops_mode("native")
    a, b = operands(m, 111, 217, transpose_b=transpose_b)
    a[-1, -1] = np.nan
    b[(5, 216) if transpose_b else (216, 5)] = np.nan
    check(lambda f, **_: f, a, b, transpose_b=transpose_b)


def test_same_bits_on_every_run(library):
    a, b = operands(217, 111, 989)
    first = fp16_gemm(a, b, output_dtype="float32").numpy()
    for _ in range(20):
        again = fp16_gemm(a, b, output_dtype="float32").numpy()
        oracle.assert_same_bits(again, first)


def test_concurrent_calls(library):
    jobs = [
        operands(m, n, k) for m in (1, 17, 217) for n in (7, 111) for k in (16, 989)
    ]
    expected = [fp16_gemm(*job).numpy() for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda job: fp16_gemm(*job).numpy(), jobs * 10))
    for one, other in zip(found, expected * 10, strict=True):
        oracle.assert_same_bits(one, other)


@pytest.mark.parametrize("start", [1, 3, 16])
def test_slices(route, start):
    """Views that start anywhere: TensorFlow shares their memory where it can."""
    a, b = draw(1, (64, 17)), draw(2, (64, 17, 7))
    run = route(lambda a, b: fp16_gemm(a[start:], b[start]))
    expected, bound = oracle.gemm(a[start:], b[start])
    oracle.assert_rounded(
        run(tf.constant(a), tf.constant(b)), expected, bound, "float16"
    )


@pytest.mark.parametrize("start", [1, 3, 16])
def test_numpy_views(library, start):
    # In bytes 2, 6 and 32 off; transposed views are not contiguous.
    a = draw(1, 17 * 16 + start)[start:].reshape(17, 16)
    b = draw(2, (7, 16 + start))[:, start:].T
    expected, bound = oracle.gemm(a, b)
    oracle.assert_rounded(fp16_gemm(a, b), expected, bound, "float16")
