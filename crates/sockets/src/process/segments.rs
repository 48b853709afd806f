//! Whether what a connection sends in two segments or more leaves as one frame. That is cheaper where the device takes it as it is. Where it
//! does not, the kernel cuts it on this processor, with a copy of each segment: then each is a frame of AF_XDP's (`docs/performance.md`).

use core::time::Duration;

use overfly_engine::Instant;
use overfly_link::packet;

use super::Process;

/// How long what the device said is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// `EF_SEGMENT_OFFLOAD`: as the device has it; 2 is whatever it has.
const AS_THE_DEVICE: u64 = 1;

impl Process {
    /// A stack begins whose link takes frames of several segments.
    pub(super) fn heed_device(&mut self) {
        if self.options.segment_offload == AS_THE_DEVICE {
            self.device_asked = Some(Instant::from_micros(0));
        }
    }

    /// Asks the device again, if what it said is old: it has another mind when the other end of a veth pair gets an XDP program.
    pub(super) fn ask_device(&mut self) {
        if self.device_asked.is_some_and(|asked| self.pumped - asked >= BELIEVED)
            && let (Some(client), Some(interface)) = (&self.session.client, &self.session.interface)
        {
            self.device_asked = Some(self.pumped);
            if let Some(takes) = packet::takes_segments(client.as_fd(), &interface.name) {
                self.stack.sends_together(takes);
            }
        }
    }
}
