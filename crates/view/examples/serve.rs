//! Serves a view of one directory on another, with the library alone:
//! `cargo run --release -p tollgate-view --example serve -- DIR MNT`.

use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tollgate_fuse::{MountOptions, Session};
use tollgate_view::{Config, View};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(mnt)) = (args.next(), args.next()) else {
        return Err("usage: serve DIR MNT".into());
    };
    let source = rustix::fs::open(&*dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let view = View::open(source, Config::default())?;
    let options = MountOptions { default_permissions: true, ..MountOptions::default() };
    let (device, _mount) = tollgate_fuse::mount(mnt.as_ref(), &options)?;
    let running = Session::new(device, Arc::clone(&view), view.session_config(None)).start()?;
    println!("{}", running.connection().negotiated());
    println!("ended: {:?}", running.wait()?);
    println!("{:#?}", view.snapshot());
    Ok(())
}
