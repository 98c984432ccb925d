// Features of three weights one after the other, each to its own output, WIDE neighbours at once.

@group(0) @binding(6) var<storage, read_write> out_0: array<Out>;
@group(0) @binding(7) var<storage, read_write> out_1: array<Out>;
@group(0) @binding(8) var<storage, read_write> out_2: array<Out>;

fn store(row: u32, feature: u32, value: Out) {
    let place = params.first_feature + feature;
    if (place < params.end_0) {
        out_0[(row * params.stride_0 + place) / WIDE] = value;
    } else if (place < params.end_1) {
        out_1[(row * params.stride_1 + place - params.end_0) / WIDE] = value;
    } else {
        out_2[(row * params.stride_2 + place - params.end_1) / WIDE] = value;
    }
}
