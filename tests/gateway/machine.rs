//! Measures the additional delay with which a busy machine runs its processes. The documented slack
//! e is that of a machine with idle time. The measurement uses nothing that the tests check.

use std::{
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use distlock::backend::sync::Mutex;

use crate::world::now_us;

/// Wake-ups per measurement. A login with its calls to a store and to another node needs about this
/// number of wake-ups.
const WAKE_UPS: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Meter {
    /// For each measurement, the moment of its end and its duration, both in microseconds.
    taken: Mutex<Vec<(u64, u64)>>,
}

fn meter() -> &'static Meter {
    static METER: OnceLock<&'static Meter> = OnceLock::new();
    METER.get_or_init(|| {
        let meter: &'static Meter = Box::leak(Box::default());
        thread::spawn(|| meter.run());
        meter
    })
}

impl Meter {
    fn run(&self) {
        let (ask, asked) = mpsc::sync_channel::<()>(0);
        let (answer, answers) = mpsc::sync_channel::<()>(0);
        thread::spawn(
            move || {
                while asked.recv().is_ok() && answer.send(()).is_ok() {}
            },
        );
        loop {
            let from = now_us();
            for _ in 0..WAKE_UPS / 2 {
                if ask.send(()).is_err() || answers.recv().is_err() {
                    return;
                }
            }
            let to = now_us();
            let mut taken = self.taken.lock();
            taken.push((to, to - from));
            drop(taken);
            thread::sleep(PAUSE);
        }
    }
}

/// Starts to measure, and returns the present moment.
pub(crate) fn start_watching() -> u64 {
    meter();
    now_us()
}

/// The duration of the slowest measurement that ended after the moment `from_us`. The tests allow
/// this delay in addition to the slack e.
pub(crate) fn late_since(from_us: u64) -> Duration {
    let taken = meter().taken.lock();
    let worst = taken
        .iter()
        .filter(|(at, _)| *at >= from_us)
        .map(|it| it.1)
        .max();
    Duration::from_micros(worst.unwrap_or_default())
}
