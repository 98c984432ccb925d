@group(0) @binding(3) var source: texture_storage_2d<rgba32float, read>;

fn work(group: u32, local: u32) {
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < PART; i++) {
        sum += textureLoad(source, texel((group * PART + i) * WORKGROUP + local));
    }
    consume(group, sum);
}
