//! How positions turn the pairs of a head, and the ways to stretch that over contexts longer than a model was
//! trained on.

use super::WeightId;

/// One kind of rotation: pair i turns by `position · frequency`, where the frequency is `base^(−2i / rotary)`, divided
/// by the pair's factor if there are factors, and scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Values of a head that rotate; even.
    pub rotary: usize,
    /// Frequency base.
    pub base: f32,
    /// `1 × rotary / 2`, or none for factors of 1.
    pub factors: Option<WeightId>,
    /// Other factors for short contexts.
    pub short: Option<ShortFactors>,
    /// What becomes of the frequencies.
    pub scaling: RopeScaling,
    /// Multiplies what has turned.
    pub magnitude: f32,
}

/// Factors for engines whose sequences have at most `max_len` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortFactors {
    /// `1 × rotary / 2`.
    pub factors: WeightId,
    /// Tokens.
    pub max_len: usize,
}

/// How frequencies are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// All are divided by this; 1 leaves them.
    Linear(f32),
    /// Slow ones are divided, fast ones are not.
    Yarn(Yarn),
}

/// YaRN: pairs up to `first` keep their frequency, those from `last` on are divided by the factor, and in between the
/// two are mixed in proportion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context length over that of the training.
    pub factor: f32,
    /// Place of a pair.
    pub first: f32,
    /// Place of a pair.
    pub last: f32,
}

impl Rotation {
    /// A rotation without factors and scaling.
    pub fn plain(rotary: usize, base: f32) -> Rotation {
        let scaling = RopeScaling::Linear(1.0);
        Rotation { rotary, base, factors: None, short: None, scaling, magnitude: 1.0 }
    }
}

impl Yarn {
    /// The mix for a rotation that was trained on contexts of `original` tokens: pairs that turn `fast` times or more
    /// over those are kept, those that turn `slow` times or less are divided.
    pub fn new(factor: f32, rotary: usize, base: f32, original: usize, fast: f32, slow: f32) -> Yarn {
        // The place of a pair that turns this often, from base^(−2i / rotary) · original = 2π · turns.
        let place = |turns: f32| {
            let wavelength = original as f32 / (turns * 2.0 * std::f32::consts::PI);
            rotary as f32 * wavelength.ln() / (2.0 * base.ln())
        };
        let last = rotary.saturating_sub(1) as f32;
        Yarn { factor, first: place(fast).floor().max(0.0), last: place(slow).ceil().min(last) }
    }

    /// How the rotation's magnitude grows with the factor.
    pub fn magnitude(factor: f32) -> f32 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }
}

impl RopeScaling {
    /// The scaled frequency of a pair.
    pub fn apply(self, pair: usize, frequency: f32) -> f32 {
        match self {
            RopeScaling::Linear(factor) => frequency / factor,
            RopeScaling::Yarn(Yarn { factor, first, last }) => {
                let divided = ((pair as f32 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
                frequency * (1.0 - divided) + frequency / factor * divided
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_keeps_fast_pairs_divides_slow_ones_and_mixes_between() {
        // Pair 20.9 of 64 turns 32 times over 4,096 tokens, pair 45.03 once.
        let yarn = Yarn::new(4.0, 128, 10_000.0, 4096, 32.0, 1.0);
        assert_eq!((yarn.first, yarn.last), (20.0, 46.0));
        let scaling = RopeScaling::Yarn(yarn);
        assert_eq!(scaling.apply(20, 8.0), 8.0);
        assert_eq!(scaling.apply(33, 8.0), 5.0);
        assert_eq!(scaling.apply(46, 8.0), 2.0);
        assert_eq!(scaling.apply(63, 8.0), 2.0);
        assert_eq!((Yarn::magnitude(1.0), Yarn::magnitude(0.5)), (1.0, 1.0));
        assert!((Yarn::magnitude(4.0) - 1.138_629).abs() < 1e-6);
    }

    #[test]
    fn a_mix_of_no_width_jumps_from_one_to_the_other() {
        let scaling = RopeScaling::Yarn(Yarn { factor: 2.0, first: 3.0, last: 3.0 });
        assert_eq!((scaling.apply(3, 1.0), scaling.apply(4, 1.0)), (1.0, 0.5));
    }
}
