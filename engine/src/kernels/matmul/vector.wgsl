// For GPUs and few rows: a workgroup computes 8 output features of ROWS rows. Its threads share out the
// blocks of those features, so that neighbours load neighbouring blocks; the blocks' sums are then added in
// order.

const THREADS: u32 = 64u;
const FEATURES: u32 = 8u;
const CHUNK: u32 = 32u;

var<workgroup> sums: array<f32, ROWS * FEATURES * CHUNK>;
var<workgroup> inputs: array<f32, ROWS * CHUNK>;
var<workgroup> factors: array<vec2<f32>, FEATURES * CHUNK>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let rows = row_count(params.logits);
    let row_groups = (rows + ROWS - 1u) / ROWS;
    let index = linear_workgroup(group, groups);
    if (row_groups == 0u || index / row_groups * FEATURES >= params.features) {
        return;
    }
    let first_row = index % row_groups * ROWS;
    let first_feature = index / row_groups * FEATURES;
    let own_feature = local % FEATURES;
    let own_row = local / FEATURES;

    var total = 0.0;
    for (var first = 0u; first < params.blocks; first += CHUNK) {
        let count = min(CHUNK, params.blocks - first);
        for (var item = local; item < FEATURES * count; item += THREADS) {
            let f = item / count;
            let b = item % count;
            let feature = min(first_feature + f, params.features - 1u);
            let weight = load_block(feature * params.blocks + first + b);
            var sum: array<f32, ROWS>;
            var input_sum: array<f32, ROWS>;
            for (var j = 0u; j < 8u; j++) {
                let w = block_values(weight, j);
                for (var r = 0u; r < ROWS; r++) {
                    let row = min(first_row + r, rows - 1u);
                    let x = input_at(row, params.blocks * 8u, (first + b) * 8u + j);
                    input_sum[r] = add_inputs(x, input_sum[r]);
                    sum[r] = add_product(w, x, sum[r]);
                }
            }
            factors[f * CHUNK + b] = block_scale(weight);
            for (var r = 0u; r < ROWS; r++) {
                sums[(r * FEATURES + f) * CHUNK + b] = sum[r];
                if (f == 0u) {
                    inputs[r * CHUNK + b] = input_sum[r];
                }
            }
        }
        workgroupBarrier();
        if (own_row < ROWS) {
            for (var b = 0u; b < count; b++) {
                let factor = factors[own_feature * CHUNK + b];
                let sum = sums[(own_row * FEATURES + own_feature) * CHUNK + b];
                total = add_block(total, factor, sum, inputs[own_row * CHUNK + b]);
            }
        }
        workgroupBarrier();
    }
    if (own_row < ROWS && first_row + own_row < rows && first_feature + own_feature < params.features) {
        store(first_row + own_row, first_feature + own_feature, total);
    }
}
