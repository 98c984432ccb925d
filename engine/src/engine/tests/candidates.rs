//! Requests on a device that picks candidates, beside the same requests on the same device when all rows come whole.

use super::*;
use crate::device::wgpu::testing::{HARDWARE, Rig, Stored};
use crate::device::{Candidate, WeightSource};
use crate::kernels::synthetic::{LlamaShape, SyntheticModel};
use crate::program::WeightId;

/// Rows of each step: how many came whole, and of how many candidates were picked.
type Rows = Vec<(usize, usize)>;

/// A device that counts rows, and offers its candidates only if it is to.
struct Counting {
    device: Box<dyn Device>,
    picks: bool,
    seen: Arc<Mutex<Rows>>,
}

impl Device for Counting {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        let whole = batch.num_whole_rows();
        self.seen.lock().unwrap().push((whole, batch.logits_rows.len() - whole));
        self.device.execute(batch, logits)
    }

    fn max_candidates(&self) -> usize {
        if self.picks { self.device.max_candidates() } else { 0 }
    }

    fn candidates(&self) -> &[Candidate] {
        self.device.candidates()
    }
}

/// Tokens, log-probabilities among them, of a request with each of these parameters; all are submitted at once. `None`
/// is a skip, already said.
fn run(params: &[SamplingParams], picks: bool) -> Option<(Vec<Vec<SampledToken>>, Rows)> {
    let shape = LlamaShape { vocabulary: 2500, ..LlamaShape::TINY };
    let model = SyntheticModel::new(&shape, 41);
    let stored = (0..model.program.weights.len()).map(|id| model.weight(WeightId(id)).into_owned()).collect();
    let limits = config().device_limits();
    let rig = Rig::mapped(&model.program, &Stored(stored), limits, Some(HARDWARE))?;
    let seen = Arc::<Mutex<Rows>>::default();
    let device = Counting { device: rig.into_device(), picks, seen: seen.clone() };
    let (send, steps) = channel();
    let on_step = move |step| drop(send.send(step));
    let engine = EngineHandle::start(0, config(), Box::new(device), Box::new(NoSource), on_step);
    for (index, params) in params.iter().enumerate() {
        let prompt = [1, 2, 3 + index as u32];
        engine.submit(EngineRequest { params: params.clone(), ..request(index as u64, &prompt, 1) });
    }
    let mut tokens = vec![Vec::new(); params.len()];
    for output in until_finished(&steps, params.len()).into_iter().flat_map(|step| step.outputs) {
        assert_eq!(output.error, None);
        tokens[output.id.0 as usize].extend(output.tokens);
    }
    engine.shutdown();
    let seen = seen.lock().unwrap().clone();
    Some((tokens, seen))
}

fn few() -> Vec<SamplingParams> {
    let base = SamplingParams { max_tokens: 12, seed: Some(5), ..SamplingParams::default() };
    vec![
        SamplingParams { temperature: 0.0, ..base.clone() },
        SamplingParams { top_k: Some(1), ..base.clone() },
        SamplingParams { top_k: Some(5), ..base.clone() },
        SamplingParams { top_k: Some(40), top_p: 0.8, min_p: 0.02, ..base.clone() },
        SamplingParams { top_k: Some(64), temperature: 2.0, ..base },
    ]
}

#[test]
fn texts_are_those_of_whole_rows_and_no_row_travels_for_the_sake_of_another() {
    let base = SamplingParams { max_tokens: 12, seed: Some(9), ..SamplingParams::default() };
    let greedy = SamplingParams { temperature: 0.0, ..base.clone() };
    let mut mixed = few();
    mixed.extend([
        SamplingParams { repetition_penalty: 1.3, ..greedy.clone() },
        SamplingParams { logprobs: Some(3), top_k: Some(8), ..base.clone() },
        // Whole rows at first, candidates afterwards.
        SamplingParams { min_tokens: 5, stop_token_ids: vec![7], ..greedy.clone() },
        SamplingParams { logit_bias: vec![(9, 4.0)], presence_penalty: 0.5, ..greedy },
        SamplingParams { top_k: Some(65), ..base.clone() },
        SamplingParams { top_p: 0.7, ..base.clone() },
        base,
    ]);
    for params in [few(), mixed] {
        let Some((expected, all_whole)) = run(&params, false) else { return };
        let (found, seen) = run(&params, true).expect("there was an adapter");
        assert!(expected.iter().all(|tokens| !tokens.is_empty()));
        assert_eq!(found, expected);
        assert!(all_whole.iter().all(|(_, picked)| *picked == 0));
        let wholes = seen.iter().map(|(whole, _)| whole).sum::<usize>();
        let mixes = seen.iter().any(|(whole, picked)| *whole > 0 && *picked > 0);
        assert_eq!((wholes > 0, mixes), (params.len() > 5, params.len() > 5), "{seen:?}");
    }
}

#[test]
fn a_device_that_picks_too_few_fails_the_step() {
    struct Forgetful(ClosureDevice);

    impl Device for Forgetful {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }

        fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
            self.0.execute(batch, logits)
        }

        fn max_candidates(&self) -> usize {
            4
        }
    }

    let device = Forgetful(ClosureDevice(info(), Box::new(count_up)));
    let (send, steps) = channel();
    let on_step = move |step| drop(send.send(step));
    let engine = EngineHandle::start(0, config(), Box::new(device), Box::new(NoSource), on_step);
    engine.submit(request(1, &[1, 2], 3));
    let seen = until_finished(&steps, 1);
    assert_eq!(finishes(&seen), [(1, FinishReason::Error)]);
    let error = seen.last().unwrap().outputs[0].error.clone().unwrap();
    assert_eq!(&*error, "the device returned 0 of 1 candidates");
}
