"""The accelerator's benchmark counts what it says it counts."""

import jax
import jax.numpy as jnp

from benchmarks.gpu import best_seconds, matrix_flops, step_program


def test_matrix_products_are_counted_by_hand():
    def program(a, b):
        looped = jax.lax.scan(lambda c, _: (c @ b, None), a @ b, None, length=5)[0]
        return jnp.sum(jnp.tanh(looped))

    a, b = jnp.ones((3, 4)), jnp.ones((4, 4))
    assert matrix_flops(jax.make_jaxpr(program)(a, b).jaxpr) == (1 + 5) * 2 * 3 * 4 * 4


def test_a_step_has_work_in_proportion_to_its_particles():
    few, many = (
        matrix_flops(jax.make_jaxpr(step_program("banana", n, 2))(jax.random.key(0)).jaxpr) for n in (4, 8)
    )
    assert 1.8 < many / few < 2.2
    assert best_seconds(jax.jit(lambda x: x + 1), jnp.ones(3)) > 0
