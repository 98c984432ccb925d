@group(0) @binding(3) var<storage, read> source: array<vec4<f32>>;

fn work(group: u32, local: u32) {
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < PART; i++) {
        sum += source[(group * PART + i) * WORKGROUP + local];
    }
    consume(group, sum);
}
