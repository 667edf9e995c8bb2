//! Checks that the loop allocates nothing between the first and the last frame, in any of its threads.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

#[path = "robot/common.rs"]
mod common;

use common::{Desk, yuyv};
use elsa_robot::frame::{Geometry, PixelFormat, Size};
use elsa_robot::model::Model;
use elsa_robot::robot::{Options, run};
use elsa_robot::sink::Sink;
use elsa_robot::source::{Folder, Keep, Next, Pipe, Source, SourceError};
use elsa_runtime::{EngineOptions, backends};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Frame from which allocations are counted. By then, threads have started and buffers exist.
const FIRST: u64 = 20;
const LAST: u64 = 200;

/// A source that counts allocations from frame `FIRST` to frame `LAST`.
struct Watched<'a> {
    inner: Box<dyn Source>,
    frames: u64,
    region: Region<'a, System>,
    allocations: Option<usize>,
}

impl Source for Watched<'_> {
    fn next(&mut self) -> Result<Next<'_>, SourceError> {
        if self.frames == FIRST {
            self.region.reset();
        }
        if self.frames == LAST {
            let change = self.region.change();
            self.allocations = Some(change.allocations + change.reallocations);
        }
        let next = self.inner.next();
        self.frames += u64::from(matches!(next, Ok(Next::Frame(_))));
        next
    }
}

static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Writer that counts the lines that it receives.
struct Count;

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let lines = bytes.iter().filter(|&&b| b == b'\n').count();
        WRITTEN.fetch_add(lines as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// This binary has only one test, so that no other thread allocates at the same time.
#[test]
fn the_loop_allocates_nothing() {
    let desk = Desk::new(5);
    let frames: Vec<u8> = (0..LAST as usize + 10).flat_map(|i| yuyv(&desk.pictures[i % 5], 4)).collect();
    std::fs::write(desk.path("frames"), frames).unwrap();
    let geometry = Geometry::dense(Size { width: 32, height: 32 }, PixelFormat::Yuyv);
    let mut runs = 0;
    for present in backends().iter().filter(|p| p.present) {
        let engine = EngineOptions::default().backend(present.backend).threads(2);
        let mut model = Model::open(&desk.path("model.safetensors"), &engine).unwrap();
        model.warm_up().unwrap();
        for json in [false, true] {
            let sources: [Box<dyn Source>; 2] = [
                Box::new(Folder::open(&desk.path("images"), true).unwrap()),
                Box::new(Pipe::open(&desk.path("frames"), geometry, Keep::All, None).unwrap()),
            ];
            for inner in sources {
                let mut source = Watched { inner, frames: 0, region: Region::new(GLOBAL), allocations: None };
                let sink = Sink::start("test", Count).unwrap();
                let options = Options { rate: 500.0, frames: Some(LAST + 5), json };
                let stop = AtomicBool::new(false);
                let outcome = run(options, &mut source, &mut model, sink, &stop).unwrap();
                assert!(outcome.fault.is_none());
                let summary = outcome.summary;
                assert_eq!(source.allocations, Some(0), "{} json {json}", present.backend);
                assert_eq!((summary.frames, summary.dropped_lines), (LAST + 5, 0));
                runs += 1;
            }
        }
    }
    assert_eq!(WRITTEN.load(Ordering::Relaxed), runs * (LAST + 5));
    // The counter itself works: it counts an allocation.
    let region = Region::new(GLOBAL);
    let kept = std::hint::black_box(vec![0u8; 100]);
    assert!(region.change().allocations > 0 && !kept.is_empty());
}
