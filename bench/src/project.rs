//! A source tree made from nothing, the same on every machine.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

/// How much to generate.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) files: usize,
    pub(crate) directories: usize,
    /// No file is larger, but for its last line (100 bytes at most).
    pub(crate) file_bytes_max: usize,
    /// Headers that each C unit includes.
    pub(crate) headers: usize,
    /// Files that are compiled.
    pub(crate) units: usize,
}

/// The word that one file in [`NEEDLE_EVERY`] holds.
pub(crate) const NEEDLE: &str = "xylophone_needle";
const NEEDLE_EVERY: usize = 37;
const WORDS: [&str; 24] = [
    "buffer", "offset", "length", "request", "reply", "inode", "handle", "policy", "worker",
    "queue", "cache", "region", "node", "shard", "index", "count", "limit", "state", "flags",
    "mount", "lookup", "parent", "child", "result",
];

/// Writes the tree below `root`: directories of files with sizes as source trees have them (median
/// about 3 KiB, a few of 60 KiB), headers, and C and Rust sources that compile.
pub(crate) fn generate(root: &Path, shape: &Shape) -> Result<()> {
    let mut random = Random(0x5eed_cafe);
    let mut text = String::new();
    for directory in 0..shape.directories {
        // Three levels, as real trees have; each directory's parent exists already.
        let path = root.join(directory_name(directory));
        std::fs::create_dir_all(&path)?;
        for file in 0..shape.files / shape.directories {
            let number = directory * (shape.files / shape.directories) + file;
            body(&mut text, &mut random, number, shape.file_bytes_max);
            let extension = ["c", "h", "rs", "md", "toml"][random.below(5)];
            std::fs::write(path.join(format!("file_{file}.{extension}")), &text)?;
        }
    }
    headers(&root.join("include"), shape.headers)?;
    units(&root.join("units"), shape)
}

fn directory_name(number: usize) -> String {
    match number % 10 {
        0 => format!("part_{:02}", number / 10),
        rest => format!("part_{:02}/module_{rest}", number / 10),
    }
}

/// Text of a size between 200 bytes and 60 KiB, most of it small.
fn body(text: &mut String, random: &mut Random, number: usize, bytes_max: usize) {
    text.clear();
    let doublings = random.below(8) + random.below(2) * random.below(3);
    let size = ((200 + random.below(400)) << doublings.min(7)).min(bytes_max);
    while text.len() < size {
        let (a, b, c) = (random.word(), random.word(), random.word());
        let _ = writeln!(text, "    let {a}_{b} = {c}.{a}({}, {}); // {b}", size, random.below(97));
    }
    if number.is_multiple_of(NEEDLE_EVERY) {
        let _ = writeln!(text, "// {NEEDLE} {number}");
    }
}

/// Headers in four include directories, so that a compiler looks for most of them more than once.
fn headers(root: &Path, count: usize) -> Result<()> {
    for directory in 0..4 {
        std::fs::create_dir_all(root.join(format!("i{directory}")))?;
    }
    for header in 0..count {
        let mut text = format!("#ifndef H{header}\n#define H{header}\n");
        for item in 0..20 {
            let _ = writeln!(
                text,
                "static inline int f{header}_{item}(int x) {{ return x + {item}; }}"
            );
        }
        text.push_str("#endif\n");
        std::fs::write(root.join(format!("i{}/h{header}.h", header % 4)), text)?;
    }
    Ok(())
}

/// Sources, each in C and in Rust: the benchmark compiles those that it finds a compiler for.
fn units(root: &Path, shape: &Shape) -> Result<()> {
    std::fs::create_dir_all(root)?;
    for unit in 0..shape.units {
        let mut c = String::new();
        for header in 0..shape.headers {
            let _ = writeln!(c, "#include \"h{header}.h\"");
        }
        let _ = writeln!(c, "int unit_{unit}(int x) {{ return f{}_1(x); }}", unit % shape.headers);
        std::fs::write(root.join(format!("unit_{unit}.c")), c)?;
        let rust = format!("pub fn unit_{unit}(x: u32) -> u32 {{ x + {unit} }}\n");
        std::fs::write(root.join(format!("unit_{unit}.rs")), rust)?;
    }
    Ok(())
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap_or(0)
    }

    fn word(&mut self) -> &'static str {
        WORDS[self.below(WORDS.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(file_bytes_max: usize) -> Shape {
        Shape { files: 120, directories: 12, file_bytes_max, headers: 8, units: 2 }
    }

    #[test]
    fn the_tree_is_the_same_every_time_and_has_its_needles() {
        let shape = shape(16 << 10);
        let (one, two) = (tempfile::tempdir(), tempfile::tempdir());
        let sums = [one, two].map(|directory| {
            let directory = directory.expect("a temporary directory");
            generate(directory.path(), &shape).expect("space for a small tree");
            let mut files = Vec::new();
            collect(directory.path(), &mut files);
            files.sort();
            let needles = files.iter().filter(|text| text.contains(NEEDLE)).count();
            assert_eq!(needles, 120usize.div_ceil(NEEDLE_EVERY));
            files
        });
        assert_eq!(sums[0].len(), 120 + 8 + 2 * 2);
        assert_eq!(sums[0], sums[1]);
    }

    fn collect(directory: &Path, files: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).expect("own directory") {
            let path = entry.expect("own directory").path();
            if path.is_dir() {
                collect(&path, files);
            } else {
                files.push(std::fs::read_to_string(&path).expect("generated text"));
            }
        }
    }
}
