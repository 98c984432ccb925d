// For software rasterisers: each of 8 lanes computes 4 output features of ROWS rows, so that a load, which costs as
// much as many multiplications there, serves many of them.
//
// What is written out are calls, which the driver puts the functions' bodies in place of: compiling one long function
// takes naga the square of its length. Functions get pointers to whole variables only: naga 30 panics at one into an
// array.

const LANES: u32 = 8u;
const FEATURES: u32 = 4u;

// A block of each feature, and its 32 weights by fours.
alias Weights = array<Block, FEATURES>;
alias Fours = array<array<vec4<f32>, FEATURES>, 8>;
// A sum for each feature.
alias Sums = array<f32, FEATURES>;

fn unpack_four(fours: ptr<function, Fours>, weights: ptr<function, Weights>, j: u32) {
    // each this_feature
    (*fours)[j][THIS_FEATURE] = block_values((*weights)[THIS_FEATURE], j);
    // end this_feature
}

fn add_four(sums: ptr<function, Sums>, fours: ptr<function, Fours>, j: u32, x: vec4<f32>) {
    // each this_feature
    (*sums)[THIS_FEATURE] = add_product((*fours)[j][THIS_FEATURE], x, (*sums)[THIS_FEATURE]);
    // end this_feature
}

fn add_sums(total: Sums, weights: ptr<function, Weights>, sums: Sums, inputs: f32) -> Sums {
    var next: Sums;
    // each this_feature
    next[THIS_FEATURE] = add_block(total[THIS_FEATURE], block_scale((*weights)[THIS_FEATURE]), sums[THIS_FEATURE], inputs);
    // end this_feature
    return next;
}

fn store_row(row: u32, tile: u32, local: u32, lane: u32, total: Sums, factor: f32) {
    var finished: Sums;
    // each this_feature
    finished[THIS_FEATURE] = total[THIS_FEATURE] * factor;
    // end this_feature
    // each finished_feature
    {
        let feature = feature_of(tile, local, FINISHED_FEATURE * WIDE);
        FINISHED_VALUE
        if (feature < params.features && feature % WIDE == 0u) {
            store(row, feature, value);
        }
    }
    // end finished_feature
}

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

    var total: array<Sums, ROWS>;
    var squares: array<f32, ROWS>;
    for (var b = 0u; b < params.blocks; b++) {
        var prepared: array<vec4<f32>, ROWS>;
        var inputs: array<f32, ROWS>;
        let norm = given_weight(b, LANE_INDEX);
        // each this_row
        {
            let row = min(first_row + THIS_ROW, rows - 1u);
            let given = given(row, b, LANE_INDEX);
            squares[THIS_ROW] = add_block_squares(given, row, b, squares[THIS_ROW]);
            prepared[THIS_ROW] = given * norm;
            inputs[THIS_ROW] = block_sum(given, norm, row, b, LANE_INDEX);
        }
        // end this_row
        var weights: Weights = load_four(block_index(tile * 32u + local * FEATURES, b, params.blocks));
        var fours: Fours;
        // each ahead
        unpack_four(&fours, &weights, AHEAD);
        // end ahead
        // Row by row, so that a row's sums stay in registers.
        // each this_row
        {
            let row = min(first_row + THIS_ROW, rows - 1u);
            var sums = Sums();
            // each step
            // each in_time
            unpack_four(&fours, &weights, STEP);
            // end in_time
            add_four(&sums, &fours, STEP, block_input(prepared[THIS_ROW], row, b, STEP));
            // end step
            total[THIS_ROW] = add_sums(total[THIS_ROW], &weights, sums, inputs[THIS_ROW]);
        }
        // end this_row
    }
    // each this_row
    if (first_row + THIS_ROW < rows) {
        let factor = norm_factor(across_lanes(squares[THIS_ROW], LANE_INDEX));
        store_row(first_row + THIS_ROW, tile, local, LANE_INDEX, total[THIS_ROW], factor);
    }
    // end this_row
}
