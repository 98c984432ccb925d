@group(0) @binding(3) var<storage, read> source: array<vec4<f32>>;

fn work(group: u32, local: u32) {
    let factor = source[0];
    var a = vec4<f32>(f32(local));
    var b = a + 1.0;
    var c = a + 2.0;
    var d = a + 3.0;
    for (var i = 0u; i < PART; i++) {
        a = fma(a, factor, factor);
        b = fma(b, factor, factor);
        c = fma(c, factor, factor);
        d = fma(d, factor, factor);
    }
    consume(group, a + b + c + d);
}
