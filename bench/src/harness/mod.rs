//! The one language of all benchmarks: rows, columns, interleaved rounds, ratios, musts.
//!
//! A benchmark declares its [`Column`]s (what is compared, and against which base) when it makes
//! its [`Report`], then measures one [`Row`] after the other:
//!
//! ```ignore
//! let columns = [Column::new("native"), Column::against("tollgate", "native")];
//! let mut report = Report::new("passthrough", options, &columns);
//! report.section("in the page cache");
//! let row = Row::new("read 4 KiB", "MiB/s", Better::Higher);
//! report.measure(&row, &["native", "tollgate"], |round, column| sample(round, column))?;
//! report.must(Must::at_least(("read 4 KiB", "tollgate"), 0.90).against("native").aim(0.97));
//! report.finish()
//! ```
//!
//! Within a row, the columns take turns in every round, in rotated order, so that a slow minute of
//! the machine hits all of them; a ratio is taken between the two samples of one round, and its
//! median over the rounds is what is printed. Speed is reported, never asserted: a missed must is
//! printed as `MISSED`, and the exit code stays 0.

pub mod interrupt;

mod export;
mod interleaved;
mod machine;
mod must;
mod options;
mod report;
mod results;
mod samples;
mod svg;
mod table;

pub use interleaved::Interleaved;
pub use must::Must;
pub use options::Options;
pub use report::Report;
pub use results::{Better, Column, Counts, Row};
pub use samples::Summary;
