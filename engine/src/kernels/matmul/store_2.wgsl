// Features of two weights one after the other, each to its own output, WIDE neighbours at once.

fn store(row: u32, feature: u32, value: Out) {
    let place = params.first_feature + feature;
    if (place < params.end_0) {
        put_out_0(row, params.stride_0 / WIDE, place / WIDE, value);
    } else {
        put_out_1(row, params.stride_1 / WIDE, (place - params.end_0) / WIDE, value);
    }
}
