@group(0) @binding(5) var<uniform> input: array<vec4<f32>, WINDOW>;
