"""The hyperparameters of optimizers at a step, as the kernel takes them.

A function for each rule takes the `keras.optimizers.Optimizer` and returns numbers by
name, without those that all rules have. A number is computed as in the `update_step` of
an FP32 variable, bit for bit: in FP32 where that casts an option first, in Python where
it does not.
"""

from typing import Any

from keras import ops

from keras_mp.keras_internals import nadam_momentum_product


def of_sgd(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of SGD without momentum: none."""
    return {}


def of_momentum(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of SGD with momentum."""
    return {"momentum": optimizer.momentum}


def of_adam(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adam, and of AdamW."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    return _of_adam(optimizer, rate, optimizer.beta_1, optimizer.beta_2)


def of_muon(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of the variables that Muon updates as Adam does."""
    rate = ops.cast(optimizer.learning_rate * optimizer.adam_lr_ratio, "float32")
    betas = (optimizer.adam_beta_1, optimizer.adam_beta_2)
    return _of_adam(optimizer, rate, *betas)


def _of_adam(optimizer: Any, rate: Any, beta_1: float, beta_2: float) -> dict[str, Any]:
    power_1, power_2 = _powers(optimizer, beta_1, beta_2)
    return {
        "alpha": rate * ops.sqrt(1 - power_2) / (1 - power_1),
        "one_minus_beta_1": 1 - beta_1,
        "one_minus_beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon,
    }


def of_lamb(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Lamb."""
    power_1, power_2 = _powers(optimizer)
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "one_minus_beta_2": 1 - optimizer.beta_2,
        "m_divisor": 1 - power_1,
        "v_divisor": 1 - power_2,
        "epsilon": optimizer.epsilon,
    }


def of_adafactor(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adafactor: beta_2 grows with the steps."""
    step = ops.cast(optimizer.iterations + 1, "float32")
    rate = ops.cast(optimizer.learning_rate, "float32")
    beta_2 = 1 - ops.power(step, optimizer.beta_2_decay)
    return {
        # Keras limits its steps by this with and without `relative_step`.
        "alpha": ops.minimum(rate, 1 / ops.sqrt(step)),
        "beta_2": beta_2,
        "one_minus_beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon_1,
        "epsilon_2": optimizer.epsilon_2,
        "threshold": optimizer.clip_threshold,
    }


def of_nadam(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Nadam, with this and the next momentum."""
    beta_1 = ops.cast(optimizer.beta_1, "float32")
    beta_2 = ops.cast(optimizer.beta_2, "float32")
    decay = ops.cast(0.96, "float32")

    def momentum(steps: int) -> Any:
        step = ops.cast(optimizer.iterations + steps, "float32")
        return beta_1 * (1.0 - 0.5 * ops.power(decay, step))

    product = ops.cast(next_product(optimizer), "float32")
    this, following = momentum(1), momentum(2)
    return {
        "one_minus_beta_1": 1 - beta_1,
        "one_minus_beta_2": 1 - beta_2,
        "m_factor": following,
        "m_divisor": 1 - product * following,
        "g_factor": 1 - this,
        "g_divisor": 1 - product,
        "v_divisor": 1 - _powers(optimizer)[1],
        "epsilon": optimizer.epsilon,
    }


def next_product(optimizer: Any) -> Any:
    """Returns the product of Nadam's momentums, this step's included."""
    product = nadam_momentum_product(optimizer)
    step = ops.cast(optimizer.iterations + 1, product.dtype)
    return product * optimizer.beta_1 * (1.0 - 0.5 * ops.power(0.96, step))


def of_adamax(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adamax."""
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "m_divisor": 1 - _powers(optimizer)[0],
        "epsilon": optimizer.epsilon,
    }


def of_lion(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Lion."""
    beta_1 = ops.cast(optimizer.beta_1, "float32")
    beta_2 = ops.cast(optimizer.beta_2, "float32")
    return {
        "beta_1": beta_1,
        "one_minus_beta_1": 1.0 - beta_1,
        "beta_2": beta_2,
        "one_minus_beta_2": 1.0 - beta_2,
    }


def of_adagrad(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adagrad."""
    return {"epsilon": optimizer.epsilon}


def of_ftrl(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Ftrl."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * rate)
    return {
        "l1": optimizer.l1_regularization_strength,
        "l2": 2 * l2,
        "l2_shrinkage": 2 * optimizer.l2_shrinkage_regularization_strength,
    }


def of_adadelta(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adadelta."""
    return {
        "beta_2": optimizer.rho,
        "one_minus_beta_2": 1 - optimizer.rho,
        "epsilon": optimizer.epsilon,
    }


def of_rmsprop(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of RMSprop."""
    return {**of_adadelta(optimizer), **of_momentum(optimizer)}


def _powers(optimizer: Any, *betas: float) -> list[Any]:
    """Returns each beta to the power of the step's number.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        *betas: floats, the optimizer's by default.
    """
    step = ops.cast(optimizer.iterations + 1, "float32")
    betas = betas or (optimizer.beta_1, optimizer.beta_2)
    return [ops.power(ops.cast(beta, "float32"), step) for beta in betas]
