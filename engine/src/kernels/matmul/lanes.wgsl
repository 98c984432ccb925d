// For software rasterisers: each of 8 lanes computes 4 output features of ROWS rows, so that a load, which costs as
// much as many multiplications there, serves many of them.

const LANES: u32 = 8u;
const FEATURES: u32 = 4u;

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
    if (row_groups == 0u || index / row_groups * OWNED >= params.features) {
        return;
    }
    let first_row = index % row_groups * ROWS;
    let tile = index / row_groups;

    var total: array<array<f32, ROWS>, FEATURES>;
    var squares: array<f32, ROWS>;
    for (var b = 0u; b < params.blocks; b++) {
        var prepared: array<vec4<f32>, ROWS>;
        var inputs: array<f32, ROWS>;
        let weights = given_weight(b, LANE_INDEX);
        // each this_row
        {
            let row = min(first_row + THIS_ROW, rows - 1u);
            let given = given(row, b, LANE_INDEX);
            squares[THIS_ROW] = add_block_squares(given, row, b, squares[THIS_ROW]);
            prepared[THIS_ROW] = given * weights;
            inputs[THIS_ROW] = block_sum(given, weights, row, b);
        }
        // end this_row
        let weight = load_four(block_index(tile * 32u + local * FEATURES, b, params.blocks));
        var sum = array<array<f32, ROWS>, FEATURES>();
        // Row by row, so that a row's sums stay in registers; weights are unpacked by parts of a block.
        var w: array<array<vec4<f32>, FEATURES>, 8>;
        // each part
        // each step
        // each this_feature
        w[FOUR][THIS_FEATURE] = block_values(weight[THIS_FEATURE], FOUR);
        // end this_feature
        // end step
        // each this_row
        // each step
        {
            let x = block_input(prepared[THIS_ROW], min(first_row + THIS_ROW, rows - 1u), b, FOUR);
            // each this_feature
            sum[THIS_FEATURE][THIS_ROW] = add_product(w[FOUR][THIS_FEATURE], x, sum[THIS_FEATURE][THIS_ROW]);
            // end this_feature
        }
        // end step
        // end this_row
        // end part
        // each this_feature
        {
            // each this_row
            {
                total[THIS_FEATURE][THIS_ROW] = add_block(total[THIS_FEATURE][THIS_ROW], block_scale(weight[THIS_FEATURE]), sum[THIS_FEATURE][THIS_ROW], inputs[THIS_ROW]);
            }
            // end this_row
        }
        // end this_feature
    }
    // each this_row
    {
        let factor = norm_factor(across_lanes(squares[THIS_ROW]));
        // each this_feature
        total[THIS_FEATURE][THIS_ROW] *= factor;
        // end this_feature
        if (first_row + THIS_ROW < rows) {
            // each finished_feature
            {
                let feature = feature_of(tile, local, FINISHED_FEATURE * WIDE);
                FINISHED_VALUE
                if (feature < params.features && feature % WIDE == 0u) {
                    store(first_row + THIS_ROW, feature, value);
                }
            }
            // end finished_feature
        }
    }
    // end this_row
}
