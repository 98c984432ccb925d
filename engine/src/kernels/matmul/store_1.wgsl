// Features of one weight to its output, WIDE neighbours at once.

@group(0) @binding(6) var<storage, read_write> out_0: array<Out>;

fn store(row: u32, feature: u32, value: Out) {
    let place = (row * params.stride_0 + params.first_feature + feature) / WIDE;
    if (ACCUMULATE == 1u) {
        out_0[place] += value;
    } else {
        out_0[place] = value;
    }
}
