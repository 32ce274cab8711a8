//! A directory on an overlay, as in most containers: its files are stacked already. One in itself, as in
//! chroots.

use std::process::Command;

use crate::project::{Project, SECRET, all, can_mount, text, tollgate};

/// Whether files are passed through or not is for `status` and `--verbose`: nothing is said of it
/// while files are opened, read, mapped and written.
#[test]
fn nothing_is_said_of_backing_files_on_an_overlay() {
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs t . && cd \"$PWD\" && mkdir lower upper work dir && echo below >lower/a && \
         mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work dir || exit 9
         {} run --policy none --fence off dir -- sh -c 'cat a; echo more >>a; cat a; cp /bin/true t; \
         ./t; rm t; seq 1000 >n; cat n >/dev/null'",
        tollgate().get_program().to_string_lossy()
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env_remove("TOLLGATE_POLICY")
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout), "below\nbelow\nmore\n");
    let said = text(&output.stderr);
    for word in ["acking", "passthrough", "DEBUG", "INFO", "WARN", "ELOOP", "os error"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

/// The layers of an overlay show the files of DIR without the policy: `status` and the start name them,
/// where there is a policy.
#[test]
fn the_layers_that_dir_lies_on_are_named() {
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let rule = "[[rule]]\npath = \"a\"\naction = \"hide\"\n";
    std::fs::write(home.path().join("p.toml"), rule).unwrap();
    let script = "mount -t tmpfs t mnt; cd mnt; mkdir lower upper work dir; echo below >lower/a
         mount -t overlay o -o lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work dir
         $T run --policy ../p.toml --fence off dir -- \"$T\" status --json . >said
         grep -c \"reached in .$PWD/lower., .$PWD/upper.\" said
         $T run --policy none --fence off dir -- \"$T\" status --json . >said
         grep -c 'layers of the overlay' said || true";
    std::fs::create_dir(home.path().join("mnt")).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", script])
        .env_remove("TOLLGATE_POLICY")
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(home.path())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "1\n0\n", "{}", all(&output));
}

/// What lies beneath a view that DIR is in is not judged by the policy: the start and `status` name it.
#[test]
fn the_directory_beneath_a_view_that_dir_lies_in_is_named() {
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let rule = "[[rule]]\npath = \"a\"\naction = \"hide\"\n";
    std::fs::write(home.path().join("p.toml"), rule).unwrap();
    let script = "mkdir -p raw/sub once twice; echo below >raw/sub/a
         $T mount --daemon --policy none raw once; $T mount --daemon --policy none once/sub twice
         for dir in once twice; do
             $T run --policy p.toml --fence off $dir -- \"$T\" status . >said 2>note
             grep -h 'beneath the view' said note | grep -o 'lie in [^)]*'
         done
         $T run --policy none --fence off once -- true 2>&1 | grep beneath || true
         $T umount twice; $T umount --lazy once";
    let output = Command::new("sh")
        .args(["-ec", script])
        .env_remove("TOLLGATE_POLICY")
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(home.path())
        .output()
        .unwrap();
    let home = home.path().canonicalize().unwrap();
    let home = home.display();
    let once = format!("lie in `{home}/raw`, where it judges nothing\n");
    let twice =
        format!("lie in `{home}/once/sub`, where it judges nothing; and in `{home}/raw/sub`\n");
    assert_eq!(text(&output.stdout), format!("{once}{once}{twice}{twice}"), "{}", all(&output));
}

/// Also where the path of a layer cannot be followed from elsewhere, or has characters in it that
/// separate or escape in a list of paths.
#[test]
fn layers_with_a_relative_or_a_strange_path_are_named() {
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let rule = "[[rule]]\npath = \"a\"\naction = \"hide\"\n";
    std::fs::write(home.path().join("p.toml"), rule).unwrap();
    let script = r#"mount -t tmpfs t mnt; cd mnt; mkdir lower upper work dir 'lo:c' 'lo\e' strange
         mount -t overlay o -o lowerdir=lower,upperdir="$PWD/upper",workdir=work dir
         mount -t overlay o -o "lowerdir+=$PWD/lo:c,lowerdir+=$PWD/lo\\e" strange
         for dir in dir strange; do
             $T run --policy ../p.toml --fence off $dir -- "$T" status . >said 2>note
             grep '^  without.*overlay' said
             grep 'note: .*overlay' note
         done"#;
    std::fs::create_dir(home.path().join("mnt")).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", script])
        .env_remove("TOLLGATE_POLICY")
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(home.path())
        .output()
        .unwrap();
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{}", all(&output));
    let mnt = home.path().canonicalize().unwrap().join("mnt");
    let mnt = mnt.to_str().unwrap();
    for line in &lines[..2] {
        assert!(line.contains(&format!("can be reached in `{mnt}/upper`; ")), "{line}");
        assert!(line.contains("the layers mounted as `lower` is not known"), "{line}");
    }
    for line in &lines[2..] {
        let layers = format!(r"can be reached in `{mnt}/lo:c`, `{mnt}/lo\\e`");
        assert!(line.contains(&layers), "{line}");
    }
}

/// Chroots have such mounts. In a view, no directory is in itself.
#[test]
fn a_directory_that_is_mounted_in_itself_is_named_and_not_entered() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir dir/in dir/docs/in
        for from in dir dir/docs; do
            mount --bind $from $from/in
            for fence in on off; do
                for policy in none policy.toml; do
                    $T run --fence $fence --policy $policy dir -- sh -c '
                        cat a.txt; ls in docs/in >/dev/null'
                done || true
            done
            umount $from/in
        done";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "plain\n".repeat(8), "{said}");
    let told = said.matches("shows a directory that it lies in: CMD cannot").count();
    assert_eq!(told, 4, "{said}");
    assert!(!said.contains(SECRET), "{said}");
}

/// Nor is what is mounted below such a place, of whatever kind it is, also for a user.
#[test]
fn what_is_mounted_below_a_directory_that_is_mounted_in_itself_does_not_hinder_the_start() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        cp $T ./tollgate; chmod 755 . dir tollgate; chmod 644 dir/a.txt
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; unset XDG_RUNTIME_DIR
        mkdir dir/cache dir/in
        user() { setpriv --reuid 4321 --regid 4321 --clear-groups "$@"; }
        for kind in tmpfs sysfs proc; do
            mount -t $kind x dir/cache; mount --rbind dir dir/in
            for fence in on off; do
                for as in '' user; do
                    $as ./tollgate run --quiet --fence $fence --policy none dir -- cat a.txt || true
                done
            done
            umount -R dir/in; umount dir/cache
        done"#;
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    if said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "plain\n".repeat(12), "{said}");
}
