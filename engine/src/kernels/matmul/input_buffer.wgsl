@group(0) @binding(5) var<storage, read> input: array<vec4<f32>>;
