package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Debian downloads packages of Debian and all that they depend on, as apt on this machine is set up, and
// returns a folder below dir with what is in them. No script of theirs runs, and nothing is installed
// on this machine.
func Debian(ctx context.Context, dir string, packages ...string) (root string, err error) {
	archives, status := filepath.Join(dir, "archives"), filepath.Join(dir, "status")
	root = filepath.Join(dir, "root")
	for _, d := range []string{filepath.Join(archives, "partial"), root} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	// To apt, nothing is installed: it would leave out what this machine has.
	if err := os.WriteFile(status, nil, 0o600); err != nil {
		return "", err
	}
	args := []string{
		"install", "--download-only", "--yes", "--quiet", "--no-install-recommends",
		"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + archives, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(args, packages...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("download %v: %w\n%s", packages, err, out)
	}
	found, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, file := range found {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", file, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w\n%s", file, err, out)
		}
	}
	return root, nil
}

// Needless says of a path below a root of Debian whether no program needs it: documentation and
// translations.
func Needless(path string) bool {
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// Applets adds links to busybox, for each of its programs that root has no other of, and that is not
// one of some.
func (l *Layer) Applets(ctx context.Context, root string, not ...string) {
	if l.err != nil {
		return
	}
	out, err := exec.CommandContext(ctx, filepath.Join(root, "bin/busybox"), "--list").Output()
	if err != nil {
		l.err = fmt.Errorf("list what busybox has: %w", err)
		return
	}
	for name := range strings.FieldsSeq(string(out)) {
		has := slices.Contains(not, name)
		for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin"} {
			_, err := os.Lstat(filepath.Join(root, dir, name))
			has = has || err == nil
		}
		if !has {
			l.Link("bin/"+name, "busybox")
		}
	}
}
