"""The reader of optimized HLO, against XLA's own counts and a module whose counts are known."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import hlo
from benchmarks.hlo import Array, Collective

# In the form of the TPU compiler: a loop of 8 trips with sums over pairs of chips, an asynchronous
# copy to the memory on the chip (S(1)), one all-gather written in the two fusions that it overlaps
# with, and a reduce-scatter written as a fused all-reduce.
MODULE = """
HloModule step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %y = f32[]{:T(128)} parameter(1)
  %x = f32[]{:T(128)} parameter(0)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%product (p0: bf16[24,100], p1: bf16[100,10]) -> f32[24,10] {
  %p0 = bf16[24,100]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[100,10]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %dot = f32[24,10]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%another (p3: bf16[24,10]) -> bf16[24,80] {
  %p3 = bf16[24,10]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all = bf16[24,80]{1,0:T(8,128)(2,1)} all-gather(%p3), replica_groups=[1,8]<=[8], dimensions={1}, frontend_attributes={chain_id="0"}
}

%all-reduce-scatter.1 (p2: f32[16,128]) -> f32[2,128] {
  %p2 = f32[16,128]{1,0:T(8,128)} parameter(0)
  %whole = f32[16,128]{1,0:T(8,128)} all-reduce(%p2), replica_groups=[1,8]<=[8], to_apply=%add
  %id = u32[]{:T(128)} partition-id()
  ROOT %part = f32[2,128]{1,0:T(2,128)} dynamic-slice(%whole, %id, %id), dynamic_slice_sizes={2,128}
}

%condition (s: (s32[], f32[24,10])) -> pred[] {
  %bound = s32[]{:T(128)} constant(8)
  %s = (s32[]{:T(128)}, f32[24,10]{1,0:T(8,128)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %less = pred[]{:T(512)} compare(%count, %bound), direction=LT
}

%body (t: (s32[], f32[24,10])) -> (s32[], f32[24,10]) {
  %t = (s32[]{:T(128)}, f32[24,10]{1,0:T(8,128)}) parameter(0)
  %n = s32[]{:T(128)} get-tuple-element(%t), index=0
  %old = f32[24,10]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %new = f32[24,10]{1,0:T(8,128)} all-reduce(%old), replica_groups=mesh['a'=4,'b'=2] {'b'}, to_apply=%add
  ROOT %next = (s32[]{:T(128)}, f32[24,10]{1,0:T(8,128)}) tuple(%n, %new)
}

ENTRY %main (a: bf16[24,100], b: bf16[100,10], g: f32[16,128]) -> f32[24,10] {
  %a = bf16[24,100]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[100,10]{1,0:T(8,128)(2,1)} parameter(1)
  %g = f32[16,128]{1,0:T(8,128)} parameter(2)
  %start = (bf16[100,10]{1,0:T(8,128)(2,1)S(1)}, bf16[100,10]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%b)
  %done = bf16[100,10]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  %y = f32[24,10]{1,0:T(8,128)} fusion(%a, %done), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"700"}
  %h = bf16[24,10]{1,0:T(8,128)(2,1)S(1)} convert(%y)
  %first = bf16[24,80]{1,0:T(8,128)(2,1)S(1)} fusion(%h), kind=kCustom, calls=%another
  %second = bf16[24,80]{1,0:T(8,128)(2,1)S(1)} fusion(%h), kind=kCustom, calls=%another
  %mine = f32[2,128]{1,0:T(2,128)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
  %zero = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, f32[24,10]{1,0:T(8,128)}) tuple(%zero, %y)
  %loop = (s32[]{:T(128)}, f32[24,10]{1,0:T(8,128)}) while(%init), condition=%condition, body=%body
  ROOT %out = f32[24,10]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""  # noqa: E501


def test_counts_of_a_module_are_those_counted_by_hand():
    counts = hlo.counts(MODULE)
    assert counts.flops == 2 * 24 * 100 * 10
    assert counts.collectives == {
        Collective("all-reduce", 24 * 10 * 4, group=2): 8,
        Collective("all-gather", 24 * 80 * 2, group=8): 1,
        Collective("reduce-scatter", 16 * 128 * 4, group=8): 1,
    }
    touched = {f"{array.dtype}{list(array.shape)}": n for array, n in counts.touched.items()}
    # b where the copy reads it; the sum in the loop twice per trip, the product once and once more
    assert touched == {
        "bf16[24, 100]": 1,
        "bf16[100, 10]": 1,
        "f32[24, 10]": 2 + 2 * 8,
        "f32[16, 128]": 1,
        "f32[2, 128]": 1,
    }
    assert counts.bytes == 4800 + 2000 + 18 * 960 + 8192 + 1024
    assert counts.cycles == 700


@pytest.mark.parametrize(
    ("array", "elements"),
    [
        (Array("f32", (24, 10)), 240),
        (Array("f32", (24, 10), "1,0:T(8,128)"), 24 * 128),
        (Array("f32", (24, 10), "0,1:T(8,128)"), 16 * 128),
        (Array("bf16", (16, 32, 31, 16), "3,0,2,1:T(8,128)(2,1)"), 16 * 32 * 31 * 128),
        (Array("f32", (16,), "0:T(128)"), 128),
        (Array("f32", (10,), "0:T(8,128)"), 8 * 128),
        (Array("s32", (), ":T(128)"), 1),
    ],
)
def test_arrays_lie_in_whole_tiles(array, elements):
    assert array.padded_bytes == elements * (2 if array.dtype == "bf16" else 4)


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,1,2,3},{4,5,6,7}}",
        "[2,4]<=[4,2]T(1,0)",
        "mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0','axis_1'}",
        "mesh['axis_0'=2,'axis_1'=1,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_2'}",
    ],
)
def test_the_size_of_groups_is_read_in_every_form(groups):
    line = f"  %sum = f32[2]{{0}} all-reduce(%x), replica_groups={groups}, to_apply=%add"
    text = f"ENTRY %main (x: f32[2]) -> f32[2] {{\n  %x = f32[2]{{0}} parameter(0)\n{line}\n}}\n"
    assert hlo.counts(text).collectives == {Collective("all-reduce", 8, group=4): 1}


def test_a_chip_of_a_ring_sends_the_bytes_of_the_textbook():
    """Patarasuk & Yuan 2009: 2 (n - 1) / n of the array for an all-reduce."""
    assert Collective("all-reduce", 800, group=8).sent == 1400
    assert Collective("all-gather", 800, group=8).sent == 700
    assert Collective("reduce-scatter", 800, group=8).sent == 700


def strided(x, w):
    sizes = {"window_strides": (2, 1), "padding": ((1, 1), (0, 2)), "rhs_dilation": (1, 2)}
    layout = ("NHWC", "HWIO", "NHWC")
    return (jax.lax.conv_general_dilated(x, w, dimension_numbers=layout, **sizes) ** 2).sum()


def test_flops_of_convolutions_and_their_gradients_are_those_of_xla():
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 14, 15, 64), (3, 3, 64, 96))]
    compiled = jax.jit(jax.grad(strided, (0, 1))).lower(*shapes).compile()
    flops = hlo.counts(compiled.as_text()).flops
    assert flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.002)  # and the square


def test_products_in_a_loop_count_as_often_as_it_runs():
    def repeated(w, x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=5)[0]

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((128, 128), (64, 128))]
    text = jax.jit(repeated).lower(*shapes).compile().as_text()
    assert hlo.counts(text).flops == 5 * 2 * 64 * 128 * 128
