// Features of one weight are added to what is in a texture, four neighbours at once; the sums go to another one.

fn store(row: u32, feature: u32, value: Out) {
    let place = (params.first_feature + feature) / WIDE;
    put_out_0(row, 0u, place, before_at(row, 0u, place) + value);
}
