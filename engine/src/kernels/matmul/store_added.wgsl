// Features of one weight are added to what is in the output, WIDE neighbours at once.

fn store(row: u32, feature: u32, value: Out) {
    out_0[(row * params.stride_0 + params.first_feature + feature) / WIDE] += value;
}
