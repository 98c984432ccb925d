// Features of one weight to its output, WIDE neighbours at once.

fn store(row: u32, feature: u32, value: Out) {
    put_out_0(row, params.stride_0 / WIDE, (params.first_feature + feature) / WIDE, value);
}
