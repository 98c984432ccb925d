// For GPUs and many rows: a workgroup computes a tile of 32 output features × 32 rows, block by block from
// workgroup memory; each thread has 4 × 4 sums. A row of workgroup memory has a word to spare, so that
// neighbouring threads read from different banks.

const THREADS: u32 = 64u;
const SIDE: u32 = 32u;
const PITCH: u32 = 9u;

var<workgroup> weights: array<vec4<f32>, 288>;
var<workgroup> inputs: array<vec4<f32>, 288>;
var<workgroup> factors: array<vec2<f32>, 32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let rows = row_count(params.logits);
    let row_groups = (rows + SIDE - 1u) / SIDE;
    let index = linear_workgroup(group, groups);
    if (row_groups == 0u || index / row_groups * SIDE >= params.features) {
        return;
    }
    let first_row = index % row_groups * SIDE;
    let first_feature = index / row_groups * SIDE;
    let across = local % 8u;
    let down = local / 8u;

    var total: array<array<f32, 4>, 4>;
    for (var b = 0u; b < params.blocks; b++) {
        for (var item = local; item < SIDE * 8u; item += THREADS) {
            let line = item / 8u;
            let j = item % 8u;
            let feature = min(first_feature + line, params.features - 1u);
            let weight = load_block(feature * params.blocks + b);
            weights[line * PITCH + j] = block_values(weight, j);
            if (j == 0u) {
                factors[line] = block_scale(weight);
            }
            let row = min(first_row + line, rows - 1u);
            inputs[line * PITCH + j] = input_at(row, params.blocks * 8u, b * 8u + j);
        }
        workgroupBarrier();
        var sum: array<array<f32, 4>, 4>;
        var input_sum: array<f32, 4>;
        for (var j = 0u; j < 8u; j++) {
            var x: array<vec4<f32>, 4>;
            for (var r = 0u; r < 4u; r++) {
                x[r] = inputs[(down + r * 8u) * PITCH + j];
                input_sum[r] = add_inputs(x[r], input_sum[r]);
            }
            for (var f = 0u; f < 4u; f++) {
                let w = weights[(across + f * 8u) * PITCH + j];
                for (var r = 0u; r < 4u; r++) {
                    sum[f][r] = add_product(w, x[r], sum[f][r]);
                }
            }
        }
        for (var f = 0u; f < 4u; f++) {
            let factor = factors[across + f * 8u];
            for (var r = 0u; r < 4u; r++) {
                total[f][r] = add_block(total[f][r], factor, sum[f][r], input_sum[r]);
            }
        }
        workgroupBarrier();
    }
    for (var f = 0u; f < 4u; f++) {
        for (var r = 0u; r < 4u; r++) {
            let feature = first_feature + across + f * 8u;
            let row = first_row + down + r * 8u;
            if (feature < params.features && row < rows) {
                store(row, feature, total[f][r]);
            }
        }
    }
}
