// For software rasterisers: each of 8 lanes computes FEATURES output features of ROWS rows, so that a load,
// which costs as much as many multiplications there, serves many of them.

const LANES: u32 = 8u;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    LANE_PARAMETER
) {
    let rows = row_count(params.logits);
    let row_groups = (rows + ROWS - 1u) / ROWS;
    let index = linear_workgroup(group, groups);
    if (row_groups == 0u || index / row_groups * LANES * FEATURES >= params.features) {
        return;
    }
    let first_row = index % row_groups * ROWS;
    let first_feature = index / row_groups * LANES * FEATURES + local;

    var total: array<array<f32, ROWS>, FEATURES>;
    for (var b = 0u; b < params.blocks; b++) {
        var prepared: array<vec4<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            prepared[r] = prepare(min(first_row + r, rows - 1u) * params.blocks + b, LANE_INDEX);
        }
        var weight: array<Block, FEATURES>;
        for (var f = 0u; f < FEATURES; f++) {
            weight[f] = load_block(min(first_feature + f * LANES, params.features - 1u) * params.blocks + b);
        }
        var sum: array<array<f32, ROWS>, FEATURES>;
        var inputs: array<f32, ROWS>;
        for (var j = 0u; j < 8u; j++) {
            var x: array<vec4<f32>, ROWS>;
            for (var r = 0u; r < ROWS; r++) {
                x[r] = block_input(prepared[r], min(first_row + r, rows - 1u) * params.blocks + b, j);
                inputs[r] = add_inputs(x[r], inputs[r]);
            }
            for (var f = 0u; f < FEATURES; f++) {
                let w = block_values(weight[f], j);
                for (var r = 0u; r < ROWS; r++) {
                    sum[f][r] = add_product(w, x[r], sum[f][r]);
                }
            }
        }
        for (var f = 0u; f < FEATURES; f++) {
            for (var r = 0u; r < ROWS; r++) {
                total[f][r] = add_block(total[f][r], block_scale(weight[f]), sum[f][r], inputs[r]);
            }
        }
    }
    for (var f = 0u; f < FEATURES; f++) {
        for (var r = 0u; r < ROWS; r++) {
            let feature = first_feature + f * LANES;
            if (feature < params.features && first_row + r < rows) {
                store(first_row + r, feature, total[f][r]);
            }
        }
    }
}
