//! Machines from sysfs trees and strings, known ones and random ones.

mod machines;
mod properties;
mod support;
